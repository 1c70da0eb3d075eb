package transport_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// sleeping waits until so many goroutines sleep in a worker.
func sleeping(t *testing.T, w *transport.Worker, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); w.Sleepers() != n; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines sleep, not %d", w.Sleepers(), n)
		}
	}
}

// A wait that sleeps takes no memory, once a few have slept.
func TestAWaitThatSleepsTakesNoMemory(t *testing.T) {
	s := shapes()[1]
	s.cfg.Spin, s.cfg.KeepAlive = -1, -1
	l := newLink(t, s)
	ctx := context.Background()
	left := 0
	done := func() bool { left--; return left < 0 }
	n := testing.AllocsPerRun(100, func() {
		left = 4
		must(t, l.a.w.WaitFor(ctx, 10*time.Microsecond, done))
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A goroutine that sleeps is woken by what arrives.
func TestWaitSleepsUntilSomethingArrives(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		var got atomic.Int32
		s.cfg.Spin = -1
		s.handle = func(*transport.Message) { got.Add(1) }
		l := newLink(t, s)
		for i := range int32(20) {
			ended := make(chan error, 1)
			go func() { ended <- l.b.w.WaitFor(within(t), 0, func() bool { return got.Load() > i }) }()
			sleeping(t, l.b.w, 1)
			l.send(l.a, []byte("wake up")) // also polls b: progress of another goroutine wakes too
			must(t, <-ended)
		}
	})
}

// A wait that is to look at its condition every millisecond does so, though nothing arrives and the
// next probe of a silent peer is far away.
func TestWaitLooksAsOftenAsAsked(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, time.Hour
	l := newLink(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	looks := 0
	err := l.a.w.WaitFor(ctx, time.Millisecond, func() bool { looks++; return looks > 20 })
	if err != nil {
		t.Errorf("%v after %d looks", err, looks)
	}
}

// The goroutine of Start makes progress by itself, sleeps in between, and ends with Close.
func TestStartMakesProgress(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		before := runtime.NumGoroutine()
		var got atomic.Int32
		s.cfg.Spin = -1
		s.handle = func(*transport.Message) { got.Add(1) }
		l := newLink(t, s)
		must(t, l.b.w.Start())
		must(t, l.b.w.Start()) // a second time changes nothing
		sleeping(t, l.b.w, 1)
		for range 100 {
			for l.a.AMShort(1, nil, []byte("hello")) == transport.ErrNoResource {
				l.a.w.Progress()
				runtime.Gosched()
			}
		}
		for deadline := time.Now().Add(patience); got.Load() != 100; runtime.Gosched() {
			if l.a.w.Progress(); time.Now().After(deadline) {
				t.Fatalf("%d of 100 messages", got.Load())
			}
		}
		l.close()
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines, before there were %d", runtime.NumGoroutine(), before)
			}
		}
		if err := l.b.w.Start(); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("start after close: %v", err)
		}
	})
}

// One event of a NIC wakes one goroutine. What that one's progress does may be what another waits
// for, so it wakes the others: here the goroutine of Start, which began to sleep first, takes the
// event of a message, and a second one waits for what the message's handler does.
func TestProgressOfASleeperWakesTheOthers(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		var got atomic.Int32
		s.cfg.Spin, s.cfg.KeepAlive = -1, -1
		s.handle = func(*transport.Message) { got.Add(1) }
		l := newLink(t, s)
		must(t, l.b.w.Start())
		for i := range int32(20) {
			sleeping(t, l.b.w, 1)
			ended := make(chan error, 1)
			go func() { ended <- l.b.w.WaitFor(within(t), 0, func() bool { return got.Load() > i }) }()
			sleeping(t, l.b.w, 2)
			for l.a.AMShort(1, nil, []byte("wake up")) == transport.ErrNoResource {
				l.a.w.Progress() // not b's
				runtime.Gosched()
			}
			must(t, <-ended)
		}
	})
}

// One waiter leaves because its context ends; the other still waits and is woken.
func TestAWaiterThatLeavesTakesNoWakeUpAlong(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.Spin = -1
		l := newLink(t, s)
		for range 10 {
			stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP, Count: -1})
			comp := transport.NewCompletion(1, nil)
			if _, err := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 30000)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			left, ended := make(chan error, 1), make(chan error, 1)
			go func() { left <- l.a.w.Wait(ctx, comp) }()
			go func() { ended <- l.a.w.Wait(within(t), comp) }()
			sleeping(t, l.a.w, 2)
			go cancel()
			stall.Remove()
			if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			must(t, <-ended)
		}
	})
}

// Sleepers do not wake each other repeatedly: after an event that none of them waits for they sleep
// again.
func TestSleepersDoNotWakeEachOther(t *testing.T) {
	s := shapes()[1]
	s.cfg.Spin = -1
	l := newLink(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var looks atomic.Int32
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { _ = l.a.w.WaitFor(ctx, 0, func() bool { looks.Add(1); return false }) })
	}
	sleeping(t, l.a.w, 3)
	must(t, l.b.PutShort([]byte{1}, l.b.peer.At(0)))
	for range 10 {
		must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0))) // its completion is an event
	}
	time.Sleep(50 * time.Millisecond) // time for many looks, which a busy machine only makes fewer
	cancel()
	all.Wait()
	if n := looks.Load(); n > 2000 {
		t.Errorf("three goroutines that sleep looked %d times within 50 ms", n)
	}
}

// A completion that is waited for in two workers wakes both, whichever of them the operation
// belongs to and whichever began to wait first.
func TestACompletionSharedByTwoWorkers(t *testing.T) {
	s := shapes()[1]
	s.cfg.Spin = -1
	l := newLink(t, s)
	must(t, l.a.w.Start())
	must(t, l.b.w.Start())
	for round := range 8 {
		comp := transport.NewCompletion(1, nil)
		ended := make(chan error, 2)
		waiters := []*transport.Worker{l.a.w, l.b.w}
		if round%2 == 1 {
			waiters = []*transport.Worker{l.b.w, l.a.w}
		}
		for _, w := range waiters {
			sleeping(t, w, 1)
			go func() { ended <- w.Wait(within(t), comp) }()
			sleeping(t, w, 2)
		}
		if _, err := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 8)); err != nil {
			t.Fatal(err)
		}
		must(t, <-ended)
		must(t, <-ended)
	}
}

// A wait ends when the worker is closed.
func TestCloseEndsWaits(t *testing.T) {
	l := newLink(t, setup{cfg: transport.Config{Spin: -1}})
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- l.a.w.Wait(within(t), transport.NewCompletion(1, nil)) }()
	}
	sleeping(t, l.a.w, 2)
	must(t, l.a.w.Close())
	for range 2 {
		if err := <-ended; !errors.Is(err, transport.ErrClosed) {
			t.Error(err)
		}
	}
}

// A function that says when a wait is over may have effects, as an attempt to post something: it is
// not called again once it has said so, also if that is on the way to sleep.
func TestDoneIsNotCalledAgain(t *testing.T) {
	l := newLink(t, setup{cfg: transport.Config{Spin: -1}})
	for _, last := range []int{1, 2, 3, 4} {
		calls := 0
		must(t, l.a.w.WaitFor(within(t), time.Microsecond, func() bool { calls++; return calls == last }))
		if calls != last {
			t.Errorf("%d calls of a function that said at the %d. that the wait is over", calls, last)
		}
	}
}

// A goroutine that sleeps is woken by an abort of another one: of an endpoint that has no peer no
// NIC has anything to report.
func TestAnAbortWakesASleeper(t *testing.T) {
	s := shapes()[0]
	s.cfg.KeepAlive, s.cfg.Spin = -1, -1
	l := newLink(t, s)
	lone := newEndpoint(t, l.a.w, transport.EndpointConfig{Name: "nobody"})
	must(t, l.a.w.Start())
	sleeping(t, l.a.w, 1)
	done := make(chan error, 1)
	must(t, lone.Abort(transport.NewCompletion(1, func(c *transport.Completion) { done <- c.Err() })))
	select {
	case <-done:
	case <-within(t).Done():
		t.Error("the goroutine that sleeps was not woken")
	}
}

// A goroutine that sleeps until the NICs have an event is woken by a send that a NIC refuses for
// now: no event says when it takes work again.
func TestARefusedSendWakesASleeper(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, -1
	ready := false
	s.onReady = func(*transport.Endpoint) { ready = true }
	l := newLink(t, s)
	l.quiet()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.a.w.WaitFor(ctx, 0, func() bool { return ready }) }()
	sleeping(t, l.a.w, 1)
	time.Sleep(20 * time.Millisecond) // it polls once more before it sleeps
	refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Count: 1})
	if err := l.a.NotifyReady().AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Errorf("%v, with %d refusals", err, refusal.Hits())
	}
	if err := errors.Join(<-ended, ctx.Err()); err != nil {
		t.Errorf("OnReady is not called in time: %v", err) // the end of ctx wakes it, too
	}
}

// A completion that one worker alone waits for costs nothing until the NICs have an event: the
// goroutine sleeps once.
func TestAWaitInOneWorkerSleepsUntilAnEvent(t *testing.T) {
	w, dom, f := unreliableNICs(t, 1)
	worker, err := transport.NewWorker(dom, transport.Config{Spin: -1, KeepAlive: -1})
	must(t, err)
	w.workers = append(w.workers, worker)
	f.N, f.Only = 0, "arm"
	comp := transport.NewCompletion(1, nil)
	for range 2 {
		f.N = 0
		if err := worker.Wait(shortly(t), comp); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if f.N != 1 {
			t.Errorf("it has gone to sleep %d times within 50 ms", f.N)
		}
	}
}

// shortly is a context that ends in 50 ms.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// A peer that vanished is noticed even though nothing was on its way to it.
func TestKeepAliveNoticesAPeerThatVanished(t *testing.T) {
	for _, spin := range []time.Duration{-1, time.Hour} { // sleeping, and polling
		eachShape(t, func(t *testing.T, s setup) {
			var reported atomic.Int32
			s.cfg.Spin, s.cfg.KeepAlive = spin, time.Millisecond
			s.cfg.QP.Conn.Timeout, s.cfg.QP.Conn.RetryCount = 1, 1
			s.onError = func(_ *transport.Endpoint, err error) {
				if !errors.Is(err, transport.ErrPeerFailed) {
					t.Errorf("reported: %v", err)
				}
				reported.Add(1)
			}
			l := newLink(t, s)
			for _, nic := range l.b.nics {
				nic.Kill()
			}
			must(t, l.a.w.WaitFor(within(t), 0, func() bool { return reported.Load() == 1 }))
		})
	}
}

// rounds makes so many rounds of progress.
func rounds(w *transport.Worker, n int) {
	for range n {
		w.Progress()
	}
}

// Only connected endpoints are probed on which nothing has come since the last time, and nothing is
// on its way: nothing else has to be found out.
func TestWhoIsProbed(t *testing.T) {
	s := shapes()[0]
	s.cfg.KeepAlive = 1 // always due
	quiet := s.cfg
	quiet.KeepAlive = -1
	s.peer = &quiet
	l := newLink(t, s)
	w := l.a.w
	probes := func() uint64 { return w.Stats().Probes }
	fresh := newEndpoint(t, w, transport.EndpointConfig{})
	l.until("three probes", func() bool { return probes() >= 3 })
	if err := fresh.Err(); err != nil {
		t.Errorf("an endpoint that is not connected: %v", err)
	}
	// The completion of a probe is a sign of life: the next look passes over the endpoint.
	before := probes()
	rounds(w, 20*128)
	if n := probes() - before; n > 11 {
		t.Errorf("%d probes in 20 looks", n)
	}
	// What is outstanding finds out by itself whether the peer is there.
	stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP, Count: -1})
	must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
	before = probes()
	rounds(w, 10*128)
	if n := probes() - before; n != 0 {
		t.Errorf("%d probes beside a put", n)
	}
	stall.Remove()
	l.until("the put", func() bool { return l.a.Stats().Outstanding == 0 })
	must(t, l.a.Abort(nil))
	rounds(w, 10*128)
	if n := probes() - before; n > 11 {
		t.Errorf("%d probes of an endpoint that is closed", n)
	}
	must(t, fresh.Abort(nil))
}

// A new worker probes nobody before the interval is over.
func TestNobodyIsProbedEarly(t *testing.T) {
	s := shapes()[0]
	s.cfg.KeepAlive = time.Hour
	l := newLink(t, s)
	rounds(l.a.w, 3*128)
	if n := l.a.w.Stats().Probes; n != 0 {
		t.Errorf("%d probes within an hour", n)
	}
}

// Neither is an endpoint before it has been silent for the interval: the peer may still have to
// connect.
func TestANewEndpointIsNotProbedAtOnce(t *testing.T) {
	w := newWorld(t, soft.Config{Devices: 2})
	cfg := transport.Config{KeepAlive: 1} // always due
	a, b := w.worker(cfg, nil, w.fabric.Device(0)), w.worker(cfg, nil, w.fabric.Device(1))
	rounds(a, 2*128)
	one, other := newEndpoint(t, a, transport.EndpointConfig{}), newEndpoint(t, b, transport.EndpointConfig{})
	must(t, one.Connect(card(t, other)))
	for look, want := range []uint64{0, 1} {
		if rounds(a, 128); a.Stats().Probes != want {
			t.Errorf("%d probes after look %d, want %d", a.Stats().Probes, look, want)
		}
	}
	must(t, one.Abort(nil))
	must(t, other.Abort(nil))
}

// A goroutine that sleeps wakes when the next probe is due, and sends it then: it does not have to
// look a hundred times before each. It does so also where it has to look at its condition less
// often.
func TestASleeperProbes(t *testing.T) {
	for _, every := range []time.Duration{0, time.Hour} {
		s := shapes()[0]
		s.cfg.Spin, s.cfg.KeepAlive = -1, time.Millisecond
		l := newLink(t, s)
		looks := 0
		must(t, l.a.w.WaitFor(within(t), every, func() bool {
			looks++
			return l.a.w.Stats().Probes >= 3
		}))
		if looks > 100 {
			t.Errorf("%d looks until a silent peer is probed three times", looks)
		}
	}
}

// Where nobody is to be probed, a goroutine sleeps until something happens: with no endpoint, and
// with probes off.
func TestASleeperHasNothingToDo(t *testing.T) {
	for _, keepAlive := range []time.Duration{-1, 100 * time.Microsecond} {
		s := shapes()[0]
		s.cfg.Spin, s.cfg.KeepAlive = -1, keepAlive
		l := newLink(t, s)
		if keepAlive > 0 {
			must(t, l.a.Abort(nil))
			l.until("the endpoint is gone", func() bool { return l.a.w.Stats().Endpoints == 0 })
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		looks := 0
		err := l.a.w.WaitFor(ctx, 0, func() bool { looks++; return false })
		if !errors.Is(err, context.DeadlineExceeded) || looks > 8 {
			t.Errorf("keep-alive %v: %v, %d looks while nothing happens", keepAlive, err, looks)
		}
	}
}

// A silent peer is probed although another endpoint is busy.
func TestKeepAliveBesideOtherTraffic(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, 5*time.Millisecond
	l := newLink(t, s)
	busy, _ := l.another(transport.EndpointConfig{})
	// Few rounds of progress, and events more often than probes are due.
	for puts := 0; puts < 25 && l.a.w.Stats().Probes == 0; puts++ {
		next := time.Now().Add(2 * time.Millisecond)
		must(t, busy.PutShort([]byte{1}, busy.peer.At(0)))
		must(t, l.a.w.WaitFor(within(t), 2*time.Millisecond, func() bool { return time.Now().After(next) }))
	}
	if l.a.w.Stats().Probes == 0 {
		t.Error("the silent peer was not probed")
	}
}

// A probe that is refused for now is sent at its next turn, and no failure; one that is refused
// permanently fails the endpoint.
func TestProbesThatAreRefused(t *testing.T) {
	for _, err := range []error{verbs.ErrNoMemory, verbs.ErrNotSupported} {
		eachShape(t, func(t *testing.T, s setup) {
			var reported failures
			s.cfg.KeepAlive, s.cfg.Spin, s.onError = time.Millisecond, -1, reported.add
			l := newLink(t, s)
			closed, _ := l.another(transport.EndpointConfig{}) // leaves a free place behind
			must(t, closed.Abort(nil))
			refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Count: 2,
				Err: err})
			must(t, l.a.w.WaitFor(within(t), 0, func() bool {
				return len(reported) != 0 || verbs.IsTransient(err) && refusal.Hits() == 2 &&
					l.a.w.Stats().Probes != 0
			}))
			if verbs.IsTransient(err) {
				if len(reported) != 0 {
					t.Errorf("failures: %v", reported)
				}
				return
			}
			reported.only(t, err)
		})
	}
}
