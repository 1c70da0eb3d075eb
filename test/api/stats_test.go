package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The rings of both directions begin empty and small, and each doubling is counted.
func TestStatsOfTheRings(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	s := l.B.Stats()
	if s.RingsGrown != 0 || s.RecvWindow != 0 || s.SendWindow != 0 {
		t.Errorf("new: %+v", s)
	}
	small := s.RecvRing
	for id := range uint64(4 * small) {
		l.B.ExpectRecv(t, id)
	}
	if s = l.B.Stats(); s.RingsGrown != 2 || s.RecvRing != 4*small || s.RecvWindow != 4*small ||
		s.SendRing != small {
		t.Errorf("%d receives: grown %d times to %d slots, %d in use; %d slots for sends", 4*small,
			s.RingsGrown, s.RecvRing, s.RecvWindow, s.SendRing)
	}
}

// The physical queue pairs and CQs that Open and a Domain make are accessible.
func TestPhysicalQueuePairsAndCQs(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		rails, qps := l.A.Stats().Rails, l.A.QPs()
		if len(qps) != len(rails) {
			t.Fatalf("%d queue pairs of %d", len(qps), len(rails))
		}
		for i, qp := range qps {
			attr, err := qp.Query()
			if qp.Num() != rails[i].QPNum || qp.Device().Name() != rails[i].Device || err != nil ||
				attr.State != verbs.StateRTS {
				t.Errorf("queue pair %d: %d of %s in %v, %v; want %+v", i, qp.Num(), qp.Device().Name(),
					attr.State, err, rails[i])
			}
		}
		qps[0] = nil // the list is the caller's
		if l.A.QPs()[0] == nil {
			t.Error("QPs shares its list")
		}
		cqs, devs := l.A.CQ().CQs(), l.A.CQ().Devices()
		if len(cqs) != len(devs) || len(cqs) != len(l.A.NICs) {
			t.Fatalf("%d CQs of %d devices", len(cqs), len(devs))
		}
		for i := range cqs {
			if cqs[i].Device() != devs[i] {
				t.Errorf("CQ %d is of %s, device %d is %s", i, cqs[i].Device().Name(), i, devs[i].Name())
			}
		}
	})
}

// With ArmSolicited a single queue pair raises an event for a solicited message and none for
// another. Over several every message raises one: what a solicited message waits for may be
// unsolicited.
func TestArmSolicited(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		arrives := func(flags verbs.SendFlags) (event bool) {
			l.B.ExpectRecv(t, 1)
			l.B.Pump(t)
			for range len(l.B.CQ().Events()) {
				<-l.B.CQ().Events()
			}
			if err := l.B.CQ().ArmSolicited(); err != nil {
				t.Fatal(err)
			}
			wr := l.A.Write(verbs.OpRDMAWriteWithImm, 1, 0, 100)
			wr.Flags |= flags
			l.A.Send(t, wr)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			select {
			case <-l.B.CQ().Events():
				event = true
			default:
			}
			vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
			return event
		}
		if l.B.DataRails() == 1 && arrives(0) {
			t.Error("an event for an unsolicited message")
		}
		if l.B.DataRails() > 1 && l.B.Scheme() == ibverbx.DQPLB && !arrives(0) {
			t.Error("no event over several queue pairs")
		}
		if l.B.DataRails() == 1 && !arrives(verbs.SendSolicited) {
			t.Error("no event for a solicited message")
		}
	})
	l := vqptest.NewLink(t, vqptest.LinkConfig{Fabric: soft.Config{}})
	if err := l.A.CQ().Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.A.CQ().ArmSolicited(); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A snapshot is taken by the owner's next poll, and also wakes an owner that sleeps.
func TestSnapshotWhileTheOwnerSleeps(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 4096))
	l.A.Wait(t, 1)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	owner := make(chan error)
	go func() { owner <- l.A.CQ().Wait(ctx) }()
	for round := range 3 {
		before := time.Now()
		s, err := l.A.CQ().Snapshot(ctx)
		if err != nil || s.At.Before(before) || len(s.QPs) != 1 || s.QPs[0].Num != l.A.Num() ||
			s.QPs[0].Stats.SendsCompleted != 1 || s.CQ.VirtualQPs != 1 || s.QPs[0].Err != "" {
			t.Errorf("round %d: %+v, %v", round, s, err)
		}
	}
	stop()
	if err := <-owner; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Of a virtual CQ that nobody polls a snapshot is the latest one, with its age, and an error before
// there is any.
func TestSnapshotWhileNobodyPolls(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	ended, stop := context.WithCancel(t.Context())
	stop()
	if s, err := l.A.CQ().Snapshot(ended); !errors.Is(err, context.Canceled) || !s.At.IsZero() {
		t.Errorf("before any poll: %+v, %v", s, err)
	}
	l.A.Pump(t) // the request still stands
	first, err := l.A.CQ().Snapshot(ended)
	if err != nil || first.At.IsZero() {
		t.Fatal(first, err)
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
	second, err := l.A.CQ().Snapshot(ended)
	if err != nil || second.At != first.At || second.QPs[0].Stats.Sends != 0 {
		t.Errorf("nobody has polled since: %+v, %v", second, err)
	}
	l.A.Wait(t, 1)
	if third, err := l.A.CQ().Snapshot(ended); err != nil || third.QPs[0].Stats.Sends != 1 {
		t.Errorf("%+v, %v", third, err)
	}
}

// The sum of all counters does not fall when a virtual queue pair is reset or closed, and stays
// when the virtual CQ is closed.
func TestTotalsNeverFall(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, CQDepth: 4096, QP: ibverbx.Config{QPsPerDevice: 2,
		FragmentSize: 512}})
	other, peer := l.Another(t)
	wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 4096)
	total := func() ibverbx.Stats { return l.A.CQ().Total() }
	sent := uint64(0)
	check := func(when string) {
		t.Helper()
		s := total()
		bytes := uint64(0)
		for _, r := range s.Rails {
			bytes += r.Bytes
		}
		if len(s.Rails) != 2 || s.Sends != sent || bytes != 4096*sent {
			t.Errorf("%s: %d requests with %d bytes, want %d: %+v", when, s.Sends, bytes, sent, s)
		}
	}
	for _, q := range []*ibverbx.VirtualQP{l.A.VirtualQP, other} {
		if _, err := q.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		sent++
		l.A.Wait(t, 1)
	}
	check("both are open")
	if err := errors.Join(other.Reset(), peer.Reset()); err != nil {
		t.Fatal(err)
	}
	check("after a reset")
	if err := errors.Join(other.Close(), peer.Close()); err != nil {
		t.Fatal(err)
	}
	check("one is closed")
	if s := total(); s.SendRing != l.A.Stats().SendRing || s.Rails[0].Limit > 2*l.A.Stats().Rails[0].Limit*2 {
		t.Errorf("amounts of a closed queue pair remain: %+v", s)
	}
	l.Close()
	check("all is closed")
	s, err := l.A.CQ().Snapshot(t.Context())
	if err != nil || len(s.QPs) != 0 || s.Total().Sends != sent {
		t.Errorf("of a closed virtual CQ: %+v, %v", s, err)
	}
}
