package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// endedContext is a context that has ended.
func endedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// patience is a context that outlasts everything that a test waits for.
func patience(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

// directions returns the statuses of sends and of receives, which have IDs from 1000 on. Each
// direction must be in order, without a gap.
func directions(tb testing.TB, wcs []ibverbx.WC) (sends, recvs []verbs.Status) {
	tb.Helper()
	for _, wc := range wcs {
		list, id := &sends, wc.ID
		if id >= 1000 {
			list, id = &recvs, id-1000
		}
		if id != uint64(len(*list)) {
			tb.Fatalf("id %d is not the next: %s", wc.ID, vqptest.FormatWCs(wcs))
		}
		*list = append(*list, wc.Status)
	}
	return sends, recvs
}

func repeated(s verbs.Status, n int) []verbs.Status { return slices.Repeat([]verbs.Status{s}, n) }

// fill posts sends with IDs from 0 on, and receives with IDs from 1000 on that no message matches.
func fill(e *vqptest.End, tb testing.TB, sends, recvs int) {
	tb.Helper()
	for id := range uint64(sends) {
		op := verbs.OpRDMAWrite
		if id%3 == 0 {
			op = verbs.OpRDMAWriteWithImm
			e.Other.ExpectRecv(tb, 1000+id/3)
		}
		e.Send(tb, e.Write(op, id, id*5000, 5000))
	}
	for id := range uint64(recvs) {
		wr := ibverbx.RecvWR{ID: 1000 + id}
		if id%2 == 0 {
			wr.Local = e.MR.Slice(id*8, 8)
		}
		if _, err := e.PostRecv(wr); err != nil {
			tb.Fatal(err)
		}
	}
}

// A Drain whose context ends says how much is left: over one queue pair as an upper bound, which is
// the requests that have no completion yet, and at most what the queues hold; and why nothing goes
// on, if something has failed.
func TestInterruptedDrainSaysWhatIsLeft(t *testing.T) {
	interrupted := func(e *vqptest.End, want ...string) {
		t.Helper()
		err := e.Drain(endedContext())
		for _, want := range want {
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
	}
	single := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
	for range 10 { // three of four have no completion, and stay on the count
		for id := range uint64(4) {
			wr := single.A.Write(verbs.OpRDMAWrite, id, 0, 8)
			if id < 3 {
				wr.Flags = 0
			}
			if _, err := single.A.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		single.A.Wait(t, 1)
	}
	r := single.A.Stats().Rails[0]
	stall := single.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	single.A.Send(t, single.A.Write(verbs.OpRDMAWrite, 5, 0, 8))
	interrupted(single.A, fmt.Sprintf("at most %d sends and receives are still outstanding",
		r.Limit+r.RecvLimit))
	stall.Remove()

	single = vqptest.NewLink(t, vqptest.LinkConfig{})
	single.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	fill(single.A, t, 2, 1)
	interrupted(single.A, "at most 3 sends and receives are still outstanding")

	l := vqptest.SteppedLink(t, 2, ibverbx.Config{FragmentSize: 1000, Linger: time.Hour})
	fill(l.A, t, 2, 3)
	interrupted(l.A, "sends still outstanding: 2, which the peer's NIC has not answered")
	l = vqptest.SteppedLink(t, 2, ibverbx.Config{})
	fill(l.A, t, 0, 3)
	interrupted(l.A, "no send is outstanding, 3 receives are still to be flushed")
}

// Drain retries posts after transient refusals, also where no completion would wake it.
func TestDrainProgressesPastRefusals(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		sends := 4
		if l.A.DataRails() == 1 {
			l.Fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 3 * time.Millisecond, Device: l.A.NICs[0],
				Skip: 2, Count: 2})
			fill(l.A, t, sends, 3) // pass-through posts are refused at once
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Count: 5})
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: 5})
		} else {
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Count: 7})
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: 7})
			fill(l.A, t, sends, 3)
		}
		if err := l.A.Drain(patience(t)); err != nil {
			t.Fatal(err)
		}
		got, recvs := directions(t, l.A.Poll(t))
		if !slices.Equal(got, repeated(verbs.StatusSuccess, sends)) ||
			!slices.Equal(recvs, repeated(verbs.StatusWRFlushErr, 3)) {
			t.Errorf("sends %v, receives %v", got, recvs)
		}
	})
}

// Nothing is posted on queue pairs in ERR, since a NIC may refuse that permanently. Waiting
// requests are flushed.
func TestDrainPostsNothingBehindTheFlush(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 2,
		Credits: 4}},
		func(t *testing.T, l *vqptest.Link) {
			fill(l.A, t, 2, 12)
			refusal := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Count: -1, Err: verbs.ErrState,
				Device: l.A.NICs[0]})
			if err := l.A.Drain(patience(t)); err != nil || refusal.Hits() != 0 {
				t.Fatal(err, refusal.Hits())
			}
			_, recvs := directions(t, l.A.Poll(t))
			if !slices.Equal(recvs, repeated(verbs.StatusWRFlushErr, 12)) {
				t.Errorf("receives %v", recvs)
			}
		})
}

// Before RTS there are no sends to wait for.
func TestDrainOutsideOfRTS(t *testing.T) {
	for _, qps := range []int{1, 3} {
		q := vqptest.OpenSoft(t, ibverbx.Config{QPsPerDevice: qps})
		if err := q.Drain(endedContext()); err != nil || q.State() != verbs.StateReset {
			t.Errorf("in RESET: %v, %v", err, q.State())
		}
		if err := vqptest.ToInit.Take(q, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostRecv(ibverbx.RecvWR{ID: 1}, ibverbx.RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		if err := q.Drain(patience(t)); err != nil || q.State() != verbs.StateErr || q.Err() != nil {
			t.Errorf("in INIT: %v, %v", err, q.State())
		}
		wcs := make([]ibverbx.WC, 4)
		if n, err := q.CQ().Poll(wcs); n != 2 || err != nil || wcs[0].ID != 1 ||
			wcs[1].Status != verbs.StatusWRFlushErr {
			t.Errorf("%s, %v", vqptest.FormatWCs(wcs[:n]), err)
		}
		card := cardOf(t, q)
		if err := q.Connect(card); !errors.Is(err, verbs.ErrState) || !strings.Contains(err.Error(), "ERR") ||
			!strings.Contains(err.Error(), "reset it first") {
			t.Errorf("connecting: %v", err)
		}
		if err := q.Shutdown(patience(t)); err != nil {
			t.Error(err)
		}
		if err := q.Drain(patience(t)); !errors.Is(err, ibverbx.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		if err := q.Shutdown(patience(t)); !errors.Is(err, ibverbx.ErrClosed) ||
			strings.Count(err.Error(), "closed") != 1 {
			t.Errorf("closed: %v", err)
		}
	}
}

// A CQ that fails while Drain waits ends the drain, with the cause.
func TestDrainOnAFailedCQ(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
		defer stall.Remove()
		fill(l.A, t, 4, 2)
		if err := l.A.Drain(endedContext()); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		l.A.CQ().FailDevice(l.A.NICs[0].ID(), verbs.ErrOverrun)
		err := l.A.Drain(patience(t))
		var fe *ibverbx.FailedError
		if !errors.Is(err, verbs.ErrOverrun) || !errors.As(err, &fe) || fe.Rail != -1 ||
			fe.Device != l.A.NICs[0].Name() || !strings.Contains(err.Error(), "make the CQ deeper") {
			t.Fatalf("Drain: %v", err)
		}
		if l.A.DataRails() > 1 {
			if sends, recvs := directions(t, l.A.Poll(t)); len(sends) != 4 || len(recvs) != 2 {
				t.Errorf("sends %v, receives %v", sends, recvs)
			}
		}
	})
}

// Without a completion channel Drain polls. It waits for the last unsignaled request, which has no
// completion, and does not report its own request.
func TestDrainOfUnsignaledRequestsWithoutAChannel(t *testing.T) {
	for _, qps := range []int{1, 3} {
		t.Run(fmt.Sprint(qps, " queue pairs"), func(t *testing.T) {
			fabric := vqptest.NewFabric(t, soft.Config{})
			c := vqptest.PhysicalConfig{Data: qps, QP: ibverbx.Config{NoNotifyQP: true}}
			a := vqptest.NewPhysical(t, fabric.Device(0), c)
			b := vqptest.NewPhysical(t, fabric.Device(0), c)
			vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
			delay := fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 3 * time.Millisecond, Skip: 2,
				Count: 3})
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite}
			wr.Local, _ = a.Memory(t, 100)
			_, wr.Remote = b.Memory(t, 100)
			depth, reported := a.Config().MaxMsgCntPerQP-1, 0 // the last slot is for Drain's own request
			if qps > 1 {
				wr.Flags, depth, reported = verbs.SendSignaled, 49, 49
			}
			for wr.ID = range uint64(depth) {
				if _, err := a.PostSend(wr); err != nil {
					t.Fatal(wr.ID, err)
				}
			}
			if err := a.Drain(patience(t)); err != nil {
				t.Fatal(err)
			}
			if delay.Hits() == 0 {
				t.Error("nothing was delayed")
			}
			wcs := make([]ibverbx.WC, depth+10)
			if n, err := a.CQ().Poll(wcs); err != nil || n != reported {
				t.Errorf("%s, %v", vqptest.FormatWCs(wcs[:n]), err)
			}
			if n, err := b.CQ().Poll(wcs); err != nil || n != 0 || b.Err() != nil {
				t.Errorf("the peer: %s, %v, %v", vqptest.FormatWCs(wcs[:n]), err, b.Err())
			}
		})
	}
}

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
	if err := vqptest.ToInit.Take(l.A.VirtualQP, nil); err != nil {
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
