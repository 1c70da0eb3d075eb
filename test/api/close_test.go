package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// pollClosed returns the completions that a closed virtual CQ still holds.
func pollClosed(e *vqptest.End, tb testing.TB) []ibverbx.WC {
	tb.Helper()
	if err := pollRest(e); !errors.Is(err, ibverbx.ErrClosed) {
		tb.Fatalf("a closed CQ with nothing left: %v", err)
	}
	return e.Backlog
}

// pollRest adds to the backlog what a virtual CQ holds now, and returns its error.
func pollRest(e *vqptest.End) error {
	for wc, err := range e.CQ().Completions() {
		if err != nil {
			return err
		}
		e.Backlog = append(e.Backlog, wc)
	}
	return nil
}

// endings are the ways to end a virtual queue pair at once, whatever is outstanding.
var endings = map[string]func(e *vqptest.End) error{
	"reset":        func(e *vqptest.End) error { return e.Reset() },
	"close":        func(e *vqptest.End) error { return e.Close() },
	"close the cq": func(e *vqptest.End) error { return e.CQ().Close() },
	"shutdown": func(e *vqptest.End) error {
		err := e.Shutdown(endedContext()) // its error is the context's, and no other
		if !errors.Is(err, context.Canceled) || errors.Is(err, ibverbx.ErrClosed) {
			return fmt.Errorf("shutdown: %w", err)
		}
		return nil
	},
}

// flushed checks that so many sends and receives are reported, each once, and that all were
// flushed.
func flushed(t *testing.T, e *vqptest.End, sends, recvs int) {
	t.Helper()
	_ = pollRest(e) // the CQ may be closed
	gotSends, gotRecvs := directions(t, e.Backlog)
	if !slices.Equal(gotSends, repeated(verbs.StatusWRFlushErr, sends)) ||
		!slices.Equal(gotRecvs, repeated(verbs.StatusWRFlushErr, recvs)) {
		t.Errorf("sends %v, receives %v", gotSends, gotRecvs)
	}
}

// Whatever ends a virtual queue pair flushes each request once, and that is no failure, in Err or
// in Stats; a drain that was cut short before changes nothing, and its own requests are not
// reported.
// The NIC is stalled for good, so an ending that waited for it would never return.
func TestEndingsFlushWhatIsOutstanding(t *testing.T) {
	for how, end := range endings {
		for _, drains := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, drains %v", how, drains), func(t *testing.T) {
				vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
					defer l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1}).Remove()
					fill(l.A, t, 7, 3)
					if drains {
						if err := l.A.Drain(endedContext()); !errors.Is(err, context.Canceled) ||
							l.A.State() != verbs.StateSQD {
							t.Fatalf("%v, %v", err, l.A.State())
						}
					}
					if err := end(l.A); err != nil {
						t.Error(err)
					}
					if how == "shutdown" {
						if err := l.A.Close(); !errors.Is(err, ibverbx.ErrClosed) {
							t.Errorf("it is not closed: %v", err)
						}
					}
					if err := l.A.Err(); err != nil {
						t.Error(err)
					}
					for i, r := range l.A.Stats().Rails {
						if r.Errors != 0 || r.Refused != 0 {
							t.Errorf("rail %d: %+v", i, r)
						}
					}
					flushed(t, l.A, 7, 3)
					if err := l.A.MR.Close(); err != nil {
						t.Errorf("a region is still held: %v", err)
					}
				})
			})
		}
	}
}

// A queue full of unsignaled requests frees no slot in ERR, so no request can confirm its flush.
// The wait is short nevertheless, and no longer for several queue pairs.
func TestEndingAFullQueueIsQuick(t *testing.T) {
	for how, end := range endings {
		t.Run(how, func(t *testing.T) {
			quickly(t, func() func() error {
				l := vqptest.NewLink(t, vqptest.LinkConfig{CQDepth: 4096,
					QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
				fillUnsignaled(t, l.A, l.A.VirtualQP)
				for i := 0; how == "close the cq" && i < 80; i++ {
					a, _ := l.Another(t)
					fillUnsignaled(t, l.A, a)
				}
				return func() error { return end(l.A) }
			})
		})
	}
}

// executing returns a channel that is closed when the next request begins to execute. The data of a
// long request is being copied at that moment.
func executing(fabric *soft.Fabric) <-chan struct{} {
	begun := make(chan struct{})
	var once sync.Once
	fabric.Inject(soft.Fault{Kind: soft.Delay, Match: func(*verbs.SendWR) bool {
		once.Do(func() { close(begun) })
		return false // only observes
	}})
	return begun
}

// The outstanding requests of a single queue pair cannot be counted when requests are unsignaled,
// or when the queue pair signals all of them. Close still waits for all that can complete, and not
// where nothing can.
func TestCloseOfASingleQPWithUnsignaledRequests(t *testing.T) {
	const size = 4 << 20
	for _, all := range []bool{false, true} {
		fabric := vqptest.NewFabric(t, soft.Config{})
		a := vqptest.NewPhysical(t, fabric.Device(0), vqptest.PhysicalConfig{SignalAll: all})
		b := vqptest.NewPhysical(t, fabric.Device(0), vqptest.PhysicalConfig{SignalAll: all})
		vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
		local, _ := a.Memory(t, size)
		_, remote := b.Memory(t, size)
		post := func(id, n uint64, flags verbs.SendFlags) {
			wr := ibverbx.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: flags, Local: local,
				Remote: remote}
			wr.Local.Length, wr.Remote.Length = n, n
			if _, err := a.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		for id := range uint64(10) {
			post(id, 8, 0)
		}
		wcs := make([]ibverbx.WC, 64)
		n, _ := a.CQ().Poll(wcs)
		if all != (n == 10) {
			t.Fatalf("%d completions of unsignaled requests, all signaled %v", n, all)
		}
		copying := executing(fabric)
		fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: time.Hour,
			Match: func(wr *verbs.SendWR) bool { return wr.ID == 101 }})
		post(100, size, verbs.SendSignaled)
		post(101, 8, 0) // stalled until after Close, so it fails, and has a completion too
		<-copying
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		n, _ = a.CQ().Poll(wcs)
		if n != 2 || wcs[0].ID != 100 || wcs[1].ID != 101 {
			t.Errorf("all signaled %v: %s", all, vqptest.FormatWCs(wcs[:n]))
		}
		if _, err := b.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		b.CQ().FailDevice(0, verbs.ErrOverrun)
		start := time.Now()
		if err := b.CQ().Close(); err != nil || time.Since(start) > 900*time.Millisecond {
			t.Errorf("closing what has died, for which nobody waits a second: %v after %v", err,
				time.Since(start))
		}
	}
}

// A negative Linger flushes at once, and Wait returns for it.
func TestNoLinger(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{Linger: -1, FragmentSize: 8}},
		func(t *testing.T, l *vqptest.Link) {
			l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8))
			bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
			bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1,
				6: 1,
				7: 1})
			l.A.Send(t, bad)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := l.A.CQ().Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if wcs := l.A.Wait(t, 2); wcs[0].Status != verbs.StatusWRFlushErr ||
				wcs[1].Status != verbs.StatusRemAccessErr {
				t.Error(vqptest.FormatWCs(wcs))
			}
		})
}

// A failed rail refuses credits. Requests on the other rails still linger, and complete with their
// own status.
func TestRefusedCreditsDoNotEndTheLinger(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Linger: time.Minute,
		FragmentSize: 8,
		Credits:      2}})
	transient := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: -1})
	l.A.ExpectRecv(t, 1000)
	l.B.Send(t, l.B.Write(verbs.OpRDMAWriteWithImm, 1, 0, 16)) // uses up a credit of either rail
	l.A.Wait(t, 1)
	l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0], QPNum: l.A.RailQPs[0]})
	l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // on the notify QP; b posts no receive yet
	for id := range uint64(2) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 2+id, 0, 8))
	}
	for deadline := time.Now().Add(10 * time.Second); l.A.Err() == nil && time.Now().Before(deadline); {
		l.A.Pump(t)
	}
	transient.Remove()
	permanent := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: -1,
		Err: verbs.ErrState})
	for range 10 {
		l.A.Pump(t)
	}
	if permanent.Hits() == 0 || permanent.Hits() > 2 {
		t.Errorf("%d credits were refused, want one on each rail at most", permanent.Hits())
	}
	if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 1000, Local: l.B.MR.Slice(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if wc := l.A.Wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusSuccess {
		t.Errorf("the SEND before the failure: %s", vqptest.FormatWCs([]ibverbx.WC{wc}))
	}
}

// A run on a stepped fabric whose clock is the program's ends alike however long it pauses:
// requests linger by that clock only.
func TestLingerByAConfiguredClock(t *testing.T) {
	const linger = 20 * time.Millisecond
	for _, pause := range []time.Duration{0, 3 * linger} {
		now := time.Unix(1, 0)
		l := vqptest.NewLink(t, vqptest.LinkConfig{Fabric: soft.Config{Stepped: true, Seed: 3},
			QP: ibverbx.Config{
				QPsPerDevice: 2, Linger: linger, FragmentSize: 8,
				Testing: ibverbx.Testing{Clock: func() time.Time { return now }}}})
		l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16)
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
		l.A.Send(t, bad)
		for range 100 {
			l.Fabric.Run(10)
			l.A.Pump(t)
		}
		if l.A.Err() == nil {
			t.Fatal("nothing has failed")
		}
		time.Sleep(pause)
		now = now.Add(linger)
		for range 20 {
			l.Fabric.Run(10)
			l.A.Pump(t)
		}
		if len(l.A.Backlog) != 0 {
			t.Fatalf("behind a pause of %v, and no more than Linger by the clock: %s", pause,
				vqptest.FormatWCs(l.A.Backlog))
		}
		now = now.Add(1)
		for range 20 {
			l.A.Pump(t)
			l.Fabric.Run(10)
		}
		if len(l.A.Backlog) != 2 || l.A.Backlog[0].Status != verbs.StatusWRFlushErr ||
			l.A.Backlog[1].Status != verbs.StatusRemAccessErr {
			t.Errorf("behind Linger by the clock: %s", vqptest.FormatWCs(l.A.Backlog))
		}
	}
}
