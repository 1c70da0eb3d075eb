package api_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A reset completes everything that is outstanding, also on a single queue pair.
func TestResetEndsWhatIsOutstanding(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for id := range uint64(5) {
			if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: id, Local: l.B.MR.Slice(id*100, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.B.Reset(); err != nil {
			t.Fatal(err)
		}
		wcs := l.B.Poll(t)
		if len(wcs) != 5 {
			t.Fatalf("%d of 5 receives completed", len(wcs))
		}
		for i, wc := range wcs {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusWRFlushErr {
				t.Fatal(vqptest.FormatWCs(wcs))
			}
		}
		if err := l.A.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := l.Reconnect(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 9, Local: l.B.MR.Slice(0, 100)}); err != nil {
			t.Fatal(err)
		}
		l.A.Send(t, ibverbx.SendWR{ID: 8, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 100)})
		if wc := l.B.Wait(t, 1)[0]; wc.ID != 9 || wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
	})
}

// The queue pairs of a NIC that is gone cannot be reset: everything completes, the error names the
// rail, and Close works.
func TestResetWithANICGone(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2,
		FragmentSize: 1000},
		Fabric: soft.Config{Stepped: true}})
	const total = 8
	for id := range uint64(total) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 3000))
	}
	l.Fabric.Run(20)
	l.A.NICs[1].Kill()
	err := l.A.Reset()
	if !errors.Is(err, verbs.ErrDeviceGone) || !strings.Contains(err.Error(), "soft1") {
		t.Fatalf("reset: %v", err)
	}
	if wcs := l.A.Poll(t); len(wcs) != total {
		t.Fatalf("%d of %d sends completed", len(wcs), total)
	}
	var failed *ibverbx.FailedError
	if err := l.A.Err(); !errors.As(err, &failed) || failed.Rail != 1 ||
		!errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("%v: want the first rail that could not be reset, 1", err)
	}
	if _, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)); !errors.Is(err, ibverbx.ErrFailed) {
		t.Errorf("post: %v", err)
	}
	if err := l.A.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestResetAndReconnect(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			for round := range 4 {
				fault := l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Skip: 3, Kind: soft.FailSend,
					Status: verbs.StatusRemOpErr})
				for id := range uint64(5) {
					l.B.ExpectRecv(t, id)
					l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 20000))
				}
				for l.A.Err() == nil {
					l.A.Pump(t)
				}
				fault.Remove()
				if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
					t.Fatal(err)
				}
				if got := l.A.Wait(t, 5); got[4].ID != 4 || got[4].Status != verbs.StatusWRFlushErr {
					t.Fatal(vqptest.FormatWCs(got))
				}
				l.B.Wait(t, 5)
				if l.A.Err() != nil || l.A.State() != verbs.StateReset {
					t.Fatal(l.A.Err(), l.A.State())
				}
				l.Connect(nil)
				vqptest.FillRandom(l.A.Buf[:50000], uint64(round))
				l.B.ExpectRecv(t, 77)
				l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 78, 0, 50000))
				if wc := l.B.Wait(t, 1)[0]; wc.ID != 77 || wc.Imm != 78 {
					t.Fatalf("%+v", wc)
				}
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
				if !bytes.Equal(l.A.Buf[:50000], l.B.Buf[:50000]) {
					t.Fatal("wrong content after the reset")
				}
			}
		})
}

// Receives that were flushed ahead of a send of the same queue pair are withheld, since the send
// may tell the cause. A reset reports them, and the send, whatever it was waiting for.
func TestResetReportsWithheldReceives(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Scheme: scheme},
			Fabric: soft.Config{Stepped: true}})
		l.A.ExpectRecv(t, 9)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)) // on rail 0
		flushed := verbs.WC{ID: 5 << 60, Status: verbs.StatusWRFlushErr, QPNum: l.A.RailQPs[0]}
		if got := l.A.CQ().ProcessCompletions(nil, 0, flushed); len(got) != 0 || l.A.Err() != nil {
			t.Fatalf("%v: before the send has ended: %s, %v", scheme, vqptest.FormatWCs(got), l.A.Err())
		}
		if err := l.A.Reset(); err != nil {
			t.Fatal(err)
		}
		got := l.A.Poll(t)
		slices.SortFunc(got, func(x, y ibverbx.WC) int { return int(x.ID) - int(y.ID) })
		if list := vqptest.IDs(t, got, verbs.StatusWRFlushErr); !slices.Equal(list, []uint64{1, 9}) {
			t.Errorf("%v: reported %v", scheme, list)
		}
	}
}

// What a queue pair has not posted yet when it is closed or reset is flushed, and not offered to
// the NIC, which may refuse it for good in that state: that would look like a failure.
func TestNothingIsPostedWhileItEnds(t *testing.T) {
	for _, how := range []string{"close", "reset"} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, MaxMsgCntPerQP: 1}})
		stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
		defer stall.Remove()
		for id := range uint64(6) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 8))
		}
		refuse := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0],
			Err: verbs.ErrInvalid, Count: -1})
		defer refuse.Remove()
		end := l.A.Close
		if how == "reset" {
			end = l.A.Reset
		}
		if err := end(); err != nil || l.A.Err() != nil || refuse.Hits() != 0 {
			t.Errorf("%s: %v; Err %v; %d posts were tried", how, err, l.A.Err(), refuse.Hits())
		}
		if how == "close" {
			pollClosed(l.A, t)
		} else {
			l.A.Pump(t)
		}
		if list := vqptest.IDs(t, l.A.Backlog, verbs.StatusWRFlushErr); !slices.Equal(list,
			[]uint64{0, 1, 2, 3, 4, 5}) {
			t.Errorf("%s: reported %v", how, list)
		}
	}
}

// After a reset nothing is outstanding: Drain has nothing to wait for, not even on a single queue
// pair that had unsignaled sends and receives.
func TestDrainAfterAResetIsDoneAtOnce(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
		for id := range uint64(3) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 100))
			l.A.ExpectRecv(t, id)
		}
		if err := l.A.Reset(); err != nil {
			t.Fatal(err)
		}
		stall.Remove()
		if err := l.B.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := l.Reconnect(); err != nil {
			t.Fatal(err)
		}
		if got := l.A.Poll(t); len(got) != 6 {
			t.Errorf("reported: %s", vqptest.FormatWCs(got))
		}
		if err := l.A.Drain(endedContext()); err != nil {
			t.Errorf("%v; %+v", err, l.A.Stats())
		}
	})
}
