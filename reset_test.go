package ibverbx_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A reset completes everything that is outstanding, also on a single queue pair.
func TestResetEndsWhatIsOutstanding(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for id := range uint64(5) {
			if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: id, Local: l.b.mr.Slice(id*100, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.b.Reset(); err != nil {
			t.Fatal(err)
		}
		wcs := l.b.poll(t)
		if len(wcs) != 5 {
			t.Fatalf("%d of 5 receives completed", len(wcs))
		}
		for i, wc := range wcs {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusWRFlushErr {
				t.Fatal(fmtWCs(wcs))
			}
		}
		if err := l.a.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := l.reconnect(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 9, Local: l.b.mr.Slice(0, 100)}); err != nil {
			t.Fatal(err)
		}
		l.a.send(t, ibverbx.SendWR{ID: 8, Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 100)})
		if wc := l.b.wait(t, 1)[0]; wc.ID != 9 || wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
	})
}

// The queue pairs of a NIC that is gone cannot be reset: everything completes, the error names the
// rail, and Close works.
func TestResetWithANICGone(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000},
		fabric: soft.Config{Stepped: true}})
	const total = 8
	for id := range uint64(total) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 3000))
	}
	l.fabric.Run(20)
	l.a.nics[1].Kill()
	err := l.a.Reset()
	if !errors.Is(err, verbs.ErrDeviceGone) || !strings.Contains(err.Error(), "soft1") {
		t.Fatalf("reset: %v", err)
	}
	if wcs := l.a.poll(t); len(wcs) != total {
		t.Fatalf("%d of %d sends completed", len(wcs), total)
	}
	var failed *ibverbx.FailedError
	if err := l.a.Err(); !errors.As(err, &failed) || failed.Rail != 1 ||
		!errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("%v: want the first rail that could not be reset, 1", err)
	}
	if _, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 1, 0, 8)); !errors.Is(err, ibverbx.ErrFailed) {
		t.Errorf("post: %v", err)
	}
	if err := l.a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestResetAndReconnect(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}}, func(t *testing.T, l *link) {
		for round := range 4 {
			fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Skip: 3, Kind: soft.FailSend,
				Status: verbs.StatusRemOpErr})
			for id := range uint64(5) {
				l.b.expectRecv(t, id)
				l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 20000))
			}
			for l.a.Err() == nil {
				l.a.pump(t)
			}
			fault.Remove()
			if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
				t.Fatal(err)
			}
			if got := l.a.wait(t, 5); got[4].ID != 4 || got[4].Status != verbs.StatusWRFlushErr {
				t.Fatal(fmtWCs(got))
			}
			l.b.wait(t, 5)
			if l.a.Err() != nil || l.a.State() != verbs.StateReset {
				t.Fatal(l.a.Err(), l.a.State())
			}
			l.connect(nil)
			fillRandom(l.a.buf[:50000], uint64(round))
			l.b.expectRecv(t, 77)
			l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 78, 0, 50000))
			if wc := l.b.wait(t, 1)[0]; wc.ID != 77 || wc.Imm != 78 {
				t.Fatalf("%+v", wc)
			}
			ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
			if !bytes.Equal(l.a.buf[:50000], l.b.buf[:50000]) {
				t.Fatal("wrong content after the reset")
			}
		}
	})
}

// Receives that were flushed ahead of a send of the same queue pair are withheld, since the send
// may tell the cause. A reset reports them, and the send, whatever it was waiting for.
func TestResetReportsWithheldReceives(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, Scheme: scheme},
			fabric: soft.Config{Stepped: true}})
		l.a.expectRecv(t, 9)
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 8)) // on rail 0
		flushed := verbs.WC{ID: 5 << 60, Status: verbs.StatusWRFlushErr, QPNum: l.a.railQP[0]}
		if got := l.a.cq.ProcessCompletions(nil, 0, flushed); len(got) != 0 || l.a.Err() != nil {
			t.Fatalf("%v: before the send has ended: %s, %v", scheme, fmtWCs(got), l.a.Err())
		}
		if err := l.a.Reset(); err != nil {
			t.Fatal(err)
		}
		got := l.a.poll(t)
		slices.SortFunc(got, func(x, y ibverbx.WC) int { return int(x.ID) - int(y.ID) })
		if list := ids(t, got, verbs.StatusWRFlushErr); !slices.Equal(list, []uint64{1, 9}) {
			t.Errorf("%v: reported %v", scheme, list)
		}
	}
}

// What a queue pair has not posted yet when it is closed or reset is flushed, and not offered to
// the NIC, which may refuse it for good in that state: that would look like a failure.
func TestNothingIsPostedWhileItEnds(t *testing.T) {
	for _, how := range []string{"close", "reset"} {
		l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, MaxMsgCntPerQP: 1}})
		stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
		defer stall.Remove()
		for id := range uint64(6) {
			l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 8))
		}
		refuse := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0],
			Err: verbs.ErrInvalid, Count: -1})
		defer refuse.Remove()
		end := l.a.Close
		if how == "reset" {
			end = l.a.Reset
		}
		if err := end(); err != nil || l.a.Err() != nil || refuse.Hits() != 0 {
			t.Errorf("%s: %v; Err %v; %d posts were tried", how, err, l.a.Err(), refuse.Hits())
		}
		if how == "close" {
			l.a.pollClosed(t)
		} else {
			l.a.pump(t)
		}
		if list := ids(t, l.a.backlog, verbs.StatusWRFlushErr); !slices.Equal(list,
			[]uint64{0, 1, 2, 3, 4, 5}) {
			t.Errorf("%s: reported %v", how, list)
		}
	}
}

// After a reset nothing is outstanding: Drain has nothing to wait for, not even on a single queue
// pair that had unsignaled sends and receives.
func TestDrainAfterAResetIsDoneAtOnce(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
		for id := range uint64(3) {
			l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 100))
			l.a.expectRecv(t, id)
		}
		if err := l.a.Reset(); err != nil {
			t.Fatal(err)
		}
		stall.Remove()
		if err := l.b.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := l.reconnect(); err != nil {
			t.Fatal(err)
		}
		if got := l.a.poll(t); len(got) != 6 {
			t.Errorf("reported: %s", fmtWCs(got))
		}
		if err := l.a.Drain(endedContext()); err != nil {
			t.Errorf("%v; %+v", err, l.a.Stats())
		}
	})
}
