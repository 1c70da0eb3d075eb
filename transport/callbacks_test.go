package transport_test

import (
	"errors"
	"fmt"
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

func newEndpointError(w *transport.Worker) error {
	_, err := w.NewEndpoint(transport.EndpointConfig{})
	return err
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

// When the peer has failed, the error handler runs first: requests that are pending are still in
// the queue, and a purge there gets them. Those that it leaves run once more.
func TestContract14OnErrorComesBeforePendingFunctions(t *testing.T) {
	for _, purge := range []bool{true, false} {
		t.Run(fmt.Sprintf("purge %v", purge), func(t *testing.T) {
			each(t, func(t *testing.T, s setup) {
				s.cfg.QP.Linger = -1
				var log []string
				s.onError = func(ep *transport.Endpoint, _ error) {
					log = append(log, "error")
					if purge {
						ep.Purge(func(*transport.Pending) { log = append(log, "purged") })
					}
				}
				l := newLink(t, s)
				must(t, l.b.w.Start())
				l.a.fill(t)
				for range 3 {
					must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
						if len(log) != 0 || l.a.Err() != nil {
							log = append(log, "ran")
						}
						return transport.PendingNoResource
					})))
				}
				if err := l.b.Abort(nil); err != nil {
					t.Fatal(err)
				}
				l.until("the end of it", func() bool { return len(log) >= 4 })
				l.quiet()
				want := "[error ran ran ran]"
				if purge {
					want = "[error purged purged purged]"
				}
				if fmt.Sprint(log) != want {
					t.Errorf("%v, not %s", log, want)
				}
			})
		})
	}
}

// Abort, and a Close that becomes one, tell the peer: it is notified at once, without retries or
// probes. What was sent before has arrived.
func TestAbortTellsThePeer(t *testing.T) {
	for how, end := range map[string]func(l *link) error{
		"abort":        func(l *link) error { return l.a.Abort(nil) },
		"worker close": func(l *link) error { return l.a.w.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				s.cfg.KeepAlive = -1
				var reported []error
				s.onError = func(_ *transport.Endpoint, err error) { t.Errorf("this end: %v", err) }
				l := newLink(t, s)
				x, y := *l.a, *l.b
				x.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
				y.Endpoint = newEndpoint(t, l.b.w, transport.EndpointConfig{Name: "the victim",
					OnError: func(_ *transport.Endpoint, err error) { reported = append(reported, err) }})
				must(t, transport.Connect(x.Endpoint, y.Endpoint))
				must(t, x.AMShort(1, nil, []byte("the last")))
				l.a.Endpoint, x.Endpoint = x.Endpoint, l.a.Endpoint
				must(t, end(l))
				l.until("the peer learns", func() bool { return len(reported) == 1 })
				if err := reported[0]; !errors.Is(err, transport.ErrPeerFailed) ||
					!errors.Is(err, transport.ErrPeerAborted) {
					t.Errorf("%v", err)
				}
				if l.got != 1 {
					t.Errorf("%d messages of 1", l.got)
				}
				l.quiet()
				if len(reported) != 1 {
					t.Errorf("%v", reported)
				}
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

// A handler may send, on its own endpoint and on others, and reply to its message.
func TestHandlersSend(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped, s.scramble = true, true
		var l *link
		pongs := 0
		var other *end
		refused := 0
		s.handle = func(m *transport.Message) {
			pongs++
			answer := func(ep *transport.Endpoint) transport.Outcome {
				err := ep.PutShort([]byte{byte(pongs)}, l.b.peer.At(0))
				if err == transport.ErrNoResource {
					refused++
				}
				return outcome(t, err)
			}
			if answer(m.Endpoint()) == transport.PendingNoResource {
				if err := m.Endpoint().Pending(request(answer)); err != nil && err != transport.ErrBusy {
					t.Error(err)
				}
			}
			if n := l.b.w.Progress(); n != 0 {
				t.Errorf("progress inside of a handler did %d things", n)
			}
			if err := other.AMShort(1, nil, nil); err != nil && err != transport.ErrNoResource {
				t.Error(err)
			}
		}
		l = newLink(t, s)
		_, other = l.another(transport.EndpointConfig{})
		for range 100 {
			l.send(l.a, []byte{1})
		}
		l.until("all messages", func() bool { return pongs == 100 })
		l.quiet()
	})
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

// A handler may release messages of other endpoints, purge, and queue requests; an error handler
// may abort others.
func TestCallbacksReachOtherEndpoints(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped, s.scramble = true, true
		var kept []*transport.Message
		s.handle = func(m *transport.Message) {
			m.Keep()
			kept = append(kept, m)
			if len(kept) > 1 { // a message of whichever endpoint came first
				kept[0].Release()
				kept = kept[1:]
			}
			m.Endpoint().Purge(func(*transport.Pending) {})
		}
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		for range 50 {
			l.send(l.a, nil)
			l.send(other, nil)
		}
		l.quiet()
		if got := l.b.w.Stats().AMReceived; got != 100 {
			t.Errorf("%d of 100 messages", got)
		}
		for _, m := range kept {
			m.Release()
		}
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
