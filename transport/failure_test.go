package transport_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
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

// Forced close: every outstanding operation completes once with ErrCanceled, and no cancelled write
// lands in memory after that was reported.
func TestContract12AbortCancelsWhatIsOutstanding(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		if s.single() {
			t.Skip("a single queue pair waits for its NIC to flush: see " +
				"TestContract12AbortOfAStalledQueuePair")
		}
		for steps := range int(seeds(40)) {
			s.stepped, s.scramble, s.seed = true, true, uint64(steps)
			s.onError = func(_ *transport.Endpoint, err error) {
				t.Errorf("the error handler was called for an abort by the program: %v", err)
			}
			l := newLink(t, s)
			var ended []error
			n := outstandingOf(t, l.a, &ended)
			runs := 0
			if err := l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
				if err := head.PutShort([]byte{1}, l.a.peer.At(0)); !errors.Is(err, transport.ErrNoResource) {
					runs++
					if err != nil && !errors.Is(err, transport.ErrCanceled) {
						t.Error(err)
					}
					return transport.PendingDone
				}
				return transport.PendingNoResource
			})); err == transport.ErrBusy {
				runs++
			}
			l.fabric.Run(steps)
			l.a.w.Progress()
			early := len(ended)
			last := false
			must(t, l.a.Abort(transport.NewCompletion(1, func(*transport.Completion) { last = true })))
			if len(ended) != early {
				t.Error("completions fired inside Abort")
			}
			for rounds := 0; !last; rounds++ {
				if l.a.w.Progress(); rounds > 100 {
					t.Fatal("the abort does not end by progress alone")
				}
			}
			if len(ended) != n || runs != 1 {
				t.Fatalf("%d of %d completions, and %d of 1 pending requests, came before that of the abort",
					len(ended), n, runs)
			}
			snapshot := bytes.Clone(l.b.mem)
			l.fabric.Run(1 << 16)
			l.b.w.Progress()
			landed(t, "memory after the last completion", l.b.mem, snapshot)
			for i, err := range ended {
				if i >= early && err != nil && !errors.Is(err, transport.ErrCanceled) {
					t.Errorf("completion %d: %v", i, err)
				}
			}
			if len(ended) != n {
				t.Errorf("%d completions of %d operations", len(ended), n)
			}
			if err := l.a.PutShort([]byte{1}, l.a.peer.At(0)); !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("a send after the abort: %v", err)
			}
			if s := l.a.w.Stats(); s.BounceFree != s.BounceTotal || s.Endpoints != 0 || s.Failures != 0 {
				t.Errorf("%+v", s)
			}
			l.close()
		}
	})
}

func TestContract12AbortOfAStalledQueuePair(t *testing.T) {
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
		must(t, l.a.Abort(gone))
		must(t, l.a.w.Wait(within(t), gone))
		if len(ended) != n {
			t.Fatalf("%d of %d", len(ended), n)
		}
		for i, err := range ended {
			if !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("completion %d: %v", i, err)
			}
		}
		l.quiet()
		landed(t, "memory", l.b.mem, snapshot)
		if err := l.a.Abort(nil); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("a second abort: %v", err)
		}
	})
}

// An abort cancels operations whose completions never come because the CQ dies meanwhile. The
// planted bug "cancelled operations end well" reports them as successful; in the game hardly any
// world has a CQ that dies so late.
func TestContract12AbortOverADyingCQ(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		for _, nic := range l.a.nics {
			stall := l.fabric.Inject(soft.Fault{Device: nic, Kind: soft.StallQP, Count: -1})
			defer stall.Remove()
		}
		var ended []error
		n := outstandingOf(t, l.a, &ended)
		gone := transport.NewCompletion(1, nil)
		for _, nic := range l.a.nics {
			l.fabric.Inject(soft.Fault{Kind: soft.OverrunCQ, Device: nic}) // by the first flushed operation
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
	})
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

// A normal close flushes first, and sends the peer a goodbye.
func TestContract12CloseFlushesFirst(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		other, peer := l.another(transport.EndpointConfig{})
		must(t, l.b.w.Start())
		var ended []error
		n := outstandingOf(t, l.a, &ended)
		served := false
		sent := l.a.fill(t)
		err := l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
			_, err := head.PutZcopy(nil, l.a.peer.At(40000), l.a.mr.Slice(40000, 10000))
			served = err == nil
			return outcome(t, err)
		}))
		must(t, l.a.Close(within(t)))
		if len(ended) != n || errors.Join(ended...) != nil {
			t.Errorf("%d of %d completions: %v", len(ended), n, errors.Join(ended...))
		}
		if err == nil {
			if !served {
				t.Error("the queue was not served")
			}
			landed(t, "what the queue sent", l.b.mem[40000:50000], l.a.mem[40000:50000])
		}
		if sent != 0 && l.b.mem[60000+sent-1] != byte(sent-1) {
			t.Error("a put was lost")
		}
		allRefused(t, l.a, transport.ErrClosed)
		must(t, l.b.w.WaitFor(within(t), 0, func() bool { return l.b.Err() != nil }))
		if !errors.Is(l.b.Err(), transport.ErrPeerClosed) {
			t.Errorf("the peer: %v", l.b.Err())
		}
		must(t, l.b.Close(within(t)))
		must(t, other.PutShort([]byte{1}, other.peer.At(0)))
		must(t, other.Flush(within(t), transport.FlushRemote))
		must(t, peer.Err())
	})
}

// allRefused demands that all calls that send are refused for a reason.
func allRefused(t *testing.T, e *end, reason error) {
	t.Helper()
	comp := transport.NewCompletion(1, nil)
	calls := append(operations(func() { t.Error("packed for nothing") }), operation{name: "flush",
		call: func(e *end, comp *transport.Completion) error {
			return only(e.StartFlush(transport.FlushLocal, comp))
		}})
	for _, op := range calls {
		if err := op.call(e, comp); !errors.Is(err, reason) || comp.Fired() {
			t.Errorf("%s: %v, fired %v", op.name, err, comp.Fired())
		}
	}
}

// A peer failure reaches the endpoint's error handler once, all its operations complete with an
// error, other endpoints go on.
func TestContract14APeerFailureIsReportedOnce(t *testing.T) {
	for name, strike := range map[string]func(l *link) soft.Fault{
		"fail send": func(l *link) soft.Fault {
			return soft.Fault{Device: l.a.nics[0],
				Kind: soft.FailSend}
		},
		"fail after data": func(l *link) soft.Fault {
			return soft.Fault{Device: l.a.nics[0],
				Kind: soft.FailAfterData}
		},
		"fail qp": func(l *link) soft.Fault {
			return soft.Fault{Device: l.a.nics[0],
				Kind: soft.FailQP}
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s setup) {
				var reported []error
				s.cfg.QP.Linger = -1
				s.onError = func(ep *transport.Endpoint, err error) {
					if reported = append(reported, err); ep.Name() != "peer b" || !errors.Is(err, ep.Err()) {
						t.Errorf("%s: %v, Err says %v", ep.Name(), err, ep.Err())
					}
				}
				l := newLink(t, s)
				other, _ := l.another(
					transport.EndpointConfig{OnError: func(_ *transport.Endpoint,
						err error) {
						t.Errorf("another endpoint: %v", err)
					}})
				l.flushed(l.a)
				fault := l.fabric.Inject(strike(l))
				defer fault.Remove()
				var ended []error
				n := outstandingOf(t, l.a, &ended)
				l.until("the error handler", func() bool { return len(reported) != 0 })
				l.until("every completion", func() bool { return len(ended) == n })
				l.quiet()
				allRefused(t, l.a, transport.ErrPeerFailed)
				failed := 0
				for i, err := range ended {
					if err != nil {
						if failed++; !errors.Is(err, transport.ErrPeerFailed) {
							t.Errorf("completion %d: %v", i, err)
						}
					} else if failed != 0 {
						t.Errorf("completion %d ended well behind one that failed", i)
					}
				}
				var cause *ibverbx.FailedError
				if len(reported) != 1 || !errors.Is(reported[0], transport.ErrPeerFailed) ||
					!errors.As(reported[0], &cause) || failed == 0 {
					t.Errorf("reported %v; %d of %d failed", reported, failed, n)
				}
				must(t, other.PutShort([]byte("on"), other.peer.At(0)))
				l.flushed(other)
				if string(l.b.mem[:2]) != "on" {
					t.Error("the other endpoint's put is not there")
				}
				must(t, l.a.Close(within(t))) // releases what it holds
				if s := l.a.w.Stats(); s.Failures != 1 || s.BounceFree != s.BounceTotal {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// When a NIC dies, every endpoint on it fails, on both sides, and no wait hangs.
func TestContract14ANICDies(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		for side := range 2 {
			reported := 0
			s.cfg.QP.Linger = -1
			s.cfg.QP.Conn.Timeout, s.cfg.QP.Conn.RetryCount = 1, 1
			s.onError = func(*transport.Endpoint, error) { reported++ }
			l := newLink(t, s)
			other, _ := l.another(transport.EndpointConfig{OnError: s.onError})
			var ended []error
			n := outstandingOf(t, l.a, &ended) + outstandingOf(t, other, &ended)
			[]*end{l.a, l.b}[side].nics[0].Kill()
			l.until("both are reported", func() bool {
				for _, e := range []*end{l.a, other} {
					// an end that sends nothing does not notice
					_, _ = e.PutZcopy(nil, e.peer.At(0), e.mr.Slice(0, overlapping(60000)))
				}
				return reported == 2
			})
			l.until("all ends", func() bool { return len(ended) == n })
			l.close()
		}
	})
}

// Pending requests of an endpoint that has failed run once more, and their sends fail.
func TestContract14PendingRequestsLearnOfTheFailure(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.cfg.QP.Linger = -1
		l := newLink(t, s)
		stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP, Count: -1})
		l.a.fill(t)
		var answers []error
		for range 3 {
			must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
				err := head.PutShort([]byte{1}, l.a.peer.At(0))
				if answers = append(answers, err); err != transport.ErrNoResource {
					return transport.PendingDone
				}
				return transport.PendingNoResource
			})))
		}
		fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailQP, Count: -1})
		defer fault.Remove()
		stall.Remove()
		l.until("all have run", func() bool { return len(answers) >= 3 && l.a.Stats().Pending == 0 })
		l.quiet()
		ended := 0
		for i, err := range answers {
			if err != transport.ErrNoResource {
				ended++
			}
			if i > 0 && err == nil && answers[i-1] != nil {
				t.Error("a send went out behind one that failed")
			}
		}
		if last := answers[len(answers)-1]; ended != 3 || !errors.Is(last, transport.ErrPeerFailed) {
			t.Errorf("%d of 3 ended, the last with %v", ended, last)
		}
	})
}

// Whatever aborts an endpoint, the peer is told, although the message that says so takes its time:
// where nobody is probed, it would not find out otherwise.
func TestPeersAreToldOfAnAbort(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	shut := func(e *end) {
		if err := e.Close(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
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
			s := shapes()[1]
			s.cfg.KeepAlive = -1
			l := newLink(t, s)
			l.a.w.SetAbortPatience(patience) // a busy machine may be late by more than the usual
			slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 30 * time.Millisecond, Count: -1})
			defer slow.Remove()
			if c.busy {
				must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
			}
			c.abort(l.a)
			l.until("the peer is told", func() bool { return l.b.Err() != nil })
			if err := l.b.Err(); !errors.Is(err, c.told) {
				t.Errorf("%v", err)
			}
		})
	}
}
