package ibverbx_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A program may connect step by step: each Modify moves all rails and the notify QP, and the card
// supplies what differs between them.
func TestModifyStepByStep(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps,
				FragmentSize: 1000}})
			if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
				t.Fatal(err)
			}
			cards := map[*end]ibverbx.BusinessCard{}
			for _, e := range []*end{l.a, l.b} {
				card, err := e.Card()
				if err != nil {
					t.Fatal(err)
				}
				cards[e] = card
			}
			for _, e := range []*end{l.a, l.b} {
				peer := cards[e.other]
				stepUp(t, e.VirtualQP, &peer)
			}
			l.b.expectRecv(t, 1)
			fillRandom(l.a.buf[:5000], 1)
			l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, 5000))
			if wc := l.b.wait(t, 1)[0]; wc.Imm != 2 || wc.Status != 0 {
				t.Fatalf("%+v", wc)
			}
			mustEqual(t, "data", l.b.buf[:5000], l.a.buf[:5000])
			ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
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

// When the program moves it to ERR, a virtual queue pair flushes everything in order.
func TestModifyToErrFlushes(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}, fabric: soft.Config{Stepped: true}},
		func(t *testing.T, l *link) {
			for id := range uint64(4) {
				l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 4000))
			}
			if err := l.a.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState, nil); err != nil {
				t.Fatal(err)
			}
			for range 50 {
				l.fabric.Run(10)
				l.a.pump(t)
			}
			if got := ids(t, l.a.backlog, verbs.StatusWRFlushErr); len(got) != 4 || got[0] != 0 ||
				got[3] != 3 {
				t.Fatal(fmtWCs(l.a.backlog))
			}
			_, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 9, 0, 8))
			if !errors.Is(err, ibverbx.ErrFailed) {
				t.Errorf("post in ERR: %v", err)
			}
		})
}

// A program that polls the physical CQs itself reports that one has failed: the requests
// outstanding on it are flushed.
func TestFailDevice(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, cqDepth: 8192,
		qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}, fabric: soft.Config{Stepped: true}})
	for id := range uint64(4) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 4000))
	}
	l.a.cq.FailDevice(1, verbs.ErrOverrun)
	wcs := l.a.cq.ProcessCompletions(nil, 1)
	if got := ids(t, wcs, verbs.StatusWRFlushErr); len(got) != 4 || got[0] != 0 || got[3] != 3 {
		t.Fatal(fmtWCs(wcs))
	}
	if !errors.Is(l.a.Err(), verbs.ErrOverrun) {
		t.Errorf("Err: %v", l.a.Err())
	}
}

// A program that gives no reason for the death of a device gets an error that it can print and test
// for.
func TestFailDeviceWithoutAReason(t *testing.T) {
	for _, qps := range []int{1, 2} {
		l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: qps}})
		l.a.cq.FailDevice(0, nil)
		var failed *ibverbx.FailedError
		if err := l.a.Err(); !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(err, &failed) ||
			strings.Contains(err.Error(), "nil") || !strings.Contains(err.Error(), "check the NIC") ||
			failed.Device != "soft0" {
			t.Errorf("%v", err)
		}
	}
}
