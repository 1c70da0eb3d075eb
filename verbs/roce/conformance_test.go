package roce_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/verbstest"
)

// open makes NICs on loopback addresses, which have to be without objects when the test ends.
func open(t testing.TB, cfg roce.Config, addrs ...string) *roce.Provider {
	t.Helper()
	for _, a := range addrs {
		cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr(a))
	}
	p, err := roce.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestConformance(t *testing.T) {
	verbstest.Run(t, verbstest.Env{
		Strict:  true,
		SetLink: func(_ *testing.T, d verbs.Device, up bool) { d.(*roce.Device).SetLink(up) },
		Open: func(t *testing.T) (a, b verbs.Device) {
			p := open(t, roce.Config{}, "127.0.0.1", "127.0.0.2")
			return p.Device(0), p.Device(1)
		},
	})
}

// Where no address was named, one that cannot be opened does not hide the others: of those of IPv6
// the second process of a host can have none, since their GIDs cannot tell another port.
func TestUnopened(t *testing.T) {
	first, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	devices, _ := first.Devices()
	left := map[netip.Addr]bool{}
	for i := range devices {
		if a := first.Device(i).Addr(); a.Port() == roce.Port { // unless a third process has it
			left[a.Addr()] = true
		}
	}
	devices, _ = second.Devices()
	for i := range devices {
		if a := second.Device(i).Addr(); left[a.Addr()] && (!a.Addr().Is4() || a.Port() == roce.Port) {
			t.Errorf("a second NIC at %v", a)
		}
	}
	for addr := range left {
		if addr.Is6() && !strings.Contains(fmt.Sprint(second.Unopened()), addr.String()) {
			t.Errorf("nothing is said of %v: %v", addr, second.Unopened())
		}
	}
	if _, err := roce.Open(
		roce.Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}); err == nil ||
		!strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that is not of this host: %v", err)
	}
}
