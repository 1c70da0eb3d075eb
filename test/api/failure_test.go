package api_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Once what a failure leaves has been reported, nothing is tried again: a program with its own wait
// need not poll every millisecond any more.
func TestNothingIsTriedAgainAfterAFailure(t *testing.T) {
	settled := func(t *testing.T, l *vqptest.Link) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 20000))
		l.A.Wait(t, 5)
		for deadline := time.Now().Add(3 * time.Second); l.A.CQ().Stats().Retrying != 0; l.A.Pump(t) {
			if time.Now().After(deadline) {
				t.Fatal("it is tried again and again")
			}
		}
	}
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			fill(l.A, t, 0, 4)
			l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0]})
			settled(t, l)
		})
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			fill(l.A, t, 0, 4)
			l.Fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: l.A.NICs[0]})
			settled(t, l)
		})
}

// Every post that is refused after a failure wraps the failure, for errors.Is and errors.As.
func TestRefusalAfterAFailureNamesTheCause(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Kind: soft.FailSend, Status: verbs.StatusRemOpErr})
		for id := range uint64(8) {
			_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, id, 0, 10)) // refused once it has failed
		}
		for l.A.Err() == nil {
			l.A.Pump(t)
		}
		var fe *ibverbx.FailedError
		_, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 9, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) || !errors.Is(err, verbs.StatusRemOpErr) ||
			!errors.As(err, &fe) {
			t.Error(err)
		}
		if l.A.DataRails() == 1 {
			if wc := l.A.Wait(t, 1)[0]; wc.Opcode != verbs.WCUnknown {
				t.Errorf("a failed completion of a single queue pair claims to be of %v", wc.Opcode)
			}
		}
	})
}
