package api_test

import (
	"errors"
	"testing"

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
