package transport_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// request is a pending request whose function needs only the view from the head of the queue.
func request(f func(head *transport.Endpoint) transport.Outcome) *transport.Pending {
	return &transport.Pending{Func: func(_ *transport.Pending,
		head *transport.Endpoint) transport.Outcome {
		return f(head)
	}}
}

// outcome is what a pending function returns for the error of its send.
func outcome(tb testing.TB, err error) transport.Outcome {
	tb.Helper()
	switch err {
	case nil:
		return transport.PendingDone
	case transport.ErrNoResource:
		return transport.PendingNoResource
	}
	tb.Error(err)
	return transport.PendingDone
}

func TestPendingRefusesWhatIsWrong(t *testing.T) {
	s := shapes()[0]
	s.stepped = true
	l := newLink(t, s)
	if err := l.a.Pending(&transport.Pending{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a request without a function: %v", err)
	}
	l.a.fill(t)
	p := request(func(*transport.Endpoint) transport.Outcome { return transport.PendingDone })
	must(t, l.a.Pending(p))
	if err := l.a.Pending(p); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a request that is queued already: %v", err)
	}
	l.quiet()
	l.a.fill(t)
	must(t, l.a.Pending(p)) // once done it can be queued again
}

// The function that gets a request may queue it again, or another one that was handed back; none is
// lost.
func TestPurgeMayQueueAgain(t *testing.T) {
	l := newLink(t, setup{stepped: true})
	l.a.fill(t)
	ran, back := 0, 0
	var all [5]*transport.Pending
	for i := range all {
		all[i] = request(func(*transport.Endpoint) transport.Outcome { ran++; return transport.PendingDone })
		must(t, l.a.Pending(all[i]))
	}
	l.a.Purge(func(p *transport.Pending) {
		back++
		if back == 1 {
			if err := l.a.Pending(all[3]); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("a request that is still to be handed back was queued: %v", err)
			}
		}
		must(t, l.a.Pending(p))
	})
	if back != len(all) {
		t.Errorf("%d of %d were handed back", back, len(all))
	}
	l.until("all run after all", func() bool { return ran == len(all) })
}

// A request whose function runs, and purges, is handed back only if it wants to stay.
func TestPurgeFromARunningFunction(t *testing.T) {
	for _, c := range []struct {
		name    string
		requeue bool
		answer  transport.Outcome
		back    int
	}{
		{"done", false, transport.PendingDone, 1},
		{"wants to stay", false, transport.PendingNoResource, 2},
		{"queued itself, done", true, transport.PendingDone, 2},
		{"queued itself, wants to stay", true, transport.PendingProgress, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, setup{stepped: true})
			l.a.fill(t)
			back := map[*transport.Pending]int{}
			first, runs := &transport.Pending{}, 0
			first.Func = func(p *transport.Pending, head *transport.Endpoint) transport.Outcome {
				runs++
				if c.requeue {
					must(t, head.Pending(p))
				}
				head.Purge(func(p *transport.Pending) { back[p]++ })
				return c.answer
			}
			second := request(func(*transport.Endpoint) transport.Outcome {
				t.Error("a purged request runs")
				return transport.PendingDone
			})
			must(t, l.a.Pending(first))
			must(t, l.a.Pending(second))
			l.quiet()
			if runs != 1 || back[second] != 1 || len(back) != c.back || back[first] > 1 {
				t.Errorf("ran %d times; handed back: first %d times, second %d times", runs, back[first],
					back[second])
			}
		})
	}
}

// What a request lacked is its own: the one behind it in the queue does not wait for that, however
// the first one left the queue.
func TestWhatARequestLacksIsItsOwn(t *testing.T) {
	lacksCredit := func(answer transport.Outcome) *transport.Pending {
		return request(func(head *transport.Endpoint) transport.Outcome {
			if err := head.AMShort(1, nil, nil); err != transport.ErrNoResource {
				t.Errorf("%v", err)
			}
			return answer
		})
	}
	t.Run("purged", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
		if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
			t.Fatal(err)
		}
		must(t, l.a.Pending(lacksCredit(transport.PendingNoResource)))
		flushed := make(chan error, 1)
		go func() { flushed <- l.a.Flush(within(t), transport.FlushLocal) }()
		sleeping(t, l.a.w, 1)
		l.a.Purge(func(*transport.Pending) {})
		must(t, <-flushed)
	})
	t.Run("done", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, BounceBuffers: 2})
		try(t, func(int) error { _, err := l.a.PutBcopy(pack([]byte{1}), l.a.peer.At(0)); return err })
		must(t, l.a.Pending(lacksCredit(transport.PendingDone)))
		put := false
		must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
			o := outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
			put = o == transport.PendingDone
			return o
		})))
		l.until("the put behind it", func() bool { return put })
	})
	t.Run("forgotten", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, MaxOutstanding: 2, Spin: -1})
		if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
			t.Fatal(err)
		}
		l.a.fill(t) // a put meets a full window
		must(t, l.a.w.Start())
		sleeping(t, l.a.w, 1)
		put := transport.NewCompletion(1, nil)
		for {
			err := l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
				o := outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
				if o == transport.PendingDone {
					put.Done(nil)
				}
				return o
			}))
			if err == nil {
				break
			}
			if !errors.Is(err, transport.ErrBusy) {
				t.Fatal(err)
			}
			if err := l.a.PutShort([]byte{1}, l.a.peer.At(0)); err == nil {
				return // no request is needed
			}
		}
		must(t, l.b.w.Wait(within(t), put))
	})
}

// waitsFor queues a request that says it lacks something, which no send of it does, until ready. It
// counts the calls.
func waitsFor(t *testing.T, e *end, ready *atomic.Bool, calls *atomic.Int64) {
	t.Helper()
	req := request(func(*transport.Endpoint) transport.Outcome {
		if calls.Add(1); ready.Load() {
			return transport.PendingDone
		}
		return transport.PendingNoResource
	})
	for range 1000 {
		e.fill(t)
		err := e.Pending(req)
		if errors.Is(err, transport.ErrBusy) {
			continue // another goroutine's progress was between the two
		}
		must(t, err)
		return
	}
	t.Fatal("resources are there again and again")
}

// A request that waits for something that no event of the worker announces is asked all the same,
// by a goroutine that sleeps, too.
func TestARequestThatWaitsForSomethingElseIsAsked(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.Spin, s.cfg.KeepAlive = -1, -1
		l := newLink(t, s)
		var ready atomic.Bool
		var calls atomic.Int64
		waitsFor(t, l.a, &ready, &calls)
		l.until("it was asked", func() bool { return calls.Load() != 0 })
		l.quiet()
		flushed := make(chan error, 1)
		go func() { flushed <- l.a.Flush(within(t), transport.FlushLocal) }()
		sleeping(t, l.a.w, 1)
		ready.Store(true)
		begin := time.Now()
		must(t, <-flushed) // where nothing asks it, never
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the flush behind it took %v", took)
		}
	})
}

// A goroutine that sleeps already is woken when such a request turns up on another.
func TestASleeperAsksWhatAnotherGoroutineHasQueued(t *testing.T) {
	s := shapes()[1]
	s.cfg.Spin, s.cfg.KeepAlive = -1, -1
	l := newLink(t, s)
	var ready atomic.Bool
	var calls atomic.Int64
	must(t, l.a.w.Start())
	sleeping(t, l.a.w, 1)
	waitsFor(t, l.a, &ready, &calls)
	for calls.Load() < 3 {
		l.a.w.Progress()
	}
	ready.Store(true)
	for deadline := time.Now().Add(patience); l.a.Stats().Pending != 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nobody asks")
		}
	}
}

// Such a request is asked once in each round of progress, which does not count as work, however
// many there are and whatever others do.
func TestARequestThatWaitsForSomethingElseIsNoWork(t *testing.T) {
	const endpoints = 300
	s := shapes()[0]
	s.cfg.AMBuffers, s.cfg.BufferSize, s.cfg.MaxOutstanding, s.cfg.MaxEndpoints = 1, 256, 1, endpoints+1
	s.cfg.KeepAlive = -1
	l := newLink(t, s)
	var ready atomic.Bool
	calls := make([]atomic.Int64, endpoints)
	for i := range calls {
		e, _ := l.another(transport.EndpointConfig{})
		waitsFor(t, e, &ready, &calls[i])
	}
	l.until("all of them were asked", func() bool {
		for i := range calls {
			if calls[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	l.quiet()
	busy := true
	l.a.fill(t)
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		if busy {
			return transport.PendingProgress
		}
		return transport.PendingDone
	})))
	for round := range 20 {
		if round == 10 {
			busy = false
			l.until("the busy one ends", func() bool { return l.a.Stats().Pending == 0 })
			l.quiet()
		}
		before := make([]int64, endpoints)
		for i := range calls {
			before[i] = calls[i].Load()
		}
		if n := l.a.w.Progress(); n != 0 && !busy {
			t.Fatalf("progress has done %d things", n)
		}
		for i := range calls {
			if n := calls[i].Load() - before[i]; n != 1 {
				t.Fatalf("request %d was asked %d times in one round", i, n)
			}
		}
	}
	ready.Store(true)
	l.quiet()
}

// When a send that bypasses the queue lacks something, the first request of the queue is called
// once that is back, although what the request itself lacks is not.
func TestBypassingSendsAreAnsweredByTheQueue(t *testing.T) {
	l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, BounceBuffers: 2, MaxOutstanding: 4})
	stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	calls := 0
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		calls++
		return outcome(t, head.AMShort(1, nil, nil))
	})))
	for range 100 {
		l.progress()
	}
	before := calls
	bypass := l.a.BypassQueue()
	n := try(t, func(i int) error { return bypass.PutShort([]byte{9}, l.a.peer.At(uint64(i))) })
	if n == 0 {
		t.Fatal("nothing bypasses the queue")
	}
	for range 100 {
		l.progress()
	}
	if calls != before {
		t.Errorf("the request was called %d times while nothing was back", calls-before)
	}
	stall.Remove()
	l.until("the request is called", func() bool { return calls != before })
	must(t, bypass.PutShort([]byte{9}, l.a.peer.At(0)))
	l.a.Purge(func(*transport.Pending) {})
}

// A peer that only receives gives credits back by themselves once half of its buffers are free, and
// not before.
func TestCreditsComeBackByHalves(t *testing.T) {
	for _, buffers := range []int{1, 2, 4, 8, 16, 32} {
		s := shapes()[0]
		s.stepped = true
		s.cfg.AMBuffers = buffers
		l := newLink(t, s)
		for sent := 1; sent <= 2*buffers; sent++ {
			l.send(l.a, nil)
			l.quiet()
			want := buffers - sent%((buffers+1)/2)
			if got := l.a.Stats().Credits; got != want {
				t.Fatalf("%d buffers: %d credits after %d messages, want %d", buffers, got, sent, want)
			}
		}
		if n, want := l.b.w.Stats().Control, uint64(2*buffers/((buffers+1)/2)); n != want {
			t.Errorf("%d buffers: %d messages with credits, want %d", buffers, n, want)
		}
	}
}
