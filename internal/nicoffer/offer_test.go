package nicoffer

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

// link is a NIC of a link layer, with a GID table of one kind.
type link struct {
	verbs.Device
	layer verbs.LinkLayer
	gids  verbs.GIDType
}

func (l link) QueryPort(n int) (verbs.PortAttr, error) {
	attr, err := l.Device.QueryPort(n)
	attr.LinkLayer = l.layer
	return attr, err
}

func (l link) QueryGID(port, i int) (verbs.GIDEntry, error) {
	g, err := l.Device.QueryGID(port, i)
	g.Type = l.gids
	return g, err
}

// TestPacketsOf tells what NICs speak, by which two ends learn whether they reach each other.
func TestPacketsOf(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	dev := fabric.Device(0)
	for _, tt := range []struct {
		nic  verbs.Device
		want string
	}{
		{link{dev, verbs.LinkLayerEthernet, verbs.GIDTypeRoCEv2}, "RoCEv2"},
		{link{dev, verbs.LinkLayerEthernet, verbs.GIDTypeRoCEv1}, "Ethernet without RoCEv2"},
		{link{dev, verbs.LinkLayerInfiniBand, verbs.GIDTypeIB}, "InfiniBand"},
		{dev, "inside one process"},
	} {
		if got := packetsOf([]verbs.Device{tt.nic}); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.8")}
	for range 2 { // the second one finds the port taken
		p, err := roce.Open(roce.Config{Addresses: addrs})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		want := "RoCEv2"
		if port := p.Device(0).Addr().Port(); port != roce.Port {
			want = fmt.Sprintf("RoCEv2 on UDP port %d, not 4791", port)
		}
		devices, _ := p.Devices()
		if got := packetsOf(devices); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Two ends whose NICs cannot reach each other are told so, in words that name both.
func TestOfferReaches(t *testing.T) {
	roce, own := "RoCEv2", "RoCEv2 on UDP port 40001, not 4791"
	for _, tt := range []struct {
		provider, packets, theirs, theirPackets string
		ok                                      bool
	}{
		{"roce", roce, "rdmacore", roce, true},
		{"roce", roce, "rdmacore", "InfiniBand", false},
		{"rdmacore", "InfiniBand", "roce", own, false},
		{"roce", own, "rdmacore", roce, false},
		{"roce", own, "roce", roce, true},
		{"soft", "inside one process", "roce", roce, false},
		{"left", "", "right", roce, true}, // not known
	} {
		mine := Offer{Provider: tt.provider, Packets: tt.packets}
		err := mine.Reaches(&Offer{Provider: tt.theirs, Packets: tt.theirPackets})
		if (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
		if err != nil && (!errors.Is(err, verbs.ErrUnreachable) ||
			!strings.Contains(err.Error(), tt.packets) ||
			!strings.Contains(err.Error(), tt.theirPackets)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// What a peer says of its NICs is bounded, and safe to print.
func TestOfferCheck(t *testing.T) {
	for _, o := range []Offer{{}, {NICs: make([]string, verbs.MaxDevices+1)}} {
		if err := o.Check(); !errors.Is(err, rendezvous.ErrProtocol) {
			t.Errorf("%d NICs: %v", len(o.NICs), err)
		}
	}
	o := Offer{Provider: "a\x1b[2J", Packets: strings.Repeat("x", 1000),
		NICs: []string{"eth0\nibverbx: fine"}}
	if err := o.Check(); err != nil || o.Provider != "a [2J" || len(o.Packets) != MaxName ||
		o.NICs[0] != "eth0 ibverbx: fine" {
		t.Errorf("%q, %v", o, err)
	}
}

// FuzzOffer reads what a peer says of its NICs. What is taken can be shown, and compared.
func FuzzOffer(f *testing.F) {
	f.Add(`{"provider":"roce","packets":"RoCEv2","nics":["roce0 at 127.0.0.1:4791"]}`)
	f.Add(`{"provider":"a\nibverbx: all is well","nics":["\u001b[2J"]}`)
	f.Add(`{"nics":[` + strings.Repeat(`"x",`, verbs.MaxDevices) + `"x"]}`)
	f.Add(`{"packets":"` + strings.Repeat("é", 500) + `","nics":["x"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := rendezvous.Message{Kind: "nics", Body: []byte(text)}
		var o Offer
		err := m.Decode(&o)
		if err == nil {
			err = o.Check()
		}
		if err != nil {
			if !errors.Is(err, rendezvous.ErrProtocol) || len(err.Error()) > 1000 {
				t.Fatalf("%d bytes: %.300v", len(err.Error()), err)
			}
			return
		}
		for _, s := range append(o.NICs, o.Provider, o.Packets) {
			if len([]rune(s)) > MaxName ||
				strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("takes %q", s)
			}
		}
		mine := Offer{Provider: "roce", Packets: "RoCEv2", NICs: []string{"roce0"}}
		if (mine.Reaches(&o) == nil) != (o.Reaches(&mine) == nil) {
			t.Fatalf("%+v is reached one way", o)
		}
	})
}
