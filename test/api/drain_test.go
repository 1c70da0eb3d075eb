package api_test

import (
	"context"
	"errors"
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

// refusesPosts checks that posts are refused because of a drain, with a helpful error and without
// effect.
func refusesPosts(t *testing.T, e *vqptest.End) {
	t.Helper()
	before := e.Stats()
	_, sending := e.PostSend(e.Write(verbs.OpRDMAWrite, 1, 0, 8))
	_, receiving := e.PostRecv(ibverbx.RecvWR{ID: 1})
	for _, err := range []error{sending, receiving} {
		var pe *ibverbx.PostError
		if !errors.Is(err, ibverbx.ErrDraining) || !errors.As(err, &pe) || pe.ID != 1 ||
			!strings.Contains(err.Error(), "reset and connect it, or close it") {
			t.Errorf("post: %v", err)
		}
	}
	if after := e.Stats(); after.Sends != before.Sends || after.Recvs != before.Recvs {
		t.Errorf("the refused posts changed the stats: %+v", after)
	}
	if s := e.Stats(); s.State != e.State() {
		t.Errorf("the state is %v in Stats, %v in State", s.State, e.State())
	}
}

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

// Every accepted send completes with its own status, in order; receives that no message has matched
// are flushed; then the memory is free, and after a reset the virtual queue pair works again.
// Twice.
func TestDrain(t *testing.T) {
	for _, delay := range []time.Duration{0, 2 * time.Millisecond} { // with a delay Drain must sleep
		vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
			if delay != 0 {
				l.Fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: delay, Skip: 5, Count: 20})
			}
			for round := range uint64(2) {
				vqptest.FillRandom(l.A.Buf[:60000], round)
				fill(l.A, t, 12, 4)
				if err := l.A.Drain(patience(t)); err != nil {
					t.Fatal(err)
				}
				if l.A.Err() != nil || l.A.State() != verbs.StateErr {
					t.Errorf("drained: %v, %v", l.A.State(), l.A.Err())
				}
				refusesPosts(t, l.A)
				if err := l.A.Drain(endedContext()); err != nil { // nothing is left to do
					t.Errorf("draining once more: %v", err)
				}
				vqptest.MustEqual(t, "data", l.B.Buf[:60000], l.A.Buf[:60000])
				sends, recvs := directions(t, l.A.Poll(t))
				if !slices.Equal(sends, repeated(verbs.StatusSuccess, 12)) ||
					!slices.Equal(recvs, repeated(verbs.StatusWRFlushErr, 4)) {
					t.Errorf("sends %v, receives %v", sends, recvs)
				}
				if got, _ := directions(t, l.B.Wait(t, 4)); len(got) != 0 || l.B.Err() != nil {
					t.Errorf("the peer: %v %v", got, l.B.Err())
				}
				if s := l.A.Stats(); s.StaleEvents != 0 || s.Rails[0].Errors != 0 {
					t.Errorf("%+v", s)
				}
				if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
					t.Fatal(err)
				}
				if l.A.State() != verbs.StateReset || len(l.A.Poll(t)) != 0 {
					t.Errorf("after the reset: %v", l.A.State())
				}
				l.Connect(nil)
			}
			l.B.ExpectRecv(t, 5)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 6, 0, 5000))
			vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			if err := l.A.MR.Close(); err != nil {
				t.Errorf("a region is still held: %v", err)
			}
		})
	}
}

// A Drain whose context ends says how much is left, over one queue pair as an upper bound: the
// requests that have no completion yet.
func TestInterruptedDrainSaysWhatIsLeft(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
	interrupted := func(want string) {
		t.Helper()
		err := l.A.Drain(endedContext())
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	fill(l.A, t, 2, 1)
	interrupted("at most 3 sends and receives are still outstanding")
	stall.Remove()
	if err := l.A.Drain(patience(t)); err != nil {
		t.Fatal(err)
	}
}

// With an ended context each call of Drain is one step. The fabric makes progress in between, and
// no completion is lost.
func TestDrainInSteps(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			for seed := range uint64(5) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
					QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs, FragmentSize: 1000,
						MaxMsgCntPerQP: 8},
					Fabric: soft.Config{Stepped: true, Seed: seed}})
				fill(l.A, t, 6, 3)
				states := map[verbs.QPState]int{}
				for steps := 0; ; steps++ {
					err := l.A.Drain(endedContext())
					states[l.A.State()]++
					refusesPosts(t, l.A)
					if err == nil {
						break
					}
					if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "outstanding") ||
						l.A.Err() != nil || steps > 5000 {
						t.Fatalf("step %d: %v; %v", steps, err, l.A.Err())
					}
					if steps == 0 && m.Name != "single" &&
						!strings.Contains(err.Error(), "sends still outstanding: 6") {
						t.Errorf("%v", err)
					}
					l.Fabric.Step()
					l.B.Pump(t)
				}
				if states[verbs.StateSQD] == 0 || states[verbs.StateErr] == 0 || len(states) != 2 {
					t.Errorf("states %v", states)
				}
				sends, recvs := directions(t, l.A.Poll(t))
				if !slices.Equal(sends, repeated(verbs.StatusSuccess, 6)) ||
					!slices.Equal(recvs, repeated(verbs.StatusWRFlushErr, 3)) {
					t.Errorf("sends %v, receives %v", sends, recvs)
				}
				l.Close()
			}
		})
	}
}

// A request fails before Drain, or while Drain waits: everything completes, and Drain returns the
// failure.
func TestDrainWithAFailure(t *testing.T) {
	for _, before := range []bool{false, true} {
		vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
			stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
			l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Status: verbs.StatusRemOpErr,
				Match: func(wr *verbs.SendWR) bool {
					return wr.RemoteAddr == l.A.Peer.Addr()+6*5000 && wr.Bytes() != 0
				}})
			fill(l.A, t, 12, 3)
			if !before {
				short, cancel := context.WithTimeout(context.Background(), 3*time.Millisecond)
				defer cancel()
				if err := l.A.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			stall.Remove()
			for before && l.A.Err() == nil {
				l.A.Pump(t)
			}
			err := l.A.Drain(patience(t))
			var fe *ibverbx.FailedError
			if !errors.As(err, &fe) || !errors.Is(err, verbs.StatusRemOpErr) || !errors.Is(l.A.Err(), err) ||
				fe.ID != 6 {
				t.Fatalf("Drain: %v", err)
			}
			_, err = l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
			if !errors.Is(err, ibverbx.ErrFailed) {
				t.Errorf("post: %v", err)
			}
			sends, recvs := directions(t, l.A.Poll(t))
			if len(sends) != 12 || len(recvs) != 3 || l.A.State() != verbs.StateErr {
				t.Fatalf("sends %v, receives %v", sends, recvs)
			}
			for i, s := range sends {
				want := verbs.StatusWRFlushErr
				switch {
				case i < int(fe.ID):
					want = verbs.StatusSuccess
				case i == int(fe.ID):
					want = verbs.StatusRemOpErr
				}
				if s != want {
					t.Errorf("send %d: %v, want %v", i, s.Name(), want.Name())
				}
			}
			if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil || l.A.Err() != nil {
				t.Fatal(err, l.A.Err())
			}
		})
	}
}

// A notification that arrived before the queue pairs went to ERR still completes its receive.
func TestDrainDeliversWhatHasArrived(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: scheme, FragmentSize: 1000})
		for id := range uint64(2) {
			l.B.ExpectRecv(t, 1000+id)
		}
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 9, 0, 1500))
		// Everything happens, and the receiver does not poll yet.
		for l.Do(func(a soft.Action) bool { return a.Kind != soft.Reveal || !a.Recv }) {
			l.A.Pump(t)
		}
		for range 20 {
			l.A.Pump(t)
			l.Do(func(a soft.Action) bool { return a.Kind != soft.Reveal || !a.Recv })
		}
		if err := l.B.Drain(endedContext()); !errors.Is(err, context.Canceled) ||
			l.B.State() != verbs.StateErr {
			t.Fatalf("%v: %v, %v", scheme, err, l.B.State())
		}
		if got := l.B.Poll(t); len(got) != 0 {
			t.Fatalf("%v: flushed too early: %s", scheme, vqptest.FormatWCs(got))
		}
		l.Fabric.Run(1000)
		if err := l.B.Drain(endedContext()); err != nil {
			t.Fatal(err)
		}
		_, recvs := directions(t, l.B.Poll(t))
		if !slices.Equal(recvs, []verbs.Status{verbs.StatusSuccess, verbs.StatusWRFlushErr}) {
			t.Errorf("%v: receives %v", scheme, recvs)
		}
	}
}

// Other virtual queue pairs of the CQ continue while one drains; their completions can be polled.
func TestDrainLeavesOthersAlone(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, CQDepth: 8192,
			QP: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2,
				FragmentSize: 1000, MaxMsgCntPerQP: 2}})
		a, _ := l.Another(t)
		// The one that drains ends last, so Drain must progress the other meanwhile.
		delay := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: l.A.NICs[0], QPNum: l.A.RailQPs[0],
			Count: -1})
		fill(l.A, t, 6, 0)
		for id := range uint64(6) {
			if _, err := a.PostSend(l.A.Write(verbs.OpRDMAWrite, 100+id, 0, 9000)); err != nil {
				t.Fatal(err)
			}
		}
		for ctx := patience(t); a.Stats().SendWindow != 0; {
			if err := l.A.Drain(endedContext()); !errors.Is(err, context.Canceled) || ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		delay.Remove()
		if err := l.A.Drain(patience(t)); err != nil || a.Err() != nil || a.State() != verbs.StateRTS {
			t.Fatal(err, a.Err(), a.State())
		}
		if _, err := a.PostSend(l.A.Write(verbs.OpRDMAWrite, 106, 0, 9000)); err != nil {
			t.Fatal(err)
		}
		next := map[uint32]uint64{l.A.Num(): 0, a.Num(): 100}
		for _, wc := range l.A.Wait(t, 13) {
			if wc.ID != next[wc.QPNum] || wc.Status != 0 {
				t.Fatalf("%+v", wc)
			}
			next[wc.QPNum]++
		}
	}
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
		fabric, q := vqptest.OpenSoft(t, ibverbx.Config{QPsPerDevice: qps})
		if err := q.Drain(endedContext()); err != nil || q.State() != verbs.StateReset {
			t.Errorf("in RESET: %v, %v", err, q.State())
		}
		init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
		if err := q.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess,
			nil); err != nil {
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
		card, err := q.Card()
		if err != nil {
			t.Fatal(err)
		}
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
		if err := fabric.Close(); err != nil {
			t.Error(err)
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
