package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Without segmentation the IP identification is 0 and DF is set, and with it the packets of a burst
// have 0, 1, 2 on IPv4. What a raw socket needs privilege to see is seen here where there is some.
func TestIdentification(t *testing.T) {
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Skip("a raw socket takes privilege")
	}
	defer unix.Close(raw)
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	packets, _ := packetsOf(100, 100, 100)
	send(t, to(t, a, b), packets, false)
	buf := make([]byte, 2048)
	_ = unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	for seen := 0; seen < 3; {
		n, _, err := unix.Recvfrom(raw, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if port := uint16(buf[20])<<8 | uint16(buf[21]); n != 128 || port != a.LocalAddr().Port() {
			continue
		}
		seen++
		if id := uint16(buf[4])<<8 | uint16(buf[5]); id != 0 || buf[6] != 0x40 {
			t.Errorf("identification %d, flags %#x", id, buf[6])
		}
	}
}

// The options without which peers would drop what is sent are set.
func TestOptions(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c := open(t, Config{Local: local})
		_ = c.raw.Control(func(fd uintptr) {
			for _, option := range required(local.Addr()) {
				got, err := unix.GetsockoptInt(int(fd), option.level, option.name)
				if got != option.value || err != nil {
					t.Errorf("%s is %d, not %d (%v)", option.text, got, option.value, err)
				}
			}
		})
	})
	for family, want := range map[string]string{
		"IPv4": "IP_MTU_DISCOVER=3 ",
		"IPv6": "IPV6_V6ONLY=1 IPV6_MTU_DISCOVER=3 UDP_NO_CHECK6_RX=1 ",
	} {
		got := ""
		for _, option := range required(loopbacks()[family].Addr()) {
			got += fmt.Sprintf("%s=%d ", option.text, option.value)
		}
		if got != want {
			t.Errorf("%s: %s", family, got)
		}
	}
}

// An IPv4 address in IPv6 clothes is the IPv4 address.
func TestMappedAddress(t *testing.T) {
	c := open(t, Config{Local: netip.MustParseAddrPort("[::ffff:127.0.0.1]:0")})
	if got := c.LocalAddr().Addr(); got != netip.MustParseAddr("127.0.0.1") {
		t.Error(got)
	}
}

// Every way that Listen can be refused says in words what is wrong and what to do.
func TestListenRefused(t *testing.T) {
	taken := open(t, Config{Local: loopbacks()["IPv4"]})
	for name, test := range map[string]struct {
		cfg  Config
		is   error
		says string
	}{
		"no address": {Config{}, verbs.ErrInvalid, "no local address"},
		"unspecified": {Config{Local: netip.MustParseAddrPort("0.0.0.0:4791")}, verbs.ErrInvalid,
			"one concrete address"},
		"unspecified, mapped": {Config{Local: netip.MustParseAddrPort("[::ffff:0.0.0.0]:1")},
			verbs.ErrInvalid, "one concrete"},
		"multicast": {Config{Local: netip.MustParseAddrPort("224.0.0.1:4791")}, verbs.ErrInvalid,
			"multicast"},
		"not local": {Config{Local: netip.MustParseAddrPort("203.0.113.9:0")}, ErrNotLocal,
			"no interface"},
		"not local v6": {Config{Local: netip.MustParseAddrPort("[2001:db8::9]:0")}, ErrNotLocal,
			"no interface"},
		"link-local": {Config{Local: netip.MustParseAddrPort("[fe80::dead]:0")}, ErrNotLocal,
			"no interface"},
		"zone": {Config{Local: netip.MustParseAddrPort("[fe80::1%none9]:0")}, ErrNotLocal,
			`no interface "none9"`},
		"port taken": {Config{Local: taken.LocalAddr()}, ErrPortTaken, "another process"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Listen(test.cfg)
			if err == nil {
				c.Close()
			}
			var typed *Error
			if !errors.Is(err, test.is) || !errors.As(err, &typed) ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Who may have port 4791 depends on whether rdma_rxe is there.
func TestListenErrorWords(t *testing.T) {
	local := netip.MustParseAddrPort("192.0.2.1:4791")
	v6 := netip.MustParseAddrPort("[2001:db8::1]:4791")
	rxe := fstest.MapFS{"module/rdma_rxe/refcnt": {}}
	for _, test := range []struct {
		local netip.AddrPort
		errno syscall.Errno
		sysfs fstest.MapFS
		is    error
		says  []string
	}{
		{local, unix.EADDRINUSE, rxe, ErrPortTaken, []string{"rdma_rxe is loaded", "another process",
			"another port"}},
		{local, unix.EADDRINUSE, nil, ErrPortTaken, []string{"rdma_rxe", "is not loaded", "another port"}},
		{local, unix.EACCES, nil, ErrPermission, []string{"privilege"}},
		{local, unix.EAFNOSUPPORT, nil, ErrFamily, []string{"no IPv4"}},
		{v6, unix.EAFNOSUPPORT, nil, ErrFamily, []string{"no IPv6"}},
		{local, unix.EMFILE, nil, unix.EMFILE, []string{"ulimit -n"}},
	} {
		err := listenError(test.local, test.errno, test.sysfs)
		if !errors.Is(err, test.is) || !errors.Is(err, test.errno) {
			t.Errorf("%v is not %v", err, test.is)
		}
		for _, says := range append(test.says, test.local.String(), test.errno.Error()) {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q does not say %q", err, says)
			}
		}
	}
}

// The environment turns the offloads off, and is checked.
func TestEnvironment(t *testing.T) {
	local := loopbacks()["IPv4"]
	for _, name := range []string{envDisableGSO, envDisableGRO} {
		for value, off := range map[string]bool{"": false, "0": false, "1": true, "true": true} {
			c, err := listen(Config{Local: local}, func(asked string) string {
				if asked == name {
					return value
				}
				return ""
			})
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if off && name == envDisableGSO && c.gso || off && name == envDisableGRO && c.gro {
				t.Errorf("%s=%s changes nothing", name, value)
			}
			if !off && (!c.gso || !c.gro) {
				t.Logf("%s=%s: GSO %t, GRO %t", name, value, c.gso, c.gro)
			}
		}
		c, err := listen(Config{Local: local, DisableGSO: true, DisableGRO: true},
			func(string) string { return "0" })
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if c.gso || c.gro {
			t.Error("the environment turns on what the program has turned off")
		}
		_, err = listen(Config{Local: local}, func(string) string { return "perhaps" })
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "perhaps") {
			t.Error(err)
		}
	}
}

// The size that the kernel has granted is reported, and privilege is used where it takes some.
func TestBuffers(t *testing.T) {
	c := open(t, Config{Local: loopbacks()["IPv4"]})
	for name, force := range map[int]int{unix.SO_RCVBUF: unix.SO_RCVBUFFORCE,
		unix.SO_SNDBUF: unix.SO_SNDBUFFORCE} {
		for _, size := range []int{100_000, 256 << 20} {
			if err := c.raw.Control(func(fd uintptr) {
				n := setBuffer(int(fd), name, force, size)
				granted, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, name)
				if err != nil || n != granted/2 || size == 100_000 && n != size {
					t.Errorf("%d bytes asked for, %d granted, %d reported: %v", size, granted/2, n, err)
				}
				if n < size && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, size) == nil {
					t.Errorf("%d bytes granted, where privilege gives %d", n, size)
				}
			}); err != nil {
				t.Error(err)
			}
		}
	}
	if s := c.Stats(); s.RecvBuffer <= 0 || s.RecvBuffer > bufferSize || s.SendBuffer <= 0 ||
		s.SendBuffer > bufferSize {
		t.Errorf("%+v", s)
	}
}
