package transport_test

import (
	"errors"
	"runtime"
	"testing"

	"ibverbx/transport"
)

// leave ends a function by a panic or Goexit.
var leave = map[string]func(){
	"panic":  func() { panic("on purpose") },
	"goexit": runtime.Goexit,
}

// onItsOwn runs a function on a goroutine of its own, until it returns or leaves.
func onItsOwn(f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }()
		f()
	}()
	<-ended
}

// A callback that panics or calls Goexit leaves a worker that says so: nothing waits for ever, and
// Close gives everything back.
func TestACallbackThatLeavesKillsTheWorker(t *testing.T) {
	for how, leave := range leave {
		for where, prepare := range map[string]func(l *link, leave func()) *end{
			"handler": func(l *link, _ func()) *end {
				must(l.tb, l.b.AMShort(1, nil, nil))
				return l.a
			},
			"completion": func(l *link, leave func()) *end {
				comp := transport.NewCompletion(1, func(*transport.Completion) { leave() })
				_, err := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 8))
				must(l.tb, err)
				return l.a
			},
			"pending": func(l *link, leave func()) *end {
				l.a.fill(l.tb)
				must(l.tb, l.a.Pending(request(func(*transport.Endpoint) transport.Outcome {
					leave()
					return transport.PendingDone
				})))
				return l.a
			},
			"error": func(l *link, _ func()) *end {
				must(l.tb, l.b.Close(within(l.tb)))
				return l.a
			},
		} {
			t.Run(how+" in "+where, func(t *testing.T) {
				s := shapes()[1]
				s.onError = func(*transport.Endpoint, error) { leave() }
				l := newLink(t, s)
				other, _ := l.another(transport.EndpointConfig{})
				l.a.handler = leave
				e := prepare(l, leave)
				waits := make(chan error, 1)
				left := false
				onItsOwn(func() {
					defer func() { left = true }()
					l.until("the callback leaves", func() bool { return false })
				})
				if !left {
					t.Fatal("nothing left")
				}
				go func() { waits <- e.w.WaitFor(within(t), 0, func() bool { return false }) }()
				for what, err := range map[string]error{
					"wait":     <-waits,
					"send":     other.AMShort(1, nil, nil),
					"put":      e.PutShort([]byte{1}, e.peer.At(0)),
					"pending":  other.Pending(request(nil)),
					"flush":    other.Flush(within(t), transport.FlushLocal),
					"endpoint": newEndpointError(e.w),
					"start":    e.w.Start(),
					"handle":   e.w.Handle(9, func(*transport.Message) {}),
					"close":    other.Close(within(t)),
					"worker":   e.w.Close(),
				} {
					if !errors.Is(err, transport.ErrWorkerDead) && (where != "error" || what != "put") {
						t.Errorf("%s: %v", what, err)
					}
				}
				if n := e.w.Progress(); n != 0 {
					t.Errorf("a dead worker has made progress: %d", n)
				}
				if err := e.w.Close(); !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a second close: %v", err)
				}
				l.close() // checks that everything was given back
			})
		}
	}
}

// A goroutine that sleeps is woken, too, and Close does not wait for the callback that has left.
func TestSleepersLearnThatTheWorkerIsDead(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, -1
	block := make(chan struct{})
	s.handle = func(*transport.Message) { <-block; runtime.Goexit() }
	l := newLink(t, s)
	slept, closed := make(chan error, 1), make(chan error, 1)
	go func() { slept <- l.b.w.WaitFor(within(t), 0, func() bool { return false }) }()
	sleeping(t, l.b.w, 1)
	var other errChannel = make(chan error, 1)
	go other.run(func() error { return l.b.w.WaitFor(within(t), 0, func() bool { return false }) })
	sleeping(t, l.b.w, 2)
	must(t, l.a.AMShort(1, nil, nil)) // one of them wakes and runs the handler
	sleeping(t, l.b.w, 1)
	go func() { closed <- l.b.w.Close() }()
	close(block)
	var err error
	select { // the other one's channel gets nothing: it has left
	case err = <-slept:
	case err = <-other:
	}
	if !errors.Is(err, transport.ErrWorkerDead) && !errors.Is(err, transport.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := <-closed; !errors.Is(err, transport.ErrWorkerDead) {
		t.Errorf("close: %v", err)
	}
}

// errChannel gets what a function returns.
type errChannel chan error

func (c errChannel) run(f func() error) { c <- f() }

// A pack function that panics or calls Goexit changes nothing: its panic goes to the caller, the
// buffer is free, and the endpoint and its worker go on.
func TestAPackFunctionThatLeavesChangesNothing(t *testing.T) {
	for how, leave := range leave {
		t.Run(how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				l := newLink(t, s)
				pack := func([]byte) int { leave(); return 1 }
				for range 300 {
					onItsOwn(func() { _, _ = l.a.AMBcopy(1, nil, pack) })
					onItsOwn(func() { _, _ = l.a.PutBcopy(pack, l.a.peer.At(0)) })
				}
				if s := l.a.w.Stats(); s.BounceFree != s.BounceTotal || s.AMSent+s.Puts != 0 {
					t.Errorf("%+v", s)
				}
				l.send(l.a, []byte{1})
				l.until("a message", func() bool { return l.got == 1 })
			})
		})
	}
}

// A callback may leave Close itself. A second Close then gives everything back, as it does where
// the worker was dead before, and a third finds it closed.
func TestACallbackThatLeavesClose(t *testing.T) {
	for how, leave := range leave {
		t.Run(how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				l := newLink(t, s)
				other, _ := l.another(transport.EndpointConfig{})
				comp := transport.NewCompletion(1, func(*transport.Completion) { leave() })
				must(t, l.a.Abort(comp))
				returned := false
				onItsOwn(func() {
					_ = l.a.w.Close()
					returned = true
				})
				if returned {
					t.Fatal("the callback did not leave Close")
				}
				if err := other.PutShort([]byte{1}, other.peer.At(0)); err == nil {
					t.Error("an endpoint of a closed worker takes a put")
				}
				if err := l.a.w.Close(); !errors.Is(err, transport.ErrWorkerDead) {
					t.Errorf("a second close: %v", err)
				}
				if err := l.a.w.Close(); !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a third close: %v", err)
				}
				l.close() // checks that everything was given back
			})
		})
	}
}

// A handler may abort its own endpoint: what has arrived already is handled, nothing else, and the
// worker goes on.
func TestAHandlerAbortsItsEndpoint(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		gone := transport.NewCompletion(1, nil)
		calls := 0
		var ended []error
		s.handle = func(m *transport.Message) {
			if calls++; calls != 1 {
				return
			}
			if err := m.Endpoint().FetchAdd(
				transport.NewCompletion(1, func(c *transport.Completion) { ended = append(ended, c.Err()) }),
				nil, m.Endpoint().Value().(*end).peer.At(0), 1); err != nil {
				t.Error(err)
			}
			if err := m.Endpoint().Abort(gone); err != nil {
				t.Error(err)
			}
		}
		l := newLink(t, s)
		x, y := *l.a, *l.b
		x.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
		y.Endpoint = newEndpoint(t, l.b.w, transport.EndpointConfig{Value: &y})
		must(t, transport.Connect(x.Endpoint, y.Endpoint))
		y.peer = l.a.mr.Remote()
		for range 3 {
			must(t, x.AMShort(1, nil, []byte{1}))
		}
		l.until("the endpoint is gone", gone.Fired)
		if len(ended) != 1 {
			t.Errorf("%d completions of 1", len(ended))
		}
		before := calls
		l.send(l.a, nil)
		l.until("another endpoint's message", func() bool { return calls > before })
		l.until("it is given back", func() bool { return l.b.w.Stats().Endpoints == 1 })
		must(t, x.Abort(nil))
	})
}

func TestAnErrorHandlerAborts(t *testing.T) {
	var other *end
	reported, gone := 0, transport.NewCompletion(2, nil)
	s := setup{onError: func(ep *transport.Endpoint, _ error) {
		reported++
		if err := errors.Join(ep.Abort(gone), other.Abort(gone)); err != nil {
			t.Error(err)
		}
	}}
	l := newLink(t, s)
	other, _ = l.another(transport.EndpointConfig{})
	must(t, l.b.Close(within(t)))
	l.until("both are gone", gone.Fired)
	if reported != 1 || l.a.w.Stats().Endpoints != 0 {
		t.Errorf("reported %d times, %+v", reported, l.a.w.Stats())
	}
}

// A pending function may abort its own endpoint.
func TestAPendingFunctionAbortsItsEndpoint(t *testing.T) {
	l := newLink(t, setup{stepped: true, cfg: transport.Config{QP: shapes()[1].cfg.QP}})
	l.a.fill(t)
	gone := transport.NewCompletion(1, nil)
	runs := 0
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		if runs++; runs == 1 {
			if err := head.Abort(gone); err != nil {
				t.Error(err)
			}
		}
		return transport.PendingNoResource
	})))
	l.until("it is gone", gone.Fired)
	if runs != 2 {
		t.Errorf("the function ran %d times: once when it aborted, and once to learn of it", runs)
	}
}

// A completion function may use its completion again.
func TestACompletionIsReusedByItsFunction(t *testing.T) {
	l := newLink(t, setup{})
	var comp transport.Completion
	n := 0
	var again func(c *transport.Completion)
	again = func(c *transport.Completion) {
		if n++; n < 1000 {
			c.Init(1, again)
			if _, err := l.a.PutZcopy(c, l.a.peer.At(0), l.a.mr.Slice(0, 8)); err != nil {
				t.Error(err)
			}
		}
	}
	comp.Init(1, again)
	comp.Done(nil)
	l.until("a thousand puts", func() bool { return n == 1000 })
}

// A call that waits calls Idle where progress has found nothing to do, and not behind progress that
// did something.
func TestIdleIsCalledWhereNothingIsToDo(t *testing.T) {
	s := shapes()[1]
	s.stepped = true
	idle, looked, got := 0, 0, 0
	s.handle = func(*transport.Message) { got++ }
	var l *link
	peer := s.cfg
	peer.Idle = func() {
		if idle++; got != looked {
			t.Errorf("Idle is called behind progress that has handled message %d", got)
		}
		l.fabric.Step()
	}
	s.peer = &peer
	l = newLink(t, s)
	for range 5 {
		must(t, l.a.AMShort(1, nil, []byte("hello")))
	}
	must(t, l.b.w.WaitFor(within(t), 0, func() bool { looked = got; return got == 5 }))
	if idle == 0 {
		t.Error("Idle was not called")
	}
}

// Progress counts an endpoint that it has released as something done, and nothing afterwards.
func TestProgressCountsWhatItReleases(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{KeepAlive: -1}, nil, w.fabric.Device(0))
	for range 2 {
		must(t, newEndpoint(t, worker, transport.EndpointConfig{}).Abort(nil))
	}
	if n := worker.Progress(); n != 2 {
		t.Errorf("progress has done %d things: two endpoints were to be released", n)
	}
	if n := worker.Stats().Endpoints; n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
	if n := worker.Progress(); n != 0 {
		t.Errorf("progress has done %d things where nothing was to be done", n)
	}
}
