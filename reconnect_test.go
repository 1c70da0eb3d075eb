package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// What became of an earlier life's sends is no reason to ask about them: in INIT a drain just
// flushes the receives.
func TestDrainInINITOfASecondLife(t *testing.T) {
	l := newLink(t, linkConfig{})
	wr := l.a.write(verbs.OpRDMAWrite, 1, 0, 8)
	wr.Flags = 0 // it never has a completion
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

// An end that only receives drains well after its peer has gone, in its second life as in its
// first.
func TestReceiverDrainsAfterItsPeer(t *testing.T) {
	for lives := range 2 {
		l := newLink(t, linkConfig{})
		if lives == 1 {
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
			t.Fatalf("life %d: %v", lives+1, err)
		}
		only(t, l.a.poll(t), verbs.StatusWRFlushErr, 6)
	}
}

// A queue pair that has failed with its queue full of unsignaled requests can be drained and then
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

// only checks that there is one completion, of a request and with a status.
func only(t *testing.T, wcs []ibverbx.WC, status verbs.Status, id uint64) {
	t.Helper()
	if len(wcs) != 1 || wcs[0].ID != id || wcs[0].Status != status {
		t.Fatalf("%s, want %v of %d", fmtWCs(wcs), status.Name(), id)
	}
}
