package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Sends of a previous connection do not concern a drain: in INIT it only flushes the receives.
func TestDrainInINITAfterAReset(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)
	wr.Flags = 0 // it has no completion if it succeeds
	l.A.Send(t, wr)
	if err := l.A.Reset(); err != nil {
		t.Fatal(err)
	}
	l.A.Poll(t)
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	if err := l.A.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess,
		nil); err != nil {
		t.Fatal(err)
	}
	l.A.ExpectRecv(t, 7)
	if err := l.A.Drain(patience(t)); err != nil || l.A.Err() != nil {
		t.Fatal(err, l.A.Err())
	}
	only(t, l.A.Poll(t), verbs.StatusWRFlushErr, 7)
}

// An end that only receives drains without an error after its peer was shut down, on its first
// connection and on the next.
func TestReceiverDrainsAfterItsPeer(t *testing.T) {
	for _, again := range []bool{false, true} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{})
		if again {
			stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1, Device: l.A.NICs[0]})
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
			if err := l.A.Reset(); err != nil {
				t.Fatal(err)
			}
			stall.Remove()
			only(t, l.A.Poll(t), verbs.StatusWRFlushErr, 1)
			if err := l.B.Reset(); err != nil {
				t.Fatal(err)
			}
			if err := l.Reconnect(); err != nil {
				t.Fatal(err)
			}
		}
		l.A.ExpectRecv(t, 5)
		l.A.ExpectRecv(t, 6)
		l.B.Send(t, l.B.Write(verbs.OpRDMAWriteWithImm, 9, 0, 8))
		only(t, l.A.Wait(t, 1), verbs.StatusSuccess, 5)
		if err := l.B.Shutdown(patience(t)); err != nil {
			t.Fatal(err)
		}
		if err := l.A.Drain(patience(t)); err != nil {
			t.Fatalf("reconnected %v: %v", again, err)
		}
		only(t, l.A.Poll(t), verbs.StatusWRFlushErr, 6)
	}
}

// A queue pair that failed with its queue full of unsignaled requests can be drained and then
// reset.
func TestDrainedFullQueueCanBeReset(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
	l.A.ExpectRecv(t, 1)
	fillUnsignaled(t, l.A, l.A.VirtualQP)
	l.B.Send(t, l.B.Write(verbs.OpSend, 5, 0, 100)) // longer than the receive
	for l.A.Err() == nil {
		l.A.Pump(t)
	}
	if err := l.A.Drain(patience(t)); err == nil {
		t.Error("nothing has failed")
	}
	if err := l.A.Reset(); err != nil {
		t.Error(err)
	}
}

// only checks that there is one completion, with this status and ID.
func only(t *testing.T, wcs []ibverbx.WC, status verbs.Status, id uint64) {
	t.Helper()
	if len(wcs) != 1 || wcs[0].ID != id || wcs[0].Status != status {
		t.Fatalf("%s, want %v of %d", vqptest.FormatWCs(wcs), status.Name(), id)
	}
}
