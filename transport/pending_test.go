package transport_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

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

// Pending is accepted only when the endpoint is out of resources; otherwise ErrBusy, which means
// try the send again. The pair loses no wake-up: whatever resource is missing, and at whatever
// moment of the fabric, either the request is served or the send goes out.
func TestContract04SendPendingBusySendAgain(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		for _, op := range operations(func() {}) {
			for seed := range seeds(4) {
				s.stepped, s.seed, s.scramble = true, seed, true
				l := newLink(t, s)
				other, _ := l.another(transport.EndpointConfig{})
				if err := l.a.Pending(request(nil)); err != transport.ErrBusy {
					t.Fatalf("with all resources there: %v", err)
				}
				served, queued, busy := 0, 0, 0
				const rounds = 40
				for i := range rounds {
					_, _ = other.PutBcopy(pack([]byte{1}), other.peer.At(50000)) // takes what both share
					err := op.call(l.a, nil)
					if err == transport.ErrNoResource {
						p := request(func(head *transport.Endpoint) transport.Outcome {
							x := *l.a
							x.Endpoint = head
							o := outcome(t, op.call(&x, nil))
							if o == transport.PendingDone {
								served++
							}
							return o
						})
						if err = l.a.Pending(p); err == nil {
							queued++
							continue
						} else if err == transport.ErrBusy {
							busy++
							if err = op.call(l.a, nil); err == transport.ErrNoResource {
								t.Fatalf("%s: neither send nor Pending, with nothing in between", op.name)
							}
						}
					}
					must(t, err)
					for range i % 5 {
						l.progress()
					}
				}
				l.until(op.name+": every request is served", func() bool { return served == queued })
				if queued == 0 && s.cfg.MaxOutstanding == 2 {
					t.Errorf("%s: no resource was ever missing", op.name)
				}
				if s := l.a.Stats(); s.Pending != 0 {
					t.Errorf("%+v", s)
				}
				l.close()
			}
		}
	})
}

func TestContract04PendingRefusesWhatIsWrong(t *testing.T) {
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

// A request waits for what its own send lacked: one that waits for a buffer does not wait for a
// credit that an active message lacked meanwhile, nor the other way round.
func TestContract04ARequestWaitsForWhatItLacks(t *testing.T) {
	s := setup{cfg: transport.Config{AMBuffers: 2, BounceBuffers: 2}, stepped: true}
	var kept []*transport.Message
	s.handle = func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
	l := newLink(t, s)
	for range 2 {
		l.send(l.a, nil)
	}
	l.until("the peer keeps all credits", func() bool { return len(kept) == 2 })
	l.quiet()
	try(t, func(int) error { _, err := l.a.PutBcopy(pack([]byte{1}), l.a.peer.At(0)); return err })
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	ran := false
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		_, err := head.PutBcopy(pack([]byte{7}), l.a.peer.At(8))
		ran = err == nil
		return outcome(t, err)
	})))
	l.quiet()
	if !ran {
		t.Error("buffers are back, and the request that needs one still waits for a credit")
	}
	for _, m := range kept {
		m.Release()
	}
}

// A NIC that refuses a post for now, with nothing outstanding that could bring an event, loses no
// wake-up either.
func TestContract04ARefusalOfTheNICIsTriedAgain(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin = -1
	l := newLink(t, s)
	must(t, l.a.w.Start())
	l.until("the goroutine sleeps", func() bool { return l.a.w.Sleepers() == 1 })
	fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.RefuseSend, Count: 1})
	defer fault.Remove()
	if err := l.a.PutShort([]byte{1}, l.a.peer.At(0)); err != transport.ErrNoResource {
		t.Fatalf("%v", err)
	}
	comp := transport.NewCompletion(1, nil)
	err := l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		o := outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
		if o == transport.PendingDone {
			comp.Done(nil)
		}
		return o
	}))
	if err == transport.ErrBusy {
		return // the goroutine was faster
	}
	must(t, err)
	must(t, l.b.w.Wait(within(t), comp))
}

// While a request is pending on an endpoint, new sends on it keep returning ErrNoResource, even
// when resources are back. Other endpoints of the worker may send.
func TestContract05NothingOvertakesThePendingQueue(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		l.a.fill(t)
		allowed, ran := false, 0
		for range 3 {
			must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
				for _, op := range operations(func() { t.Error("packed for nothing") }) {
					if err := op.call(l.a, nil); err != transport.ErrNoResource {
						t.Errorf("%s beside the queue, while the function runs: %v", op.name, err)
					}
				}
				if !allowed {
					return transport.PendingNoResource
				}
				ran++
				return transport.PendingDone
			})))
		}
		for range 200 {
			l.progress()
		}
		if s := l.a.Stats(); s.Outstanding != 0 || s.Pending != 3 {
			t.Fatalf("resources are back: %+v", s)
		}
		for _, op := range operations(func() { t.Error("packed for nothing") }) {
			if err := op.call(l.a, nil); err != transport.ErrNoResource {
				t.Errorf("%s overtakes the queue: %v", op.name, err)
			}
		}
		if _, err := l.a.StartFlush(transport.FlushRemote, nil); err != transport.ErrNoResource {
			t.Errorf("a flush overtakes the queue: %v", err)
		}
		for _, op := range operations(func() {}) {
			l.until(op.name+" on another endpoint", func() bool { return op.call(other, nil) == nil })
		}
		allowed = true
		l.until("the queue is served", func() bool {
			_ = other.PutShort([]byte{1}, other.peer.At(0)) // any completion calls the function again
			return ran == 3
		})
		must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
	})
}

// A pending callback runs only inside progress, never inside a send, never on another thread. It
// returns: done (remove), made progress (keep, go to the next endpoint), no resource (keep, stop).
func TestContract06PendingFunctionsRunInsideProgress(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		inside := false // without a lock: the race detector reports another goroutine
		l.a.fill(t)
		var answers []transport.Outcome
		p := request(func(head *transport.Endpoint) transport.Outcome {
			if !inside {
				t.Error("a function runs outside of progress")
			}
			if head.Worker() != l.a.w || head.Name() != "peer b" {
				t.Error("head is a view of another endpoint")
			}
			o := []transport.Outcome{transport.PendingProgress, transport.PendingNoResource,
				transport.PendingProgress, transport.PendingDone}[len(answers)]
			answers = append(answers, o)
			return o
		})
		must(t, l.a.Pending(p))
		other, _ := l.another(transport.EndpointConfig{})
		for i := 0; len(answers) < 4; i++ {
			_ = l.a.PutShort([]byte{1}, l.a.peer.At(0))
			_ = other.PutShort([]byte{1}, l.a.peer.At(0))
			_ = l.a.Stats()
			l.fabric.Step()
			l.b.w.Progress()
			inside = true
			l.a.w.Progress()
			inside = false
			if i > 1<<16 {
				t.Fatalf("the function is not called any more: answered %v", answers)
			}
		}
		l.quiet()
		if len(answers) != 4 {
			t.Errorf("it was called again after done: %v", answers)
		}
	})
}

// A function may send on, or queue on, another endpoint, and queue itself anew.
func TestContract06PendingFunctionsReachOtherEndpoints(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		var log []string
		second := request(func(head *transport.Endpoint) transport.Outcome {
			err := head.PutShort([]byte{2}, other.peer.At(1))
			if err == nil {
				log = append(log, "other")
			}
			return outcome(t, err)
		})
		again := 3
		first := &transport.Pending{}
		first.Func = func(p *transport.Pending, head *transport.Endpoint) transport.Outcome {
			if p != first {
				t.Error("the function gets another request")
			}
			if again--; again == 2 {
				for {
					err := other.PutShort([]byte{3}, other.peer.At(2))
					if err == transport.ErrNoResource {
						break
					}
					must(t, err)
				}
				must(t, other.Pending(second))
			}
			log = append(log, "first")
			if again > 0 {
				must(t, head.Pending(p)) // behind the others; the outcome done does not remove it
			}
			return transport.PendingDone
		}
		l.a.fill(t)
		must(t, l.a.Pending(first))
		must(t, l.a.Pending(
			request(func(*transport.Endpoint) transport.Outcome {
				log = append(
					log, "behind")
				return transport.PendingDone
			})))
		l.until("all of it", func() bool { return len(log) == 5 })
		l.quiet()
		mine := slices.DeleteFunc(slices.Clone(log), func(s string) bool { return s == "other" })
		if fmt.Sprint(mine) != "[first behind first first]" || len(log) != 5 {
			t.Errorf("ran %v", log)
		}
	})
}

// Pending requests go before sends that a completion callback issues.
func TestContract08PendingGoesBeforeCallbacks(t *testing.T) {
	for seed := range seeds(20) {
		pendingGoesBeforeCallbacks(t, setup{cfg: transport.Config{BounceBuffers: 1}, stepped: true,
			seed: seed})
	}
}

func pendingGoesBeforeCallbacks(t *testing.T, s setup) {
	l := newLink(t, s)
	defer l.close()
	other, _ := l.another(transport.EndpointConfig{})
	dst := make([]byte, 8)
	var log []string
	comp := transport.NewCompletion(1, func(*transport.Completion) {
		_, err := other.PutBcopy(pack([]byte{1}), other.peer.At(0))
		log = append(log, fmt.Sprint("callback: ", err))
	})
	if _, err := other.GetBcopy(comp, dst, other.peer.At(0)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*end{other, l.a} { // the buffers that each has of its own
		n := try(t, func(int) error { _, err := e.PutBcopy(pack([]byte{1}), e.peer.At(0)); return err })
		if n != 2 {
			t.Fatalf("%d puts", n)
		}
	}
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		_, err := head.PutBcopy(pack([]byte{1}), l.a.peer.At(0))
		log = append(log, fmt.Sprint("pending: ", err))
		return outcome(t, err)
	})))
	l.until("both have run", func() bool { return len(log) == 2 })
	if log[0] != "pending: <nil>" || !strings.HasPrefix(log[1], "callback: ") {
		t.Errorf("seed %d: %q", s.seed, log)
	}
}

// NotifyReady: a send that meets ErrNoResource has the endpoint's OnReady called once resources are
// back.
func TestContract09WakingCallsOnReady(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		const messages = 30
		sent, calls := 0, 0
		var l *link
		send := func(ep *transport.Endpoint) {
			for sent < messages {
				if err := ep.PutShort([]byte{byte(sent)},
					l.a.peer.At(uint64(sent))); err == transport.ErrNoResource {
					return
				} else if err != nil {
					t.Error(err)
				}
				sent++
			}
		}
		s.onReady = func(ep *transport.Endpoint) { calls++; send(ep) }
		if s.cfg.MaxOutstanding == 0 {
			s.cfg.MaxOutstanding = 8
		}
		l = newLink(t, s)
		if n := l.a.fill(t); n != l.a.Stats().Limit {
			t.Fatal(n)
		}
		l.quiet()
		if calls != 0 {
			t.Error("OnReady was called for a send that was not on NotifyReady")
		}
		send(l.a.NotifyReady())
		if calls != 0 || l.a.Stats().Pending != 1 {
			t.Errorf("%d calls, %+v", calls, l.a.Stats())
		}
		if err := l.a.PutShort([]byte{1}, l.a.peer.At(0)); err != transport.ErrNoResource {
			t.Errorf("a send overtakes what waits: %v", err)
		}
		l.until("all messages are sent", func() bool { return sent == messages })
		l.quiet()
		for i := range messages {
			if l.b.mem[i] != byte(i) {
				t.Fatalf("message %d is not there", i)
			}
		}
		before := calls
		l.quiet()
		if calls != before || calls == 0 {
			t.Errorf("OnReady was called %d times, without a reason %d", calls, before)
		}
	})
}
