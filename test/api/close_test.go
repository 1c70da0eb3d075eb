package api_test

import (
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
		start := time.Now()
		if _, err := ends[1].PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		ends[1].CQ().FailDevice(0, verbs.ErrOverrun)
		if err := ends[1].CQ().Close(); err != nil || time.Since(start) > 500*time.Millisecond {
			t.Errorf("closing what has died: %v after %v", err, time.Since(start))
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
