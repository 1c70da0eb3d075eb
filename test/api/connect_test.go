package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// rawEnds are two virtual queue pairs of three physical ones each, on a NIC of their own.
func rawEnds(t *testing.T, dev soft.DeviceConfig, conns ...ibverbx.ConnConfig) (a, b *vqptest.Physical) {
	t.Helper()
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2, Device: dev})
	var ends [2]*vqptest.Physical
	for i := range ends {
		c := vqptest.PhysicalConfig{Data: 2, Notify: true}
		if i < len(conns) {
			c.QP.Conn = conns[i]
		}
		ends[i] = vqptest.NewPhysical(t, fabric.Device(i), c)
	}
	return ends[0], ends[1]
}

// cardOf is the card of a virtual queue pair.
func cardOf(tb testing.TB, q interface {
	Card() (ibverbx.BusinessCard, error)
}) ibverbx.BusinessCard {
	tb.Helper()
	card, err := q.Card()
	if err != nil {
		tb.Fatal(err)
	}
	return card
}

// What Config.Conn says is what the queue pairs are connected with, and what it leaves out has the
// documented default.
func TestConnConfigReachesTheQueuePairs(t *testing.T) {
	const usual, given = verbs.AccessLocalWrite | verbs.AccessRemoteWrite, verbs.AccessAll
	for _, c := range []struct {
		name      string
		dev       soft.DeviceConfig
		conn      ibverbx.ConnConfig
		peer      ibverbx.ConnConfig
		want      verbs.QPAttr // of the first end
		peerReads uint8        // that the peer serves
	}{
		{name: "defaults",
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: usual, Timeout: 17, RetryCount: 6,
				RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 16, MaxDestRDAtomic: 16}, peerReads: 16},
		{name: "all given",
			conn: ibverbx.ConnConfig{Port: 1, GIDIndex: 1, MTU: verbs.MTU1024, Timeout: 9, RetryCount: 3,
				RNRRetry: 2, MinRNRTimer: 5, MaxRDAtomic: 4, Access: given, TrafficClass: 96, SL: 3},
			want: verbs.QPAttr{PathMTU: verbs.MTU1024, Access: given, Timeout: 9, RetryCount: 3, RNRRetry: 2,
				MinRNRTimer: 5, MaxRDAtomic: 4, MaxDestRDAtomic: 4,
				AH: verbs.AH{SGIDIndex: 1, TrafficClass: 96, SL: 3}}, peerReads: 16},
		{name: "zero",
			conn: ibverbx.ConnConfig{GIDIndex: ibverbx.None, Timeout: ibverbx.None, RetryCount: ibverbx.None,
				RNRRetry: ibverbx.None, MinRNRTimer: ibverbx.None},
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: usual, MaxRDAtomic: 16,
				MaxDestRDAtomic: 16}, peerReads: 16},
		{name: "the smaller path MTU and the fewer reads of the peer",
			peer: ibverbx.ConnConfig{MTU: verbs.MTU512, MaxRDAtomic: 2},
			want: verbs.QPAttr{PathMTU: verbs.MTU512, Access: usual, Timeout: 17, RetryCount: 6,
				RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 2, MaxDestRDAtomic: 16}, peerReads: 2},
		{name: "a NIC that allows fewer reads", dev: soft.DeviceConfig{MaxRDAtomic: 3},
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: usual, Timeout: 17, RetryCount: 6,
				RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 3, MaxDestRDAtomic: 3}, peerReads: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rawEnds(t, c.dev, c.conn, c.peer)
			vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
			card, peer := cardOf(t, a), cardOf(t, b)
			if card.RDAtomic != c.want.MaxDestRDAtomic || peer.RDAtomic != c.peerReads {
				t.Errorf("cards say %d and %d reads", card.RDAtomic, peer.RDAtomic)
			}
			for i, qp := range a.Raw {
				got, err := qp.(*soft.QP).Query()
				if err != nil {
					t.Fatal(err)
				}
				want := c.want
				want.State, want.CurState, want.Port = verbs.StateRTS, verbs.StateRTS, 1
				want.DestQPNum, want.RQPSN, want.SQPSN = b.Raw[i].Num(), peer.Rails[i].PSN, card.Rails[i].PSN
				want.AH.DGID, want.AH.Port, want.AH.Global = peer.Rails[i].GID, 1, true
				want.AH.HopLimit = 64
				if got != want {
					t.Errorf("queue pair %d\ngot  %+v\nwant %+v", i, got, want)
				}
			}
		})
	}
}

// The peer's GIDs may come from the configuration where its card has none: one for each queue pair,
// in their order. Packet numbers begin with 0 then.
func TestPeerGIDs(t *testing.T) {
	for given := range 4 {
		fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
		c := vqptest.PhysicalConfig{Data: 2, Notify: true}
		b := vqptest.NewPhysical(t, fabric.Device(1), c)
		for i := range given {
			entry, err := fabric.Device(1).QueryGID(1, i%2)
			if err != nil {
				t.Fatal(err)
			}
			c.QP.Conn.PeerGIDs = append(c.QP.Conn.PeerGIDs, entry.GID)
		}
		a := vqptest.NewPhysical(t, fabric.Device(0), c)
		card := cardOf(t, b)
		card.Rails = nil
		err := a.Connect(card)
		if given < 3 {
			if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "PeerGIDs") ||
				a.Raw[0].State() != verbs.StateReset {
				t.Errorf("%d GIDs: %v", given, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d GIDs: %v", given, err)
		}
		for i, qp := range a.Raw {
			attr, err := qp.Query()
			if err != nil || attr.AH.DGID != c.QP.Conn.PeerGIDs[i] || attr.RQPSN != 0 {
				t.Errorf("queue pair %d: %+v, %v", i, attr, err)
			}
		}
	}
}

// DQPLB's credits are posted when RTR is reached, and not before: from then on the peer may send.
func TestCreditsArePostedInRTR(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Credits: 5}})
	if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
		t.Fatal(err)
	}
	peer := cardOf(t, l.B)
	credits := func() string {
		r := l.A.Stats().Rails
		return fmt.Sprint(r[0].Recvs, r[1].Recvs, r[2].Recvs)
	}
	if err := vqptest.ToInit.Take(l.A.VirtualQP, &peer); err != nil || credits() != "0 0 0" {
		t.Errorf("in INIT: %s, %v", credits(), err)
	}
	if err := vqptest.ToRTR.Take(l.A.VirtualQP, &peer); err != nil || credits() != "5 5 0" {
		t.Errorf("in RTR: %s, %v", credits(), err)
	}
	if err := vqptest.ToRTR.Take(l.A.VirtualQP, &peer); err == nil || credits() != "5 5 0" {
		t.Errorf("RTR twice: %s, %v", credits(), err)
	}
}

// A change of attributes alone leaves state, requests and receives as they are.
func TestModifyWithoutAState(t *testing.T) {
	a, b := rawEnds(t, soft.DeviceConfig{})
	vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
	before := a.Stats().Rails[0].Recvs
	if err := a.Modify(verbs.QPAttr{MinRNRTimer: 3}, verbs.QPAttrMinRNRTimer, nil); err != nil {
		t.Fatal(err)
	}
	for i, qp := range a.Raw {
		if attr, err := qp.Query(); err != nil || attr.MinRNRTimer != 3 {
			t.Errorf("queue pair %d: timer %d, %v", i, attr.MinRNRTimer, err)
		}
	}
	if a.State() != verbs.StateRTS || a.Stats().Rails[0].Recvs != before {
		t.Errorf("in %v, with %+v", a.State(), a.Stats().Rails)
	}
}

// A card without addresses is refused by the step that needs them, which changes nothing.
func TestModifyNeedsThePeersAddress(t *testing.T) {
	a, b := rawEnds(t, soft.DeviceConfig{})
	peer := cardOf(t, b)
	peer.Rails = nil
	if err := vqptest.ToInit.Take(a.VirtualQP, &peer); err != nil {
		t.Fatal(err)
	}
	if err := vqptest.ToRTR.Take(a.VirtualQP, &peer); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "PeerGIDs") {
		t.Errorf("%v", err)
	}
	peer.QPNums[0] = 1 << 24
	if err := a.Modify(vqptest.ToRTR.Attr, verbs.QPAttrState, &peer); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "16777216") {
		t.Errorf("an impossible card: %v", err)
	}
	if a.State() != verbs.StateInit || a.Raw[0].State() != verbs.StateInit {
		t.Errorf("in %v, its queue pair in %v", a.State(), a.Raw[0].State())
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Modify(vqptest.ToInit.Attr, verbs.QPAttrState, nil); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("a closed one: %v", err)
	}
}

// Credits that the NIC refuses permanently end the connection while it is made.
func TestConnectWhereCreditsAreRefused(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2}})
		if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
			t.Fatal(err)
		}
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], QPNum: l.A.RailQPs[1],
			Err: verbs.ErrNotSupported})
		peer := cardOf(t, l.B)
		err := l.A.Connect(peer)
		var failed *ibverbx.FailedError
		if !errors.Is(err, verbs.ErrNotSupported) || !errors.As(err, &failed) || failed.Rail != 1 ||
			!failed.Recv || l.A.State() != verbs.StateErr {
			t.Errorf("%v: %v, in %v", scheme, err, l.A.State())
		}
	}
}

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
			card := cardOf(t, l.A)
			refused(l.A.VirtualQP, vqptest.ThroughJSON(t, card))
			if n := len(card.QPNums); m.NICs == 1 && n > 1 {
				// Its queue pairs in another order are still its own.
				card.QPNums[0], card.QPNums[n-1] = card.QPNums[n-1], card.QPNums[0]
				refused(l.A.VirtualQP, card)
			}

			// A bare card has no GIDs; the configuration has them.
			card = cardOf(t, l.A)
			for _, r := range card.Rails {
				cfg.Conn.PeerGIDs = append(cfg.Conn.PeerGIDs, r.GID)
			}
			bare, err := l.A.Domain().NewQP(nil, cfg)
			if err != nil {
				t.Fatal(err)
			}
			card = cardOf(t, bare)
			refused(bare, ibverbx.BusinessCard{QPNums: card.QPNums, NotifyQPNum: card.NotifyQPNum})
			if err := bare.Close(); err != nil {
				t.Error(err)
			}
		})
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
		card := cardOf(t, ends[1-i])
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

// A program may connect step by step: each Modify moves all rails and the notify QP, and the card
// supplies what differs between them.
func TestModifyStepByStep(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
			t.Fatal(err)
		}
		cardA, cardB := cardOf(t, l.A), cardOf(t, l.B)
		stepUp(t, l.A.VirtualQP, &cardB)
		stepUp(t, l.B.VirtualQP, &cardA)
		l.B.ExpectRecv(t, 1)
		vqptest.FillRandom(l.A.Buf[:5000], 1)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 5000))
		if wc := l.B.Wait(t, 1)[0]; wc.Imm != 2 || wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
		vqptest.MustEqual(t, "data", l.B.Buf[:5000], l.A.Buf[:5000])
		vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
	})
}

// stepUp takes a virtual queue pair through INIT, RTR and RTS, and checks at each step what is
// refused.
func stepUp(t *testing.T, q *ibverbx.VirtualQP, peer *ibverbx.BusinessCard) {
	t.Helper()
	for _, step := range []vqptest.Step{vqptest.ToInit, vqptest.ToRTR, vqptest.ToRTS} {
		before := q.State()
		var me *verbs.ModifyError
		without := step.Mask &^ (verbs.QPAttrPort | verbs.QPAttrPathMTU | verbs.QPAttrTimeout)
		if err := q.Modify(step.Attr, without, peer); !errors.As(err, &me) || me.Missing == 0 ||
			!strings.Contains(err.Error(), "rail 0") {
			t.Fatalf("to %v with an attribute missing: %v", step.Attr.State, err)
		}
		if q.State() != before {
			t.Fatalf("a refused change moved it from %v to %v", before, q.State())
		}
		if err := step.Take(q, peer); err != nil {
			t.Fatal(err)
		}
		if q.State() != step.Attr.State {
			t.Fatalf("in %v, want %v", q.State(), step.Attr.State)
		}
	}
}

// A program that gives no reason for the death of a device gets an error that it can print and test
// for.
func TestFailDeviceWithoutAReason(t *testing.T) {
	for _, qps := range []int{1, 2} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: qps}})
		l.A.CQ().FailDevice(0, nil)
		var failed *ibverbx.FailedError
		if err := l.A.Err(); !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(err, &failed) ||
			strings.Contains(err.Error(), "nil") || !strings.Contains(err.Error(), "check the NIC") ||
			failed.Device != "soft0" {
			t.Errorf("%v", err)
		}
	}
}
