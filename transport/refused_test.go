package transport_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// failures collects what an endpoint's OnError is called with.
type failures []error

func (f *failures) add(_ *transport.Endpoint, err error) { *f = append(*f, err) }

// only demands that there was one failure, of the queue pair and for this reason.
func (f failures) only(t *testing.T, reason error) {
	t.Helper()
	var e *transport.EndpointError
	if len(f) != 1 || !errors.Is(f[0], transport.ErrPeerFailed) || !errors.Is(f[0], reason) ||
		!errors.As(f[0], &e) || e.Cause == nil || !strings.Contains(f[0].Error(), reason.Error()) {
		t.Errorf("failures: %v; want one with %v", []error(f), reason)
	}
}

// carrierOf is the number of the queue pair on which an endpoint takes messages.
func carrierOf(t *testing.T, e *end) uint32 {
	t.Helper()
	c := card(t, e.Endpoint).QP
	if c.NotifyQPNum != 0 && c.Scheme == ibverbx.DQPLB.String() {
		return c.NotifyQPNum
	}
	return c.QPNums[0]
}

// A NIC that refuses receives for now gets them later, and no message is lost.
func TestReceivesThatAreRefusedForNow(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.cfg.QP.Conn.RNRRetry = verbs.RNRRetryForever // however late this end is with the others
		l := newLink(t, s)
		refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.b.nics[0],
			QPNum: carrierOf(t, l.b), Count: 5})
		sent := 0
		for ; sent < 500 && refusal.Hits() < 5 || sent < 20; sent++ {
			l.send(l.a, []byte("again"))
		}
		l.until("all have arrived", func() bool { return l.got == sent })
		if refusal.Hits() != 5 {
			t.Errorf("%d receives were refused", refusal.Hits())
		}
	})
}

// A NIC that refuses receives permanently fails the endpoint, once, and no other one of the worker.
func TestReceivesThatAreRefusedPermanently(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		var reported failures
		x, y := *l.a, *l.b
		x.Endpoint = newEndpoint(t, x.w, transport.EndpointConfig{Name: "b"})
		y.Endpoint = newEndpoint(t, y.w, transport.EndpointConfig{Name: "a", OnError: reported.add})
		must(t, transport.Connect(x.Endpoint, y.Endpoint))
		l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: y.nics[0], QPNum: carrierOf(t, &y),
			Count: -1, Err: verbs.ErrNotSupported})
		l.until("the endpoint fails", func() bool {
			_ = x.AMShort(1, nil, []byte("x"))
			return len(reported) != 0
		})
		l.quiet()
		reported.only(t, verbs.ErrNotSupported)
		if err := y.AMShort(1, nil, nil); !errors.Is(err, transport.ErrPeerFailed) {
			t.Errorf("a send behind it: %v", err)
		}
		got := l.got
		l.send(l.a, []byte("on"))
		l.until("the other endpoint's message", func() bool { return l.got == got+1 })
		must(t, y.Abort(nil))
		must(t, x.Abort(nil))
	})
}

// Credits whose message is refused for now are given later; refused permanently, the endpoint
// fails.
func TestCreditsThatAreRefused(t *testing.T) {
	for _, err := range []error{verbs.ErrNoMemory, verbs.ErrNotSupported} {
		eachShape(t, func(t *testing.T, s setup) {
			var reported failures
			s.cfg.AMBuffers, s.cfg.KeepAlive = 4, -1
			l := newLink(t, s)
			l.join(transport.EndpointConfig{}, l.b, l.a) // b is the one with the handlers below
			l.b.Endpoint = newEndpoint(t, l.b.w, transport.EndpointConfig{OnError: reported.add})
			l.a.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
			must(t, transport.Connect(l.a.Endpoint, l.b.Endpoint))
			refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.b.nics[0], Count: 4,
				Err:   err,
				QPNum: carrierOf(t, l.b)})
			if verbs.IsTransient(err) {
				for range 40 {
					l.send(l.a, nil)
				}
				l.until("all have arrived", func() bool { return l.got == 40 })
				if len(reported) != 0 || refusal.Hits() != 4 && s.single() {
					t.Errorf("%d refused, failures %v", refusal.Hits(), reported)
				}
				return
			}
			l.until("the endpoint fails", func() bool {
				_ = l.a.AMShort(1, nil, nil)
				return len(reported) != 0
			})
			l.quiet()
			reported.only(t, err)
		})
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

// What the configuration gives is kept, what it leaves out is lowered to the NICs.
func TestWorkerFitsItsNICs(t *testing.T) {
	for _, c := range []struct {
		dev    soft.DeviceConfig
		given  transport.Config
		inline int
		most   int // endpoints
	}{
		{soft.DeviceConfig{}, transport.Config{}, 128, 128},
		{soft.DeviceConfig{MaxInline: 20}, transport.Config{}, 20, 128},
		{soft.DeviceConfig{}, transport.Config{MaxEndpoints: 3, QP: ibverbx.Config{MaxInline: 40}}, 40, 3},
		// An endpoint of one queue pair needs (67+67) + 2*67 completions.
		{soft.DeviceConfig{MaxCQE: 268*5 + 1}, transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}}, 128, 5},
		{soft.DeviceConfig{MaxCQE: 268 * 5}, transport.Config{MaxEndpoints: 5,
			QP: ibverbx.Config{QPsPerDevice: 1}}, 128, 5},
	} {
		w := newWorld(t, soft.Config{Device: c.dev})
		worker := w.worker(c.given, nil, w.fabric.Device(0))
		got := worker.Config()
		if got.QP.MaxInline != c.inline || got.MaxEndpoints != c.most {
			t.Errorf("%d bytes inline, %d endpoints; want %d and %d", got.QP.MaxInline, got.MaxEndpoints,
				c.inline,
				c.most)
		}
		w.close()
	}
	w := newWorld(t, soft.Config{Device: soft.DeviceConfig{MaxCQE: 268*5 - 1}})
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	for says, cfg := range map[string]transport.Config{
		"enough for 4": {MaxEndpoints: 5, QP: ibverbx.Config{QPsPerDevice: 1}},
		"lower":        {MaxOutstanding: 5000, QP: ibverbx.Config{QPsPerDevice: 1}},
	} {
		if _, err := transport.NewWorker(dom, cfg); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("error %v: want one that says %q", err, says)
		}
	}
}

// A worker has as many endpoints as its configuration says; a place that is given back is used
// again.
func TestAsManyEndpointsAsConfigured(t *testing.T) {
	w := newWorld(t, soft.Config{})
	worker := w.worker(transport.Config{MaxEndpoints: 2, KeepAlive: -1}, nil, w.fabric.Device(0))
	first := newEndpoint(t, worker, transport.EndpointConfig{Value: 7})
	second := newEndpoint(t, worker, transport.EndpointConfig{Name: "two"})
	if first.Name() != "endpoint 0" || second.Name() != "two" || first.Value() != 7 ||
		first.Worker() != worker {
		t.Errorf("%q and %q, value %v", first.Name(), second.Name(), first.Value())
	}
	if _, err := worker.NewEndpoint(transport.EndpointConfig{}); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "2 endpoints are open") {
		t.Errorf("a third: %v", err)
	}
	must(t, first.Abort(nil))
	for worker.Progress() != 0 {
	}
	again := newEndpoint(t, worker, transport.EndpointConfig{})
	if again.Name() != "endpoint 0" {
		t.Errorf("the free place has %q", again.Name())
	}
	must(t, worker.Close())
	if _, err := worker.NewEndpoint(transport.EndpointConfig{}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("of a closed worker: %v", err)
	}
	if err := worker.Handle(1, func(*transport.Message) {}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a handler of a closed worker: %v", err)
	}
	if err := worker.Close(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	w.workers = nil
}

// A handler has an id of its own, within the range, before a card lists the ids.
func TestHandlersThatAreRefused(t *testing.T) {
	w := newWorld(t, soft.Config{})
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	handler := func(*transport.Message) {}
	must(t, worker.Handle(0, handler))
	must(t, worker.Handle(transport.MaxAMID, handler))
	for says, err := range map[string]error{
		"id 64 must be": worker.Handle(transport.MaxAMID+1, handler),
		"not nil":       worker.Handle(5, nil),
		"has a handler": worker.Handle(0, handler),
	} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v: want one that says %q", err, says)
		}
	}
	card(t, newEndpoint(t, worker, transport.EndpointConfig{}))
	if err := worker.Handle(6, handler); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "given out its card") {
		t.Errorf("after the card: %v", err)
	}
}

// Outcomes, flushes and errors have texts.
func TestWords(t *testing.T) {
	for want, got := range map[string]string{
		"done": transport.PendingDone.String(), "progress": transport.PendingProgress.String(),
		"no resource": transport.PendingNoResource.String(), "outcome 9": transport.Outcome(9).String(),
		"local": transport.FlushLocal.String(), "remote": transport.FlushRemote.String(),
		"flush kind 9": transport.FlushKind(9).String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	l := newLink(t, shapes()[0])
	if _, err := l.a.StartFlush(transport.FlushRemote+1, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an unknown flush: %v", err)
	}
	_, put := l.a.PutBcopy(nil, l.a.peer.At(0))
	_, am := l.a.AMBcopy(1, nil, nil)
	for _, err := range []error{put, am} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "pack function") {
			t.Errorf("no function: %v", err)
		}
	}
}

// A worker that sleeps tries again by itself what its NIC has refused for now: no event tells when
// the NIC would take it.
func TestASleeperTriesRefusedReceivesAgain(t *testing.T) {
	for _, s := range shapes()[:2] {
		s.cfg.AMBuffers, s.cfg.KeepAlive, s.cfg.Spin = 2, -1, -1
		var got atomic.Int64
		s.handle = func(*transport.Message) { got.Add(1) }
		l := newLink(t, s)
		refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.b.nics[0],
			QPNum: carrierOf(t, l.b), Count: 5})
		must(t, l.b.w.Start())
		for n := range int64(20) {
			l.send(l.a, []byte("again"))
			l.until("it has arrived", func() bool { return got.Load() > n })
		}
		if refusal.Hits() != 5 {
			t.Errorf("%s: %d receives were refused", s.name, refusal.Hits())
		}
	}
}
