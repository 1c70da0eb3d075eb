package transport_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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
