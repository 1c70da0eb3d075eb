package ibverbx_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Connect refuses the card of the virtual queue pair itself, in all its forms, and changes nothing.
func TestConnectRefusesItsOwnCard(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			cfg := ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps}
			l := newLink(t, linkConfig{nics: m.nics, qp: cfg})
			if err := l.a.Reset(); err != nil {
				t.Fatal(err)
			}
			refused := func(q *ibverbx.VirtualQP, card ibverbx.BusinessCard) {
				t.Helper()
				if err := q.Connect(card); !errors.Is(err, ibverbx.ErrOwnCard) ||
					!strings.Contains(err.Error(), "the card of the other end") {
					t.Errorf("%v", err)
				}
				if q.State() != verbs.StateReset || q.Err() != nil {
					t.Errorf("left in %v, %v", q.State(), q.Err())
				}
			}
			card, err := l.a.Card()
			if err != nil {
				t.Fatal(err)
			}
			refused(l.a.VirtualQP, throughJSON(t, card))
			if n := len(card.QPNums); m.nics == 1 && n > 1 {
				// Its queue pairs in another order are still its own.
				card.QPNums[0], card.QPNums[n-1] = card.QPNums[n-1], card.QPNums[0]
				refused(l.a.VirtualQP, card)
			}

			// A bare card has no GIDs; the configuration has them.
			card, err = l.a.Card()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range card.Rails {
				cfg.Conn.PeerGIDs = append(cfg.Conn.PeerGIDs, r.GID)
			}
			bare, err := l.a.dom.NewQP(nil, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if card, err = bare.Card(); err != nil {
				t.Fatal(err)
			}
			refused(bare, ibverbx.BusinessCard{QPNums: card.QPNums, NotifyQPNum: card.NotifyQPNum})
			if err := bare.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two virtual queue pairs of one process, on the same NICs, connect as any others do.
func TestTwoEndsOnTheSameNICsConnect(t *testing.T) {
	for _, m := range modes {
		fabric, err := soft.New(soft.Config{Devices: m.nics})
		if err != nil {
			t.Fatal(err)
		}
		devices, err := fabric.Devices()
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]*ibverbx.VirtualQP
		for i := range ends {
			if ends[i], err = ibverbx.Open(devices,
				ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps}); err != nil {
				t.Fatal(err)
			}
		}
		connectBoth(t, ends[0], ends[1])
		if err := errors.Join(ends[0].Close(), ends[1].Close(), fabric.Close()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// Software NICs of two fabrics, which in two programs have the same names and numbers, do not reach
// each other. Connect says so at once and changes nothing.
func TestConnectRefusesAnotherFabric(t *testing.T) {
	var ends [2]*ibverbx.VirtualQP
	for i := range ends {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer fabric.Close()
		if ends[i], err = ibverbx.Open([]verbs.Device{fabric.Device(0)}, ibverbx.Config{}); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	for i, q := range ends {
		card, err := ends[1-i].Card()
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Connect(throughJSON(t, card)); !errors.Is(err, verbs.ErrUnreachable) ||
			!strings.Contains(err.Error(), card.Rails[0].GID.String()) ||
			!strings.Contains(err.Error(), "rail 0") {
			t.Errorf("%v", err)
		}
		if q.State() != verbs.StateReset || q.Err() != nil {
			t.Errorf("left in %v, %v", q.State(), q.Err())
		}
	}
}
