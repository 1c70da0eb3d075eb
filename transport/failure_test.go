package transport_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

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
func TestContract12AbortEndsOnABusyWorker(t *testing.T) {
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

// Whatever aborts an endpoint, the peer is told, although the message that says so takes its time:
// where nobody is probed, it would not find out otherwise. What was sent before arrives first.
func TestPeersAreToldOfAnAbort(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	shut := func(e *end) {
		if err := e.Close(ended); !errors.Is(err, context.Canceled) || !errors.Is(e.Err(), transport.ErrCanceled) {
			t.Errorf("%v; the endpoint says %v", err, e.Err())
		}
	}
	for _, c := range []struct {
		how   string
		abort func(e *end)
		busy  bool // a put is outstanding; Close waits for it before it says goodbye
		told  error
	}{
		{"abort", func(e *end) { _ = e.Abort(nil) }, true, transport.ErrPeerAborted},
		{"worker", func(e *end) { _ = e.w.Close() }, true, transport.ErrPeerAborted},
		{"close that is cut short", shut, true, transport.ErrPeerAborted},
		{"close that is cut short behind its goodbye", shut, false, transport.ErrPeerClosed},
	} {
		t.Run(c.how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				s.cfg.KeepAlive = -1
				s.onError = func(_ *transport.Endpoint, err error) { t.Errorf("this end: %v", err) }
				l := newLink(t, s)
				l.a.w.SetAbortPatience(patience) // a busy machine may be late by more than the usual
				slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 5 * time.Millisecond, Count: -1})
				defer slow.Remove()
				if c.busy {
					must(t, l.a.AMShort(1, nil, []byte("the last")))
					must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
				}
				c.abort(l.a)
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
