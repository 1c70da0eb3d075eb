package roce_test

import (
	"net/netip"
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
