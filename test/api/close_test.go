package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	for {
		wc, ok, err := e.CQ().PollOne()
		if ok {
			e.Backlog = append(e.Backlog, wc)
			continue
		}
		if !errors.Is(err, ibverbx.ErrClosed) {
			tb.Fatalf("a closed CQ with nothing left: %v", err)
		}
		return e.Backlog
	}
}

// permutations of 0..n-1.
func permutations(n int) (all [][]int) {
	var extend func(p []int)
	extend = func(p []int) {
		if len(p) == n {
			all = append(all, slices.Clone(p))
			return
		}
		for i := range n {
			if !slices.Contains(p, i) {
				extend(append(p, i))
			}
		}
	}
	extend(nil)
	return all
}

// Objects can be closed in every order with requests outstanding: nothing leaks, no completion is
// lost, and an object that cannot be closed yet returns an error.
func TestEveryOrderOfClosing(t *testing.T) {
	const closeQP, closeCQ, closeMR = 0, 1, 2 // and the domain
	for _, m := range vqptest.Modes[:6] {
		for _, order := range permutations(4) {
			t.Run(fmt.Sprint(m.Name, order), func(t *testing.T) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
					QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs, FragmentSize: 1000,
						MaxMsgCntPerQP: 4}})
				multi := l.A.DataRails() > 1
				l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
				recvs := uint64(3)
				for id := range recvs {
					recv := ibverbx.RecvWR{ID: 100 + id, Local: l.A.MR.Slice(0, 8)}
					if _, err := l.A.PostRecv(recv); err != nil {
						t.Fatal(err)
					}
				}
				sends := uint64(3)
				for id := range sends {
					l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 5000))
				}
				qpClosed := false
				for _, what := range order {
					var err, want error
					switch what {
					case closeQP:
						err = l.A.Close()
						if qpClosed {
							want = ibverbx.ErrClosed // closed with its CQ
						}
						qpClosed = true
					case closeCQ:
						err = l.A.CQ().Close()
						if qpClosed {
							want = ibverbx.ErrClosed // closed with its only virtual queue pair
						}
						qpClosed = true
					case closeMR:
						err = l.A.MR.Close()
						if multi && !qpClosed {
							want = verbs.ErrBusy
						}
					default:
						err = l.A.Domain().Close()
						_, refusal := l.A.Domain().Register(make([]byte, 8), 0)
						if !errors.Is(refusal, ibverbx.ErrClosed) {
							t.Errorf("registering in a closed domain: %v", refusal)
						}
					}
					if !errors.Is(err, want) {
						t.Fatalf("step %d of %v: %v, want %v", what, order, err, want)
					}
				}
				gotSends, gotRecvs := uint64(0), uint64(0)
				for _, wc := range pollClosed(l.A, t) {
					next := &gotSends
					id := wc.ID
					if id >= 100 {
						next = &gotRecvs
						id -= 100
					}
					if id != *next || wc.Status != verbs.StatusWRFlushErr {
						t.Errorf("completion %d: %+v", *next, wc)
					}
					*next++
				}
				if gotSends != sends || gotRecvs != recvs {
					t.Errorf("%d of %d sends and %d of %d receives were reported", gotSends, sends, gotRecvs,
						recvs)
				}
			})
		}
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

// A single queue pair tracks nothing, so Close waits for the NIC's flushed completions, also behind
// a long copy.
func TestCloseOfASingleQPLosesNothing(t *testing.T) {
	const size = 8 << 20
	for range 5 {
		l := vqptest.NewLink(t, vqptest.LinkConfig{Buffer: size})
		copying := executing(l.Fabric)
		for id := range uint64(3) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, size))
		}
		<-copying
		if err := l.A.Close(); err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for wc, err := range l.A.CQ().Completions() {
			if err != nil {
				break
			}
			got = append(got, wc.ID)
		}
		if !slices.Equal(got, []uint64{0, 1, 2}) {
			t.Fatalf("completed %v of 0, 1, 2", got)
		}
		l.Close()
	}
}

// The outstanding requests of a single queue pair cannot be counted when requests are unsignaled,
// or when the queue pair signals all of them. Close still waits for all that can complete, and not
// where nothing can.
func TestCloseOfASingleQPWithUnsignaledRequests(t *testing.T) {
	const size = 4 << 20
	for _, all := range []bool{false, true} {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev := fabric.Device(0)
		pd := vqptest.NewPD(t, dev)
		mr, err := pd.RegisterMR(make([]byte, 2*size), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		keys, rkeys := ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: mr.LKey()}),
			ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: mr.RKey()})
		var ends [2]*ibverbx.VirtualQP
		for i := range ends {
			cq := vqptest.NewCQ(t, dev, 1024)
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SignalAll: all})
			if err != nil {
				t.Fatal(err)
			}
			vcq, err := ibverbx.NewVirtualCQ(cq)
			if err != nil {
				t.Fatal(err)
			}
			if ends[i], err = ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{}); err != nil {
				t.Fatal(err)
			}
		}
		vqptest.ConnectBoth(t, ends[0], ends[1])
		a := ends[0]
		post := func(id, n uint64, flags verbs.SendFlags) {
			wr := ibverbx.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: flags,
				Local:  ibverbx.Segment{Addr: mr.Addr(), Length: n, Keys: keys},
				Remote: ibverbx.RemoteSegment{Addr: mr.Addr() + size, Length: n, Keys: rkeys}}
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
		if _, err := ends[1].PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		ends[1].CQ().FailDevice(0, verbs.ErrOverrun)
		start := time.Now()
		if err := ends[1].CQ().Close(); err != nil || time.Since(start) > 900*time.Millisecond {
			t.Errorf("closing what has died, for which nobody waits a second: %v after %v", err,
				time.Since(start))
		}
		if err := errors.Join(a.CQ().Close(), mr.Close(), pd.Close(), fabric.Close()); err != nil {
			t.Errorf("leak: %v", err)
		}
	}
}

// A domain that the program closes first is released with its last user, without an error.
func TestDomainClosedFirst(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	nics, err := fabric.Devices()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ibverbx.Open(nics, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Domain().Close(); err != nil {
		t.Error(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := fabric.Close(); err != nil {
		t.Errorf("something is left: %v", err)
	}
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

// A SEND whose receive is never posted does not delay the end of a virtual queue pair on which a
// later request has failed: the SEND lingers for Config.Linger, and then it is flushed. The failed
// request still has its own status.
func TestRequestsBeforeAFailureLinger(t *testing.T) {
	const linger = 30 * time.Millisecond
	cfg := ibverbx.Config{Linger: linger, FragmentSize: 8}
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: cfg}, func(t *testing.T, l *vqptest.Link) {
		begin := time.Now()
		l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1})
		l.A.Send(t, bad)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 3, 0, 8))
		wcs := l.A.Wait(t, 3)
		want := []verbs.Status{verbs.StatusWRFlushErr, verbs.StatusRemAccessErr, verbs.StatusWRFlushErr}
		for i, wc := range wcs {
			if wc.ID != uint64(i+1) || wc.Status != want[i] {
				t.Errorf("completion %d: %s, want %v", i, vqptest.FormatWCs(wcs[i:i+1]), want[i].Name())
			}
		}
		if took := time.Since(begin); took < linger {
			t.Errorf("flushed after %v: it may linger for %v", took, linger)
		}
		if err := l.A.Err(); !errors.Is(err, verbs.StatusRemAccessErr) {
			t.Error(err)
		}
	})
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
