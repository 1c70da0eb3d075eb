package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Sends of a previous connection do not concern a drain: in INIT it only flushes the receives.
func TestDrainInINITAfterAReset(t *testing.T) {
	l := newLink(t, linkConfig{})
	wr := l.a.write(verbs.OpRDMAWrite, 1, 0, 8)
	wr.Flags = 0 // it has no completion if it succeeds
	l.a.send(t, wr)
	if err := l.a.Reset(); err != nil {
		t.Fatal(err)
	}
	l.a.poll(t)
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	if err := l.a.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess,
		nil); err != nil {
		t.Fatal(err)
	}
	l.a.expectRecv(t, 7)
	if err := l.a.Drain(patience(t)); err != nil || l.a.Err() != nil {
		t.Fatal(err, l.a.Err())
	}
	only(t, l.a.poll(t), verbs.StatusWRFlushErr, 7)
}

// An end that only receives drains without an error after its peer was shut down, on its first
// connection and on the next.
func TestReceiverDrainsAfterItsPeer(t *testing.T) {
	for _, again := range []bool{false, true} {
		l := newLink(t, linkConfig{})
		if again {
			stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1, Device: l.a.nics[0]})
			l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 8))
			if err := l.a.Reset(); err != nil {
				t.Fatal(err)
			}
			stall.Remove()
			only(t, l.a.poll(t), verbs.StatusWRFlushErr, 1)
			if err := l.b.Reset(); err != nil {
				t.Fatal(err)
			}
			if err := l.reconnect(); err != nil {
				t.Fatal(err)
			}
		}
		l.a.expectRecv(t, 5)
		l.a.expectRecv(t, 6)
		l.b.send(t, l.b.write(verbs.OpRDMAWriteWithImm, 9, 0, 8))
		only(t, l.a.wait(t, 1), verbs.StatusSuccess, 5)
		if err := l.b.Shutdown(patience(t)); err != nil {
			t.Fatal(err)
		}
		if err := l.a.Drain(patience(t)); err != nil {
			t.Fatalf("reconnected %v: %v", again, err)
		}
		only(t, l.a.poll(t), verbs.StatusWRFlushErr, 6)
	}
}

// A queue pair that failed with its queue full of unsignaled requests can be drained and then
// reset.
func TestDrainedFullQueueCanBeReset(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{MaxMsgCntPerQP: 4}})
	l.a.expectRecv(t, 1)
	fillUnsignaled(t, l.a, l.a.VirtualQP)
	l.b.send(t, l.b.write(verbs.OpSend, 5, 0, 100)) // longer than the receive
	for l.a.Err() == nil {
		l.a.pump(t)
	}
	if err := l.a.Drain(patience(t)); err == nil {
		t.Error("nothing has failed")
	}
	if err := l.a.Reset(); err != nil {
		t.Error(err)
	}
}

// only checks that there is one completion, with this status and ID.
func only(t *testing.T, wcs []ibverbx.WC, status verbs.Status, id uint64) {
	t.Helper()
	if len(wcs) != 1 || wcs[0].ID != id || wcs[0].Status != status {
		t.Fatalf("%s, want %v of %d", fmtWCs(wcs), status.Name(), id)
	}
}
