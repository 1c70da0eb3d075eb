package api_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	m.Run()
}

// Stats count accepted requests, and no refused ones.
func TestSingleQPCountsWhatWasAccepted(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
	stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	defer stall.Remove()
	inline := ibverbx.SendWR{ID: 0, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: make([]byte, 7)}
	scattered := l.A.Write(verbs.OpRDMAWrite, 1, 0, 30)
	scattered.Local, scattered.SGL = ibverbx.Segment{},
		[]ibverbx.Segment{l.A.MR.Slice(0, 10), l.A.MR.Slice(100, 20)}
	wrs := []ibverbx.SendWR{inline, scattered}
	for id := uint64(2); id < 20; id++ {
		wrs = append(wrs, l.A.Write(verbs.OpRDMAWrite, id, 0, 100))
	}
	for len(wrs) > 16 { // some in one call
		n, err := l.A.PostSend(wrs[:min(3, len(wrs))]...)
		if wrs = wrs[n:]; err != nil {
			break
		}
	}
	if r := l.A.Stats().Rails[0]; r.Bytes != 7+30+200 || r.Fragments != 4 {
		t.Errorf("%d bytes in %d", r.Bytes, r.Fragments)
	}
}

// When its NIC is gone, a single queue pair fails with the first post, send or receive.
func TestSingleQPOnANICThatIsGone(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	l.A.ExpectRecv(t, 1)
	l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Err: verbs.ErrDeviceGone})
	_, err := l.A.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.A.MR.Slice(8, 16)})
	var fe *ibverbx.FailedError
	if !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(l.A.Err(), &fe) {
		t.Fatalf("%v; Err %v", err, l.A.Err())
	}
	if !errors.Is(fe, verbs.ErrDeviceGone) || !fe.Recv || !fe.HasID || fe.ID != 2 ||
		fe.Opcode != verbs.WCUnknown ||
		fe.LocalAddr != l.A.MR.Addr()+8 || fe.Length != 16 || fe.Rail != 0 {
		t.Errorf("%+v", fe)
	}
	if wc := l.A.Wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// A call may have more requests than are handed to the queue pair at a time.
func TestSingleQPTakesManyRequestsInOneCall(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 128, 200} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 256}, CQDepth: 4096})
		wrs, recvs := make([]ibverbx.SendWR, n), make([]ibverbx.RecvWR, n)
		want := make([]uint64, n)
		for i := range wrs {
			wrs[i] = l.A.Write(verbs.OpRDMAWriteWithImm, uint64(i), uint64(8*i), 8)
			recvs[i].ID, want[i] = uint64(i), uint64(i)
		}
		vqptest.FillRandom(l.A.Buf[:8*n], uint64(n))
		if got, err := l.B.PostRecv(recvs...); got != n || err != nil {
			t.Fatalf("%d of %d receives, %v", got, n, err)
		}
		if got, err := l.A.PostSend(wrs...); got != n || err != nil {
			t.Fatalf("%d of %d sends, %v", got, n, err)
		}
		for _, e := range []*vqptest.End{l.A, l.B} {
			if got := vqptest.IDs(t, e.Wait(t, n), verbs.StatusSuccess); !slices.Equal(got, want) {
				t.Errorf("%d requests: %v", n, got)
			}
		}
		vqptest.MustEqual(t, "data", l.B.Buf[:8*n], l.A.Buf[:8*n])
	}
}

// fillUnsignaled fills the send queue of a single queue pair with unsignaled writes.
func fillUnsignaled(t *testing.T, e *vqptest.End, q *ibverbx.VirtualQP) {
	t.Helper()
	for id := range uint64(q.Stats().Rails[0].Limit) {
		wr := e.Write(verbs.OpRDMAWrite, id, 0, 100)
		wr.Flags = 0
		if _, err := q.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
}

// When a NIC refuses Drain's own write permanently, nothing proves that the sends before it have
// ended. They are flushed, and Drain returns a failure.
func TestDrainWhoseWriteIsRefused(t *testing.T) {
	for _, how := range []string{"drain", "shutdown"} {
		t.Run(how, func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{})
			stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
			defer stall.Remove()
			fill(l.A, t, 3, 2)
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Err: verbs.ErrInvalid})
			end := l.A.Drain
			if how == "shutdown" {
				end = l.A.Shutdown
			}
			err := end(patience(t))
			var fe *ibverbx.FailedError
			if !errors.Is(err, verbs.ErrInvalid) || !errors.As(err, &fe) || fe.Rail != 0 || fe.HasID ||
				l.A.State() != verbs.StateErr {
				t.Errorf("%v; Err %v, %v", err, l.A.Err(), l.A.State())
			}
			flushed(t, l.A, 3, 2)
		})
	}
}

// A NIC that refuses Drain's own write for the moment, or the write and the receive behind which
// everything else was flushed, completes nothing that would wake Drain. It tries again by itself.
func TestDrainWhoseRequestsAreRefusedForNow(t *testing.T) {
	for _, c := range []soft.Fault{
		{Kind: soft.RefuseSend}, {Kind: soft.RefuseSend, Skip: 1}, {Kind: soft.RefuseRecv},
	} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{})
		wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)
		wr.Flags = 0 // so that nobody knows what is outstanding
		if _, err := l.A.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		fill(l.A, t, 0, 2)
		c.Device, c.Count = l.A.NICs[0], 20
		fault := l.Fabric.Inject(c)
		if err := l.A.Drain(patience(t)); err != nil || l.A.Err() != nil {
			t.Errorf("%+v: Drain: %v; Err: %v", c, err, l.A.Err())
		}
		if fault.Hits() != 20 {
			t.Errorf("%+v: %d times, want 20", c, fault.Hits())
		}
		flushed(t, l.A, 0, 2)
	}
}

// Drain also returns a failure when its own write fails, because the peer refuses it.
func TestDrainWhoseWriteFails(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Status: verbs.StatusRemAccessErr, Device: l.A.NICs[0],
		Match: func(wr *verbs.SendWR) bool { return wr.Bytes() == 0 }})
	stall := l.Fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: time.Millisecond})
	defer stall.Remove()
	wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)
	wr.Flags = 0
	if _, err := l.A.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	if err := l.A.Drain(patience(t)); !errors.Is(err, verbs.StatusRemAccessErr) {
		t.Errorf("Drain: %v", err)
	}
	if wcs := l.A.Poll(t); len(wcs) != 0 {
		t.Errorf("Drain's own request is reported: %s", vqptest.FormatWCs(wcs))
	}
}

// When a NIC refuses the requests that would confirm the flush, Drain does not return while the NIC
// may hold something. Completions that arrive soon are reported; then the queue pair is destroyed.
func TestDrainWhoseFlushCannotBeConfirmed(t *testing.T) {
	for _, stepped := range []bool{false, true} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{Fabric: soft.Config{Stepped: stepped}})
		if !stepped {
			stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
			defer stall.Remove()
		}
		sends := 3
		if stepped {
			sends = 0 // Drain needs no write of its own, and moves to ERR at once
		}
		fill(l.A, t, sends, 5-sends)
		for _, kind := range []soft.FaultKind{soft.RefuseSend, soft.RefuseRecv} {
			l.Fabric.Inject(soft.Fault{Kind: kind, Device: l.A.NICs[0], Err: verbs.ErrNotSupported,
				Count: -1})
		}
		if err := l.A.Drain(endedContext()); stepped && !errors.Is(err, context.Canceled) ||
			!errors.Is(err, verbs.ErrNotSupported) {
			t.Errorf("stepped %v: done at once: %v", stepped, err)
		}
		if err := l.A.Drain(patience(t)); !errors.Is(err, verbs.ErrNotSupported) ||
			errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stepped %v: Drain: %v", stepped, err)
		}
		wcs := l.A.Poll(t)
		if want := 5; !stepped && len(wcs) != want || stepped && len(wcs) != 0 {
			t.Errorf("stepped %v: %s", stepped, vqptest.FormatWCs(wcs))
		}
		l.Fabric.Run(1000)
		if wcs := l.A.Poll(t); len(wcs) != 0 {
			t.Errorf("stepped %v: the NIC still held %s", stepped, vqptest.FormatWCs(wcs))
		}
		if err := l.A.Reset(); err != nil {
			t.Errorf("stepped %v: Reset: %v", stepped, err)
		}
		if err := l.A.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// quickly fails the test unless something that prepare returns is done at once, and without an
// error. A library that waits in vain for a NIC does so for a second, each time; a busy machine is
// that slow once.
func quickly(t *testing.T, prepare func() (do func() error)) {
	t.Helper()
	var took time.Duration
	for range 5 {
		do := prepare()
		start := time.Now()
		if err := do(); err != nil {
			t.Error(err)
		}
		if took = time.Since(start); took < 500*time.Millisecond {
			return
		}
	}
	t.Errorf("took %v, and as long each time before", took)
}

// A NIC that does not answer is awaited for a second, the same one for all queue pairs of a CQ.
func TestSilentNICIsAwaitedOnce(t *testing.T) {
	t.Parallel() // most of the time it waits
	const queuePairs = 8
	l := vqptest.NewLink(t, vqptest.LinkConfig{CQDepth: 4096, Fabric: soft.Config{Stepped: true}})
	l.A.ExpectRecv(t, 1)
	for range queuePairs - 1 {
		q, err := l.A.Domain().NewQP(l.A.CQ(), l.A.Config())
		if err != nil {
			t.Fatal(err)
		}
		if err := vqptest.ToInit.Take(q, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if err := l.A.CQ().Close(); err != nil {
		t.Error(err)
	}
	// One after the other they would take a second each.
	if took := time.Since(start); took < 900*time.Millisecond || took > queuePairs*900*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// When a reset is the first thing that fails, Err returns its error.
func TestFailedResetSaysWhy(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		fill(l.A, t, 0, 4)
		l.A.NICs[len(l.A.NICs)-1].Kill()
		if err := l.A.Reset(); !errors.Is(err, verbs.ErrDeviceGone) {
			t.Fatal(err)
		}
		if err := l.A.Err(); !errors.Is(err, verbs.ErrDeviceGone) || errors.Is(err, verbs.StatusWRFlushErr) {
			t.Errorf("Err: %v", err)
		}
		var failed *ibverbx.FailedError
		if !errors.As(l.A.Err(), &failed) || failed.Device != l.A.NICs[len(l.A.NICs)-1].Name() {
			t.Errorf("Err does not name the NIC: %v", l.A.Err())
		}
		flushed(t, l.A, 0, 4)
	})
}

// A reset that fails does not hide what had failed before, even where that only says that something
// was flushed.
func TestFailedResetKeepsAnEarlierFailure(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{}, func(t *testing.T, l *vqptest.Link) {
		killQP(l.A, t, 1)
		for ctx := patience(t); l.A.Err() == nil && ctx.Err() == nil; {
			l.A.Pump(t)
		}
		l.A.NICs[0].Kill()
		if err := l.A.Reset(); !errors.Is(err, verbs.ErrDeviceGone) {
			t.Error(err)
		}
		if err := l.A.Err(); !errors.Is(err, verbs.StatusWRFlushErr) {
			t.Errorf("Err: %v, want the flush that came first", err)
		}
	})
}

// When every request has its completion, Drain posts nothing, and so the NIC refuses nothing.
func TestDrainWithNothingOutstandingPostsNothing(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
	vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
	for _, kind := range []soft.FaultKind{soft.RefuseSend, soft.RefuseRecv} {
		l.Fabric.Inject(soft.Fault{Kind: kind, Device: l.A.NICs[0], Err: verbs.ErrNotSupported, Count: -1})
	}
	if err := l.A.Drain(endedContext()); err != nil {
		t.Error(err)
	}
}
