package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Connect refuses the card of the virtual queue pair itself, in all its forms, and changes nothing.
func TestConnectRefusesItsOwnCard(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			cfg := ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs}
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: cfg})
			if err := l.A.Reset(); err != nil {
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
			card, err := l.A.Card()
			if err != nil {
				t.Fatal(err)
			}
			refused(l.A.VirtualQP, vqptest.ThroughJSON(t, card))
			if n := len(card.QPNums); m.NICs == 1 && n > 1 {
				// Its queue pairs in another order are still its own.
				card.QPNums[0], card.QPNums[n-1] = card.QPNums[n-1], card.QPNums[0]
				refused(l.A.VirtualQP, card)
			}

			// A bare card has no GIDs; the configuration has them.
			card, err = l.A.Card()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range card.Rails {
				cfg.Conn.PeerGIDs = append(cfg.Conn.PeerGIDs, r.GID)
			}
			bare, err := l.A.Domain().NewQP(nil, cfg)
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
	for _, m := range vqptest.Modes {
		fabric, err := soft.New(soft.Config{Devices: m.NICs})
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
				ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs}); err != nil {
				t.Fatal(err)
			}
		}
		vqptest.ConnectBoth(t, ends[0], ends[1])
		if err := errors.Join(ends[0].Close(), ends[1].Close(), fabric.Close()); err != nil {
			t.Errorf("%s: %v", m.Name, err)
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
		if err := q.Connect(vqptest.ThroughJSON(t, card)); !errors.Is(err, verbs.ErrUnreachable) ||
			!strings.Contains(err.Error(), card.Rails[0].GID.String()) ||
			!strings.Contains(err.Error(), "rail 0") {
			t.Errorf("%v", err)
		}
		if q.State() != verbs.StateReset || q.Err() != nil {
			t.Errorf("left in %v, %v", q.State(), q.Err())
		}
	}
}
