package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// outOfCredits is a link whose receiver has kept every buffer.
func outOfCredits(t *testing.T, cfg transport.Config) (l *link, kept *[]*transport.Message) {
	t.Helper()
	kept = new([]*transport.Message)
	s := setup{cfg: cfg}
	s.cfg.KeepAlive = -1 // nothing else may wake a goroutine
	s.handle = func(m *transport.Message) { m.Keep(); *kept = append(*kept, m) }
	l = newLink(t, s)
	buffers := l.b.w.Config().AMBuffers
	for range buffers {
		l.send(l.a, nil)
	}
	l.until("the peer keeps all credits", func() bool {
		return len(*kept) == buffers &&
			l.a.Stats().Outstanding == 0
	})
	t.Cleanup(func() {
		for _, m := range *kept {
			m.Release()
		}
	})
	return l, kept
}

// While Close waits for what is pending, the endpoint takes nothing new, and says that it is
// closed. A purge of what it waits for wakes it.
func TestAnEndpointThatClosesTakesNothingNew(t *testing.T) {
	l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	waits := request(func(*transport.Endpoint) transport.Outcome { return transport.PendingNoResource })
	must(t, l.a.Pending(waits))
	closed := make(chan error, 1)
	go func() { closed <- l.a.Close(within(t)) }()
	sleeping(t, l.a.w, 1)
	_, flush := l.a.StartFlush(transport.FlushLocal, nil)
	_, bcopy := l.a.PutBcopy(pack(nil), l.a.peer.At(0))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for call, err := range map[string]error{
		"am": l.a.AMShort(1, nil, nil), "put": l.a.PutShort([]byte{1}, l.a.peer.At(0)), "bcopy": bcopy,
		"start flush": flush, "bypass": l.a.BypassQueue().PutShort([]byte{1}, l.a.peer.At(0)),
		"pending": l.a.Pending(request(nil)), "flush": l.a.Flush(ctx, transport.FlushLocal),
		"close": l.a.Close(ctx),
	} {
		var op *transport.OpError
		if !errors.Is(err, transport.ErrClosed) || !errors.As(err, &op) || op.Peer != "peer b" {
			t.Errorf("%s: %v", call, err)
		}
	}
	l.a.Purge(func(req *transport.Pending) {
		if req != waits {
			t.Error("another request was queued")
		}
	})
	must(t, <-closed)
}

// Abort while another goroutine closes: Close returns that the endpoint was aborted.
func TestCloseSaysThatItWasAborted(t *testing.T) {
	l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		if head.AMShort(1, nil, nil) == transport.ErrNoResource {
			return transport.PendingNoResource
		}
		return transport.PendingDone
	})))
	closed := make(chan error, 1)
	go func() { closed <- l.a.Close(within(t)) }()
	sleeping(t, l.a.w, 1)
	must(t, l.a.Abort(nil))
	if err := <-closed; !errors.Is(err, transport.ErrCanceled) {
		t.Errorf("%v", err)
	}
}

// Close returns when its context ends, even while a callback holds progress up.
func TestCloseKeepsToItsContext(t *testing.T) {
	s := shapes()[0]
	block, blocked := make(chan struct{}), make(chan struct{})
	s.handle = func(*transport.Message) { close(blocked); <-block }
	l := newLink(t, s)
	must(t, l.b.w.Start())
	must(t, l.a.AMShort(1, nil, nil))
	<-blocked
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := l.b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(block)
}

// Two ends that agree to close at the same moment both end well.
func TestBothEndsClose(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		for range 10 {
			l := newLink(t, s)
			must(t, l.a.w.Start())
			must(t, l.b.w.Start())
			ended := make(chan error, 2)
			for _, e := range []*end{l.a, l.b} {
				go func() { ended <- e.Close(within(t)) }()
			}
			must(t, <-ended)
			must(t, <-ended)
			l.close()
		}
	})
}

// Workers and endpoints without a peer close, too.
func TestUnconnectedEndpointsClose(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	for i := range 4 {
		ep := newEndpoint(t, worker, transport.EndpointConfig{})
		if want := fmt.Sprintf("endpoint %d", i); ep.Name() != want {
			t.Errorf("%q, not %q", ep.Name(), want)
		}
	}
	must(t, newEndpoint(t, worker, transport.EndpointConfig{}).Close(within(t)))
	must(t, worker.Flush(within(t), transport.FlushRemote))
	must(t, worker.Close())
}

// A worker closes with everything in flight: every completion fires, every pending function is
// called once more, kept messages stay readable.
func TestWorkerCloseWithEverythingInFlight(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		var kept []*transport.Message
		s.handle = func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
		l := newLink(t, s)
		l.send(l.a, []byte("keep me"))
		l.until("a message is kept", func() bool { return len(kept) == 1 })
		for _, nic := range l.a.nics {
			defer l.fabric.Inject(soft.Fault{Device: nic, Kind: soft.StallQP, Count: -1}).Remove()
		}
		var ended []error
		n := outstandingOf(t, l.a, &ended)
		l.a.fill(t)
		learned := 0
		must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
			if err := head.PutShort([]byte{1}, l.a.peer.At(0)); errors.Is(err, transport.ErrClosed) {
				learned++
			}
			return transport.PendingNoResource
		})))
		must(t, l.a.w.Close())
		if len(ended) != n || learned != 1 {
			t.Errorf("%d of %d completions, %d of 1 requests", len(ended), n, learned)
		}
		for i, err := range ended {
			if !errors.Is(err, transport.ErrClosed) || !errors.Is(err, os.ErrClosed) {
				t.Errorf("completion %d: %v", i, err)
			}
		}
		must(t, l.b.w.Close())
		if got := string(kept[0].Data()); got != "keep me" {
			t.Errorf("the kept message reads %q", got)
		}
		kept[0].Release()
		for name, err := range map[string]error{
			"close": l.a.w.Close(), "handle": l.a.w.Handle(2, func(*transport.Message) {}),
			"start": l.a.w.Start(),
			"endpoint": func() error {
				_,
					err := l.a.w.NewEndpoint(transport.EndpointConfig{})
				return err
			}(),
		} {
			if !errors.Is(err, transport.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := l.a.w.Progress(); n != 0 {
			t.Errorf("progress of a closed worker: %d", n)
		}
	})
}

// Close races with progress on other goroutines, with the peer's Close, and with itself.
func TestWorkerCloseRaces(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		for i := range 20 {
			l := newLink(t, s)
			if i%2 == 0 {
				must(t, l.a.w.Start())
				must(t, l.b.w.Start())
			}
			var all sync.WaitGroup
			begin := make(chan struct{})
			run := func(f func()) { all.Go(func() { <-begin; f() }) }
			for _, e := range []*end{l.a, l.b} {
				run(func() {
					for range 50 {
						_ = e.AMShort(1, nil, []byte("hello"))
						e.w.Progress()
					}
				})
				run(func() { _ = e.Close(within(t)) })
				run(func() { _ = e.Flush(within(t), transport.FlushRemote) })
				run(func() { _ = e.w.Close() })
				run(func() { _ = e.w.Close() })
			}
			close(begin)
			all.Wait()
			l.close()
		}
	})
}

// outstandingOf starts one operation of every kind that takes a completion, as far as resources go,
// and counts how they end.
func outstandingOf(t *testing.T, e *end, ended *[]error) (n int) {
	t.Helper()
	for _, op := range operations(func() {}) {
		if !op.comp {
			continue
		}
		err := op.call(e, transport.NewCompletion(
			1, func(c *transport.Completion) { *ended = append(*ended, c.Err()) }))
		if err == nil {
			n++
		} else if err != transport.ErrNoResource {
			t.Fatal(err)
		}
	}
	return n
}

// An abort cancels operations that do not end by themselves: because their queue pairs stand still,
// or because the CQ dies meanwhile. The planted bug "cancelled operations end well" reports those
// as successful; in the game hardly any world has a CQ that dies so late.
func TestAbortOfWhatDoesNotEnd(t *testing.T) {
	for _, dies := range []bool{false, true} {
		each(t, func(t *testing.T, s setup) {
			l := newLink(t, s)
			for _, nic := range l.a.nics {
				stall := l.fabric.Inject(soft.Fault{Device: nic, Kind: soft.StallQP, Count: -1})
				defer stall.Remove()
			}
			snapshot := bytes.Clone(l.b.mem)
			var ended []error
			n := outstandingOf(t, l.a, &ended)
			gone := transport.NewCompletion(1, nil)
			for _, nic := range l.a.nics {
				if dies { // by the first flushed operation
					l.fabric.Inject(soft.Fault{Kind: soft.OverrunCQ, Device: nic})
				}
			}
			must(t, l.a.Abort(gone))
			must(t, l.a.w.Wait(within(t), gone))
			for i, err := range ended {
				if !errors.Is(err, transport.ErrCanceled) {
					t.Errorf("completion %d of %d: %v", i, n, err)
				}
			}
			if len(ended) != n || n == 0 {
				t.Errorf("%d completions of %d operations", len(ended), n)
			}
			l.quiet()
			landed(t, "memory", l.b.mem, snapshot)
		})
	}
}

// An abort ends however busy other endpoints keep the worker.
func TestAbortEndsOnABusyWorker(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		busy, _ := l.another(transport.EndpointConfig{})
		gone := transport.NewCompletion(1, nil)
		must(t, l.a.Abort(gone))
		for i := 0; !gone.Fired(); i++ {
			must(t, busy.PutShort([]byte{1}, busy.peer.At(0)))
			if l.a.w.Progress(); i == 1000 {
				t.Fatal("the abort waits for a moment at which nothing happens")
			}
		}
	})
}

// endedContext is a context that was canceled, and does something when it is asked.
type endedContext struct {
	context.Context

	asked func()
}

func (c *endedContext) Err() error {
	c.asked()
	return context.Canceled
}

// Whatever aborts an endpoint, the peer is told, although the message that says so takes its time:
// where nobody is probed, it would not find out otherwise. What was sent before arrives first.
func TestPeersAreToldOfAnAbort(t *testing.T) {
	slow := soft.Fault{Kind: soft.Delay, Delay: 5 * time.Millisecond, Count: -1}
	held := soft.Fault{Kind: soft.StallQP, Count: -1} // until Close has seen that its context has ended
	shut := func(e *end, held *soft.Injection) {
		ended := &endedContext{context.Background(), held.Remove}
		err := e.Close(ended)
		if !errors.Is(err, context.Canceled) || !errors.Is(e.Err(), transport.ErrCanceled) {
			t.Errorf("%v; the endpoint says %v", err, e.Err())
		}
	}
	for _, c := range []struct {
		how   string
		fault soft.Fault
		abort func(*end, *soft.Injection)
		busy  bool // a put is outstanding; Close waits for it before it says goodbye
		told  error
	}{
		{"abort", slow, func(e *end, _ *soft.Injection) { _ = e.Abort(nil) }, true, transport.ErrPeerAborted},
		{"worker", slow, func(e *end, _ *soft.Injection) { _ = e.w.Close() }, true, transport.ErrPeerAborted},
		{"close that is cut short", held, shut, true, transport.ErrPeerAborted},
		{"close that is cut short behind its goodbye", held, shut, false, transport.ErrPeerClosed},
	} {
		t.Run(c.how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				s.cfg.KeepAlive = -1
				s.onError = func(_ *transport.Endpoint, err error) { t.Errorf("this end: %v", err) }
				l := newLink(t, s)
				l.a.w.SetAbortPatience(patience) // a busy machine may be late by more than the usual
				fault := l.fabric.Inject(c.fault)
				defer fault.Remove()
				if c.busy {
					must(t, l.a.AMShort(1, nil, []byte("the last")))
					must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
				}
				c.abort(l.a, fault)
				l.until("the peer is told", func() bool { return l.b.Err() != nil })
				if err := l.b.Err(); !errors.Is(err, c.told) ||
					errors.Is(c.told, transport.ErrPeerAborted) != errors.Is(err, transport.ErrPeerFailed) {
					t.Errorf("%v", err)
				}
				if c.busy && l.got != 1 {
					t.Error("the message that was sent before has not arrived")
				}
			})
		})
	}
}
