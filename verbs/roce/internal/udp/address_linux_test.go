package udp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// Destinations that cannot be are refused at once.
func TestDestinationRefused(t *testing.T) {
	c := open(t, Config{Local: loopbacks()["IPv4"]})
	for addr, is := range map[string]error{"[::1]:1": ErrFamily, "127.0.0.1:0": verbs.ErrInvalid,
		"0.0.0.0:1": verbs.ErrInvalid, "224.0.0.1:1": verbs.ErrInvalid} {
		_, err := c.NewDestination(netip.MustParseAddrPort(addr), Way{})
		if !errors.Is(err, is) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v", addr, err)
		}
		if _, err := c.MTU(netip.MustParseAddrPort(addr)); !errors.Is(err, is) {
			t.Errorf("MTU to %s: %v", addr, err)
		}
	}
	if _, err := c.NewDestination(netip.AddrPort{}, Way{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.NewDestination(netip.MustParseAddrPort("[::ffff:127.0.0.1]:5"), Way{}); err != nil {
		t.Error(err)
	}
}

// The path MTU is that of the link, and says which MTU of package verbs fits.
func TestMTU(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c := open(t, Config{Local: local})
		path, err := c.MTU(c.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		if path.IP < 65535 || path.IP > 65536 || path.Payload < 65535-48 || path.Verbs(36) != verbs.MTU4096 {
			t.Errorf("%+v, %v", path, path.Verbs(36))
		}
		if !path.SameHost {
			t.Error("the own address is said to be of another host")
		}
	})
	for ip, want := range map[int][2]verbs.MTU{
		9000: {verbs.MTU4096, verbs.MTU4096}, 4180: {verbs.MTU4096, verbs.MTU4096},
		4160: {verbs.MTU4096, verbs.MTU2048}, 4159: {verbs.MTU2048, verbs.MTU2048},
		1500: {verbs.MTU1024, verbs.MTU1024}, 576: {verbs.MTU512, verbs.MTU256}, 100: {0, 0}, 0: {0, 0},
	} {
		if v4, v6 := pathMTU(ip, false).Verbs(36), pathMTU(ip, true).Verbs(36); v4 != want[0] ||
			v6 != want[1] {
			t.Errorf("link %d: %v and %v, not %v", ip, v4, v6, want)
		}
	}
}

// A datagram beyond the path MTU is refused with what fits.
func TestTooLarge(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
		dest := to(t, a, b)
		packets, _ := packetsOf(100, 65535)
		n, err := dest.Send(packets, true)
		if n != 1 || !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "65535 bytes") {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// The addresses of the host have what a device list needs.
func TestLocalAddresses(t *testing.T) {
	list, err := LocalAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range list {
		if local.Loopback != (local.Interface == "lo") {
			t.Errorf("the loopback interface is lo: %+v", local)
		}
		if local.Interface == "" || local.Index == 0 || !local.Addr.IsValid() || local.Addr.Is4In6() ||
			local.Speed < 0 {
			t.Errorf("%+v", local)
		}
		if local.Addr == netip.MustParseAddr("127.0.0.1") &&
			(!local.Loopback || !local.Up || local.MTU < 1500) {
			t.Errorf("%+v", local)
		}
		if zone := local.Addr.Zone(); local.Addr.Is6() && local.Addr.IsLinkLocalUnicast() &&
			zone != local.Interface {
			t.Errorf("%+v: zone %q", local, zone)
		}
		if !local.Up {
			continue
		}
		c, err := Listen(Config{Local: netip.AddrPortFrom(local.Addr, 0)})
		if err != nil {
			t.Errorf("cannot be bound: %v", err)
			continue
		}
		c.Close()
	}
}

// A link-local IPv6 address works with its zone and without, and its peers need none.
func TestLinkLocal(t *testing.T) {
	list, err := LocalAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range list {
		if !local.Addr.Is6() || !local.Addr.IsLinkLocalUnicast() || !local.Up {
			continue
		}
		a := open(t, Config{Local: netip.AddrPortFrom(local.Addr, 0)})
		b := open(t, Config{Local: netip.AddrPortFrom(local.Addr.WithZone(""), 0)})
		for _, addr := range []netip.Addr{local.Addr, local.Addr.WithZone("")} {
			dest, err := a.NewDestination(netip.AddrPortFrom(addr, b.LocalAddr().Port()), Way{})
			if err != nil {
				t.Fatal(err)
			}
			packets, _ := packetsOf(10)
			send(t, dest, packets, true)
			got := receive(t, b, b.NewBatch(0, 0), 1)
			if want := netip.AddrPortFrom(local.Addr.WithZone(""),
				a.LocalAddr().Port()); got[0].from != want {
				t.Errorf("from %v, not %v", got[0].from, want)
			}
		}
		return
	}
	t.Skip("no interface has a link-local address")
}
