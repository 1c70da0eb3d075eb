package transport_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A context that ends ends the wait, and nothing else. Its error names the peer that has not
// answered, and no other.
func TestAContextEndsTheWaitOnly(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP})
		comp := transport.NewCompletion(1, nil)
		if _, err := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 60000)); err != nil {
			t.Fatal(err)
		}
		idle, _ := l.another(transport.EndpointConfig{Name: "peer c"})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for name, err := range map[string]error{
			"flush":           l.a.Flush(ctx, transport.FlushRemote),
			"flush of worker": l.a.w.Flush(ctx, transport.FlushLocal),
			"wait":            l.a.w.Wait(ctx, comp),
			"another wait":    l.a.w.WaitFor(ctx, 0, func() bool { return false }),
		} {
			if !errors.Is(err, context.Canceled) ||
				err.Error() != "context canceled: peer b has not answered" {
				t.Errorf("%s: %v", name, err)
			}
		}
		died := errors.New("rank 7 has died")
		over, end := context.WithCancelCause(context.Background())
		end(died)
		if err := l.a.w.Wait(over, comp); !errors.Is(err, died) || err.Error() != died.Error() {
			t.Errorf("a context with a cause: %v", err)
		}
		if err := idle.Flush(ctx, transport.FlushRemote); err != nil {
			t.Errorf("an idle peer: %v", err)
		}
		if comp.Fired() {
			t.Error("the operation ended with the wait")
		}
		stall.Remove()
		must(t, l.a.w.Wait(within(t), comp))
		must(t, l.a.Flush(within(t), transport.FlushRemote))
		landed(t, "memory", l.b.mem[:60000], l.a.mem[:60000])
	})
}

// A context that ends is noticed however busy other endpoints keep the worker.
func TestAContextEndsTheWaitOnABusyWorker(t *testing.T) {
	l := newLink(t, setup{cfg: transport.Config{QP: shapes()[1].cfg.QP}})
	busy, _ := l.another(transport.EndpointConfig{})
	var comp transport.Completion
	var again func(*transport.Completion)
	stop := false
	again = func(c *transport.Completion) {
		if !stop {
			c.Init(1, again)
			if _, err := busy.PutZcopy(c, busy.peer.At(0), busy.mr.Slice(0, 8)); err != nil {
				t.Error(err)
			}
		}
	}
	comp.Init(1, again)
	comp.Done(nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.a.w.WaitFor(ctx, 0, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop = true
}

// posted records, of the requests that a NIC is given, the addresses that are fenced and those that
// are not.
func posted(l *link, nic *soft.Device) (fenced, free *[]uint64) {
	fenced, free = new([]uint64), new([]uint64)
	l.fabric.Inject(soft.Fault{Kind: soft.Rewrite, Device: nic, Count: -1,
		Match: func(wr *verbs.SendWR) bool {
			list := free
			if wr.Flags&verbs.SendFence != 0 {
				list = fenced
			}
			*list = append(*list, wr.RemoteAddr)
			return false
		}})
	return fenced, free
}

// A fence is carried out by the next operation alone: the ones behind it do not wait for each
// other. Where nothing is outstanding it costs nothing at all.
func TestAFenceHoldsUpOneOperation(t *testing.T) {
	s := shapes()[0]
	s.stepped = true
	l := newLink(t, s)
	fenced, free := posted(l, l.a.nics[0])
	put := func(i uint64) { must(t, l.a.PutShort([]byte{1}, l.a.peer.At(i))) }
	l.a.Fence() // nothing is outstanding
	put(0)
	l.a.Fence()
	put(1)
	put(2)
	put(3)
	l.a.Fence()
	l.a.Fence()
	put(4)
	put(5)
	l.until("all", func() bool { return l.a.Stats().Outstanding == 0 })
	l.a.Fence()
	put(6)
	l.until("the last", func() bool { return l.a.Stats().Outstanding == 0 })
	addresses := func(of ...uint64) (list []uint64) {
		for _, i := range of {
			list = append(list, l.a.peer.At(i).Addr)
		}
		return list
	}
	slices.Sort(*fenced)
	slices.Sort(*free)
	if f, want := slices.Compact(*fenced), addresses(1, 4); !slices.Equal(f, want) {
		t.Errorf("fenced are %x, want %x", f, want)
	}
	if f, want := slices.Compact(*free), addresses(0, 2, 3, 5, 6); !slices.Equal(f, want) {
		t.Errorf("not fenced are %x, want %x", f, want)
	}
}

// A fence behind pending requests is for what comes behind them: they do not wait for it.
func TestAFenceBehindPendingRequests(t *testing.T) {
	s := shapes()[0]
	s.stepped = true
	l := newLink(t, s)
	fenced, _ := posted(l, l.a.nics[0])
	l.a.fill(t)
	put := func(i uint64) *transport.Pending {
		return request(func(head *transport.Endpoint) transport.Outcome {
			return outcome(t, head.PutShort([]byte{1}, l.a.peer.At(i)))
		})
	}
	must(t, l.a.Pending(put(0)))
	l.a.Fence()
	must(t, l.a.Pending(put(1)))
	must(t, l.a.Pending(put(2)))
	l.until("all", func() bool { return l.a.Stats().Pending == 0 && l.a.Stats().Outstanding == 0 })
	if f, want := slices.Compact(*fenced), []uint64{l.a.peer.At(1).Addr}; !slices.Equal(f, want) {
		t.Errorf("fenced are %x, want %x", f, want)
	}
}

// A remote flush of a single queue pair reads without a fence, whether Fence was called with
// requests pending or without; the fence is for the operation behind it, also if the flush is
// refused.
func TestARemoteFlushOfASingleQueuePairIsNotFenced(t *testing.T) {
	for _, pending := range []bool{true, false} {
		for _, refused := range []int{0, 1} {
			s := shapes()[0]
			s.stepped = true
			l := newLink(t, s)
			idle := func() bool { return l.a.Stats().Pending == 0 && l.a.Stats().Outstanding == 0 }
			fenced, free := posted(l, l.a.nics[0])
			if pending {
				l.a.fill(t)
				must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
					return outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
				})))
				l.a.Fence()
				l.until("the request", idle)
			} else {
				must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
				l.a.Fence()
			}
			if refused != 0 {
				l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Count: refused})
				if _, err := l.a.StartFlush(transport.FlushRemote, nil); err != transport.ErrNoResource {
					t.Errorf("a refused flush: %v", err)
				}
			}
			if done, err := l.a.StartFlush(transport.FlushRemote, nil); done || err != nil {
				t.Errorf("the flush: %t, %v", done, err)
			}
			must(t, l.a.PutShort([]byte{1}, l.a.peer.At(1)))
			must(t, l.a.PutShort([]byte{1}, l.a.peer.At(2)))
			l.until("all", idle)
			if f, want := *fenced, []uint64{l.a.peer.At(1).Addr}; !slices.Equal(f, want) {
				t.Errorf("pending %t, %d refused: fenced are %x, want %x; not %x", pending, refused, f, want,
					*free)
			}
		}
	}
}

// A remote flush reads on no rail before the puts on all rails have landed.
func TestARemoteFlushReadsBehindAllPuts(t *testing.T) {
	s := shapes()[1]
	s.cfg.KeepAlive = -1
	l := newLink(t, s)
	var reads atomic.Int64
	watch := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend, Count: -1,
		Match: func(wr *verbs.SendWR) bool {
			if wr.Opcode == verbs.OpRDMARead {
				reads.Add(1)
			}
			return false
		}})
	defer watch.Remove()
	rails := l.a.QPStats().Rails
	stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP, QPNum: rails[1].QPNum,
		Count: -1})
	_, err := l.a.PutZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 3*4096))
	must(t, err)
	done := false
	_, err = l.a.StartFlush(transport.FlushRemote,
		transport.NewCompletion(1, func(*transport.Completion) { done = true }))
	must(t, err)
	for range 2000 {
		l.a.w.Progress()
		runtime.Gosched()
	}
	if n := reads.Load(); n != 0 || done {
		t.Errorf("%d reads while a put is on its way; done %t", n, done)
	}
	stall.Remove()
	l.until("the flush", func() bool { return done })
	if n := reads.Load(); n != 2 {
		t.Errorf("%d reads on two rails", n)
	}
	l.quiet()
	if done, err := l.a.StartFlush(transport.FlushRemote, nil); !done || err != nil {
		t.Errorf("a flush behind it waits for something: %v", err)
	}
}
