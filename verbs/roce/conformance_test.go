package roce

import (
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	m.Run()
}

func TestConformance(t *testing.T) { testConformance(t, "127.0.0.1", "127.0.0.2") }

// testConformance runs the suite over NICs at the first and the last of the addresses.
func testConformance(t *testing.T, addrs ...string) {
	verbstest.Run(t, verbstest.Env{
		Strict:  true,
		SetLink: func(_ *testing.T, d verbs.Device, up bool) { d.(*Device).SetLink(up) },
		Open: func(t *testing.T) (a, b verbs.Device) {
			p := openNICs(t, Config{}, addrs...)
			return p.Device(0), p.Device(len(addrs) - 1)
		},
	})
}

// Where no address was named, one that cannot be opened does not hide the others: of those of IPv6
// the second process of a host can have none, since their GIDs cannot tell another port.
func TestUnopened(t *testing.T) {
	first, second := openNICs(t, Config{}), openNICs(t, Config{})
	devices, _ := first.Devices()
	left := map[netip.Addr]bool{}
	for i := range devices {
		if a := first.Device(i).Addr(); a.Port() == Port { // unless a third process has it
			left[a.Addr()] = true
		}
	}
	devices, _ = second.Devices()
	for i := range devices {
		if a := second.Device(i).Addr(); left[a.Addr()] && (!a.Addr().Is4() || a.Port() == Port) {
			t.Errorf("a second NIC at %v", a)
		}
	}
	for addr := range left {
		if addr.Is6() && !strings.Contains(fmt.Sprint(second.Unopened()), addr.String()) {
			t.Errorf("nothing is said of %v: %v", addr, second.Unopened())
		}
	}
	if _, err := Open(
		Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}); err == nil ||
		!strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that is not of this host: %v", err)
	}
}
