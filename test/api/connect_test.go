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

// rawEnds are two virtual queue pairs of three physical ones each, which the test can ask.
func rawEnds(t *testing.T, dev soft.DeviceConfig, configs func(*soft.Fabric) [2]ibverbx.Config) (
	ends [2]*ibverbx.VirtualQP, qps [2][]verbs.QP) {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: 2, Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs last
		if err := fabric.Close(); err != nil {
			t.Errorf("leak: %v", err)
		}
	})
	cfgs := configs(fabric)
	for i := range ends {
		nic := fabric.Device(i)
		pd, err := nic.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := nic.CreateCQ(verbs.CQConfig{Depth: 4096})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			if err != nil {
				t.Fatal(err)
			}
			qps[i] = append(qps[i], qp)
		}
		vcq, err := ibverbx.NewVirtualCQ(cq)
		if err != nil {
			t.Fatal(err)
		}
		if ends[i], err = ibverbx.NewVirtualQP(vcq, qps[i][:2], qps[i][2], cfgs[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(vcq.Close(), pd.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	return ends, qps
}

// What Config.Conn says is what the queue pairs are connected with, and what it leaves out has the
// documented default.
func TestConnConfigReachesTheQueuePairs(t *testing.T) {
	const given = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	for _, c := range []struct {
		name      string
		dev       soft.DeviceConfig
		conn      ibverbx.ConnConfig
		peer      ibverbx.ConnConfig
		want      verbs.QPAttr // of the first end
		peerReads uint8        // that the peer serves
	}{
		{name: "defaults",
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: verbs.AccessAll, Timeout: 14, RetryCount: 6,
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
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: verbs.AccessAll, MaxRDAtomic: 16,
				MaxDestRDAtomic: 16}, peerReads: 16},
		{name: "the smaller path MTU and the fewer reads of the peer",
			peer: ibverbx.ConnConfig{MTU: verbs.MTU512, MaxRDAtomic: 2},
			want: verbs.QPAttr{PathMTU: verbs.MTU512, Access: verbs.AccessAll, Timeout: 14, RetryCount: 6,
				RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 2, MaxDestRDAtomic: 16}, peerReads: 2},
		{name: "a NIC that allows fewer reads", dev: soft.DeviceConfig{MaxRDAtomic: 3},
			want: verbs.QPAttr{PathMTU: verbs.MTU4096, Access: verbs.AccessAll, Timeout: 14, RetryCount: 6,
				RNRRetry: 7, MinRNRTimer: 12, MaxRDAtomic: 3, MaxDestRDAtomic: 3}, peerReads: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			ends, qps := rawEnds(t, c.dev, func(*soft.Fabric) [2]ibverbx.Config {
				return [2]ibverbx.Config{{Conn: c.conn}, {Conn: c.peer}}
			})
			vqptest.ConnectBoth(t, ends[0], ends[1])
			card, err := ends[0].Card()
			if err != nil {
				t.Fatal(err)
			}
			peer, err := ends[1].Card()
			if err != nil {
				t.Fatal(err)
			}
			if card.RDAtomic != c.want.MaxDestRDAtomic || peer.RDAtomic != c.peerReads {
				t.Errorf("cards say %d and %d reads", card.RDAtomic, peer.RDAtomic)
			}
			for i, qp := range qps[0] {
				got, err := qp.(*soft.QP).Query()
				if err != nil {
					t.Fatal(err)
				}
				want := c.want
				want.State, want.CurState, want.Port = verbs.StateRTS, verbs.StateRTS, 1
				want.DestQPNum, want.RQPSN, want.SQPSN = qps[1][i].Num(), peer.Rails[i].PSN, card.Rails[i].PSN
				want.AH.DGID, want.AH.Port, want.AH.Global = peer.Rails[i].GID, 1, true
				want.AH.HopLimit = 64
				if got != want {
					t.Errorf("queue pair %d\ngot  %+v\nwant %+v", i, got, want)
				}
			}
		})
	}
}

// The peer's GIDs may come from the configuration where its card has none. One is needed for each
// queue pair.
func TestPeerGIDs(t *testing.T) {
	for given := range 4 {
		ends, qps := rawEnds(t, soft.DeviceConfig{}, func(f *soft.Fabric) [2]ibverbx.Config {
			gid, err := f.Device(1).QueryGID(1, 0)
			if err != nil {
				t.Fatal(err)
			}
			return [2]ibverbx.Config{{Conn: ibverbx.ConnConfig{
				PeerGIDs: []verbs.GID{gid.GID, gid.GID, gid.GID}[:given]}}, {}}
		})
		card, err := ends[1].Card()
		if err != nil {
			t.Fatal(err)
		}
		card.Rails = nil
		err = ends[0].Connect(card)
		if given < 3 {
			if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "PeerGIDs") ||
				qps[0][0].State() != verbs.StateReset {
				t.Errorf("%d GIDs: %v", given, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d GIDs: %v", given, err)
		}
	}
}

// DQPLB's credits are posted when RTR is reached, and not before: from then on the peer may send.
func TestCreditsArePostedInRTR(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Credits: 5}})
	if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
		t.Fatal(err)
	}
	peer, err := l.B.Card()
	if err != nil {
		t.Fatal(err)
	}
	credits := func() string {
		r := l.A.Stats().Rails
		return fmt.Sprint(r[0].Recvs, r[1].Recvs, r[2].Recvs)
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}
	if err := l.A.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess,
		&peer); err != nil || credits() != "0 0 0" {
		t.Errorf("in INIT: %s, %v", credits(), err)
	}
	rtr := verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, MaxDestRDAtomic: 4, MinRNRTimer: 12,
		AH: verbs.AH{Global: true, Port: 1}}
	if err := l.A.Modify(rtr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer, &peer); err != nil ||
		credits() != "5 5 0" {
		t.Errorf("in RTR: %s, %v", credits(), err)
	}
	if err := l.A.Modify(rtr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer, &peer); err == nil ||
		credits() != "5 5 0" {
		t.Errorf("RTR twice: %s, %v", credits(), err)
	}
}

// A change of attributes alone leaves state, requests and receives as they are.
func TestModifyWithoutAState(t *testing.T) {
	ends, qps := rawEnds(t, soft.DeviceConfig{}, func(*soft.Fabric) [2]ibverbx.Config {
		return [2]ibverbx.Config{}
	})
	vqptest.ConnectBoth(t, ends[0], ends[1])
	before := ends[0].Stats().Rails[0].Recvs
	if err := ends[0].Modify(verbs.QPAttr{MinRNRTimer: 3}, verbs.QPAttrMinRNRTimer, nil); err != nil {
		t.Fatal(err)
	}
	for i, qp := range qps[0] {
		if attr, err := qp.(*soft.QP).Query(); err != nil || attr.MinRNRTimer != 3 {
			t.Errorf("queue pair %d: timer %d, %v", i, attr.MinRNRTimer, err)
		}
	}
	if ends[0].State() != verbs.StateRTS || ends[0].Stats().Rails[0].Recvs != before {
		t.Errorf("in %v, with %+v", ends[0].State(), ends[0].Stats().Rails)
	}
}

// A card without addresses is refused by the step that needs them, which changes nothing.
func TestModifyNeedsThePeersAddress(t *testing.T) {
	ends, qps := rawEnds(t, soft.DeviceConfig{}, func(*soft.Fabric) [2]ibverbx.Config {
		return [2]ibverbx.Config{}
	})
	peer, err := ends[1].Card()
	if err != nil {
		t.Fatal(err)
	}
	peer.Rails = nil
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}
	if err := ends[0].Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|
		verbs.QPAttrAccess, &peer); err != nil {
		t.Fatal(err)
	}
	rtr := verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, MaxDestRDAtomic: 4, MinRNRTimer: 12,
		AH: verbs.AH{Global: true, Port: 1}}
	if err := ends[0].Modify(rtr, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer, &peer); !errors.Is(err,
		verbs.ErrInvalid) || !strings.Contains(err.Error(), "PeerGIDs") {
		t.Errorf("%v", err)
	}
	peer.QPNums[0] = 1 << 24
	if err := ends[0].Modify(rtr, verbs.QPAttrState, &peer); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "16777216") {
		t.Errorf("an impossible card: %v", err)
	}
	if ends[0].State() != verbs.StateInit || qps[0][0].State() != verbs.StateInit {
		t.Errorf("in %v, its queue pair in %v", ends[0].State(), qps[0][0].State())
	}
	if err := ends[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := ends[1].Modify(init, verbs.QPAttrState, nil); !errors.Is(err, ibverbx.ErrClosed) {
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
		peer, err := l.B.Card()
		if err != nil {
			t.Fatal(err)
		}
		err = l.A.Connect(peer)
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

// A program may connect step by step: each Modify moves all rails and the notify QP, and the card
// supplies what differs between them.
func TestModifyStepByStep(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
				QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs,
					FragmentSize: 1000}})
			if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
				t.Fatal(err)
			}
			cards := map[*vqptest.End]ibverbx.BusinessCard{}
			for _, e := range []*vqptest.End{l.A, l.B} {
				card, err := e.Card()
				if err != nil {
					t.Fatal(err)
				}
				cards[e] = card
			}
			for _, e := range []*vqptest.End{l.A, l.B} {
				peer := cards[e.Other]
				stepUp(t, e.VirtualQP, &peer)
			}
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
}

// stepUp takes a virtual queue pair through INIT, RTR and RTS, and checks at each step what is
// refused.
func stepUp(t *testing.T, q *ibverbx.VirtualQP, peer *ibverbx.BusinessCard) {
	t.Helper()
	const (
		toInit = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		toRTR  = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum |
			verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
		toRTS = verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
			verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic
	)
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}, toInit},
		{verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, MaxDestRDAtomic: 4, MinRNRTimer: 12,
			AH: verbs.AH{Global: true, Port: 1}}, toRTR},
		{verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 4}, toRTS},
	} {
		before := q.State()
		var me *verbs.ModifyError
		if err := q.Modify(step.attr, step.mask&^(verbs.QPAttrPort|verbs.QPAttrPathMTU|verbs.QPAttrTimeout),
			peer); !errors.As(err, &me) || me.Missing == 0 || !strings.Contains(err.Error(), "rail 0") {
			t.Fatalf("to %v with an attribute missing: %v", step.attr.State, err)
		}
		if q.State() != before {
			t.Fatalf("a refused change moved it from %v to %v", before, q.State())
		}
		if err := q.Modify(step.attr, step.mask, peer); err != nil {
			t.Fatal(err)
		}
		if q.State() != step.attr.State {
			t.Fatalf("in %v, want %v", q.State(), step.attr.State)
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
