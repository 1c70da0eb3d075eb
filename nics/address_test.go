package nics

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// route is a connection that leads nowhere.
type route struct{ local, remote net.Addr }

func (r route) LocalAddr() net.Addr  { return r.local }
func (r route) RemoteAddr() net.Addr { return r.remote }

// TestAddress chooses the address of a NIC from the connection with the other end.
func TestAddress(t *testing.T) {
	for _, tt := range []struct{ local, remote, want string }{
		{"127.0.0.1:18515", "127.0.0.1:4", "127.0.0.1"},
		{"127.0.0.9:18515", "127.0.0.1:4", "127.0.0.1"},
		{"[::1]:18515", "[::1]:4", "127.0.0.1"},
		{"10.0.0.1:5", "10.0.0.1:4", "10.0.0.1"},
		{"[::ffff:10.0.0.1]:5", "[::ffff:10.0.0.2]:4", "10.0.0.1"},
		{"[fd00::1]:5", "[fd00::1]:4", "127.0.0.1"},
		{"[fd00::1]:5", "[fd00::2]:4", "fd00::1"},
		{"[fe80::1%eth0]:5", "[fe80::2%eth0]:4", ""},
		{"169.254.0.1:5", "169.254.0.2:4", ""},
	} {
		local := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.local))
		remote := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.remote))
		got, err := address(route{local, remote})
		switch {
		case tt.want == "":
			var why *LinkLocalError
			if !errors.As(err, &why) || !strings.Contains(err.Error(), "link-local") {
				t.Errorf("%s to %s: %v, %v", tt.local, tt.remote, got, err)
			}
		case err != nil || got.String() != tt.want:
			t.Errorf("%s to %s: %v, %v, want %s", tt.local, tt.remote, got, err, tt.want)
		}
	}
}

// Of an interface its IPv4 addresses are NICs, and its IPv6 ones where it has no others; none is
// link-local.
func TestAddressesOfAnInterface(t *testing.T) {
	for _, tt := range []struct{ all, want string }{
		{"192.0.2.1/24 fd00::1/64 fe80::1/64 192.0.2.2/24", "[192.0.2.1 192.0.2.2]"},
		{"fe80::1/64 fd00::1/64", "[fd00::1]"},
		{"fe80::1/64 169.254.0.1/16", "[]"},
		{"", "[]"},
	} {
		var all []net.Addr
		for prefix := range strings.FieldsSeq(tt.all) {
			ip, ipNet, err := net.ParseCIDR(prefix)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, &net.IPNet{IP: ip, Mask: ipNet.Mask})
		}
		if got := fmt.Sprint(nicAddresses(all)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.all, got, tt.want)
		}
	}
	for _, ifc := range interfaceNames() {
		if _, err := parseAddresses(ifc); err != nil &&
			!strings.Contains(err.Error(), "no address that can be") {
			t.Errorf("%s: %v", ifc, err)
		}
	}
}
