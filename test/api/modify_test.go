package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

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
