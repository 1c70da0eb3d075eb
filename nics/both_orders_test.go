package nics_test

import (
	"net/netip"
	"testing"

	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// at is the NIC at an address; nil if there is none. There must not be two.
func at(t *testing.T, devices []verbs.Device, addr string) (found *roce.Device) {
	t.Helper()
	for _, d := range devices {
		if nic := d.(*roce.Device); nic.Addr().Addr() == netip.MustParseAddr(addr) {
			if found != nil {
				t.Errorf("two NICs at %s: %v and %v", addr, found.Addr(), nic.Addr())
			}
			found = nic
		}
	}
	return found
}

// The NIC that reaches a peer is one of those that the host lists, whichever is asked for first: a
// second one at its address would have another UDP port, or none.
func TestListingAndReaching(t *testing.T) {
	for _, listFirst := range []bool{true, false} {
		h := open(t, nics.Config{Provider: nics.RoCE})
		a, _ := met(t)
		var all, reaching []verbs.Device
		for _, list := range []bool{listFirst, !listFirst} {
			var err error
			if list {
				all, err = h.Devices()
			} else {
				reaching, err = h.Reaching(a)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(reaching) != 1 || at(t, all, "127.0.0.1") != reaching[0] {
			t.Errorf("listed first %v: %v reaches the peer, of %v", listFirst, reaching, all)
		}
		if again, err := h.Devices(); err != nil || len(again) != len(all) {
			t.Errorf("%d NICs, then %d, %v", len(all), len(again), err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A host that is closed may be closed again, of whichever provider its NICs are.
func TestCloseTwice(t *testing.T) {
	for _, cfg := range []nics.Config{{Provider: nics.Soft}, {Provider: nics.RoCE},
		{Provider: nics.RoCE, Devices: "127.0.0.28"}} {
		h := open(t, cfg)
		for range 2 {
			if err := h.Close(); err != nil {
				t.Errorf("%s: %v", h, err)
			}
		}
	}
}
