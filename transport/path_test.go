package transport_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// path is one way of moving bytes, for tests and benchmarks that measure each of them.
type path struct {
	name string
	call func(n uint64) error // one operation of n bytes
	most uint64               // bytes
	size bool                 // n can vary
}

// paths are all of them on one endpoint. A call allocates nothing of its own.
func paths(tb testing.TB, l *link) []path {
	e := l.a
	data := make([]byte, 1<<20)
	hdr := []byte("head")
	lim := e.Limits()
	ctx := context.Background()
	var comp transport.Completion
	comp.Init(1<<30, nil)
	var old uint64
	length := 0
	pack := func(dst []byte) int { return copy(dst, data[:length]) }
	remote, local := e.peer.At(0), e.mr
	ready := transport.NewCompletion(1, nil)
	return []path{
		{"AMShort", func(n uint64) error { return e.AMShort(1, nil, data[:n]) }, uint64(lim.AMShort), true},
		{"AMBcopy", func(n uint64) error { length = int(n); _, err := e.AMBcopy(1, hdr, pack); return err },
			4096, true},
		{"AMZcopy", func(n uint64) error {
			return e.AMZcopy(&comp, 1, hdr, local.Slice(0, n))
		}, 4096, true},
		{"PutShort", func(n uint64) error { return e.PutShort(data[:n], remote) }, uint64(lim.PutShort),
			true},
		{"PutBcopy", func(n uint64) error { length = int(n); _, err := e.PutBcopy(pack, remote); return err },
			4096, true},
		{"PutZcopy", func(n uint64) error {
			_, err := e.PutZcopy(&comp, remote, local.Slice(0, n))
			return err
		}, 1 << 20, true},
		{"GetBcopy", func(n uint64) error { _, err := e.GetBcopy(&comp, data[:n], remote); return err }, 4096,
			true},
		{"GetZcopy", func(n uint64) error {
			_, err := e.GetZcopy(&comp, remote, local.Slice(0, n))
			return err
		}, 1 << 20, true},
		{"FetchAdd", func(uint64) error { return e.FetchAdd(&comp, &old, remote, 1) }, 8,
			false},
		{"CompareSwap", func(uint64) error { return e.CompareSwap(&comp, &old, remote, 1, 2) },
			8, false},
		{"FlushLocal", func(uint64) error {
			if err := e.PutShort(data[:8], remote); err != nil {
				return err
			}
			return e.Flush(ctx, transport.FlushLocal)
		}, 8, false},
		{"FlushRemote", func(uint64) error {
			if err := e.PutShort(data[:8], remote); err != nil {
				return err
			}
			return e.Flush(ctx, transport.FlushRemote)
		}, 8, false},
		{"Wait", func(uint64) error {
			ready.Init(1, nil)
			if _, err := e.PutZcopy(ready, remote, local.Slice(0, 8)); err != nil {
				return err
			}
			return e.w.Wait(ctx, ready)
		}, 8, false},
	}
}

// run makes a call, with progress until it goes out.
func (p *path) run(tb testing.TB, l *link, n uint64) {
	for {
		err := p.call(n)
		if err == nil {
			return
		}
		if err != transport.ErrNoResource {
			tb.Fatal(err)
		}
		l.a.w.Progress()
		l.b.w.Progress()
	}
}

// Once warm, no path allocates.
func TestNothingAllocates(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector makes sync.Pool forget")
	}
	eachShape(t, func(t *testing.T, s setup) {
		s.memory = 1 << 20
		l := newLink(t, s)
		check := func(name string, f func()) {
			t.Helper()
			for range 300 { // more than the rings and pools hold
				f()
			}
			if n := testing.AllocsPerRun(300, f); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
		for _, p := range paths(t, l) {
			for _, n := range []uint64{8, 64} {
				check(p.name, func() { p.run(t, l, n) })
			}
			l.flushed(l.a)
		}
		check("Progress", func() { l.a.w.Progress() })
		check("Fence", func() { l.a.Fence() })

		served := 0
		var p transport.Pending
		p.Func = func(_ *transport.Pending, head *transport.Endpoint) transport.Outcome {
			if err := head.PutShort(oneByte[:], l.a.peer.At(0)); err != nil {
				return transport.PendingNoResource
			}
			served++
			return transport.PendingDone
		}
		check("Pending round trip", func() {
			for l.a.PutShort(oneByte[:], l.a.peer.At(0)) == nil {
			}
			before := served
			if err := l.a.Pending(&p); err != nil {
				t.Fatal(err)
			}
			for served == before {
				l.a.w.Progress()
			}
		})
		check("StartFlush and its refusal", func() {
			for l.a.PutShort(oneByte[:], l.a.peer.At(0)) == nil {
			}
			if _, err := l.a.StartFlush(transport.FlushLocal, nil); err != transport.ErrNoResource {
				t.Fatal(err)
			}
			for l.a.w.Progress() != 0 {
			}
		})
	})
}

// oneByte is what the shortest sends carry.
var oneByte [1]byte

func TestKeepAndReleaseDoNotAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector makes sync.Pool forget")
	}
	eachShape(t, func(t *testing.T, s setup) {
		var kept *transport.Message
		s.handle = func(m *transport.Message) { m.Keep(); kept = m }
		l := newLink(t, s)
		round := func() {
			if err := l.a.AMShort(1, nil, oneByte[:]); err != nil {
				t.Fatal(err)
			}
			for kept == nil {
				l.b.w.Progress()
			}
			kept.Release()
			kept = nil
			l.a.w.Progress()
			l.b.w.Progress()
		}
		for range 300 {
			round()
		}
		if n := testing.AllocsPerRun(300, round); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// Every path counts what it does, for its endpoint and for the worker, and what is refused counts
// as that only. The queue pairs below count what they carried.
func TestStatsCount(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		for _, p := range paths(t, l)[:10] {
			p.run(t, l, 8)
		}
		must(t, other.PutShort(make([]byte, 3), other.peer.At(0)))
		l.flushed(other)
		l.flushed(l.a)
		l.until("the messages", func() bool { return l.got == 3 })
		filled := uint64(l.a.fill(t)) // meets ErrNoResource once
		if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
			t.Errorf("one more message: %v", err)
		}
		refused := l.a.w.Stats().NoResource
		l.flushed(l.a)
		_ = l.a.PutShort(make([]byte, 5), ibverbx.RemoteSegment{})
		// Bytes: AMBytes has the transport's own headers besides; an atomic sends and reads 8.
		const messages, reads = 3*8 + 2*4, 2*8 + 2*8
		st, e, peer := l.a.w.Stats(), l.a.Stats(), l.b.Stats()
		if st.AMSent != 3 || st.AMBytes != messages+3*8 || st.Puts != 3+1+filled ||
			st.PutBytes != 3*8+3+filled || st.Gets != 2 || st.GetBytes != 2*8 || st.Atomics != 2 ||
			st.Endpoints != 2 || refused != 2 {
			t.Errorf("%+v", st)
		}
		if sent := messages + 3*8 + 2*8 + filled; e.SentBytes != sent || e.ReceivedBytes != reads ||
			st.SentBytes != sent+3 || st.ReceivedBytes != reads || peer.ReceivedBytes != messages {
			t.Errorf("of %d and %d bytes: the worker %+v, the endpoint %+v, its peer %+v", sent, reads, st, e,
				peer)
		}
		if s := l.b.w.Stats(); s.AMReceived != 3 || s.AMKept != 0 {
			t.Errorf("%+v", s)
		}
		lim, cfg := l.a.Limits(), l.a.w.Config()
		if lim.Header != transport.MaxHeader || lim.PutBcopy != cfg.BufferSize || lim.Pieces < 1 ||
			e.Limit != cfg.MaxOutstanding || l.a.w.Domain() == nil || l.a.Worker() != l.a.w {
			t.Errorf("%+v, a limit of %d", lim, e.Limit)
		}
		all, sends := l.a.w.Endpoints(), uint64(0)
		for _, ep := range all {
			sends += ep.QPStats().Sends
		}
		if total := l.a.w.QPTotal(); !slices.Contains(all, l.a.Endpoint) || total.Sends != sends ||
			sends == 0 {
			t.Errorf("endpoints %v, %d requests in all, %d of the endpoints", all, total.Sends, sends)
		}
		below, carried := l.a.QPStats(), uint64(0)
		for _, r := range below.Rails {
			carried += r.Bytes
		}
		if !s.single() && (len(below.Rails) <= max(s.nics, 1) || carried < e.SentBytes+e.ReceivedBytes) {
			t.Errorf("%d rails carried %d bytes: %+v", len(below.Rails), carried, below)
		}
	})
}

// A worker whose queue pairs record their steps hands them out while somebody makes progress.
func TestTraceOfAWorker(t *testing.T) {
	s := shapes()[0]
	s.cfg.QP.Trace = true
	l := newLink(t, s)
	l.send(l.a, []byte("x"))
	l.flushed(l.a)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got *ibverbx.Trace
	asked := make(chan error, 1)
	go func() {
		var err error
		got, err = l.a.w.Trace(ctx)
		asked <- err
	}()
	l.until("the trace is there", func() bool { return len(asked) != 0 })
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	reported := func(e ibverbx.TraceEvent) bool { return e.Kind == ibverbx.TraceReported }
	if !slices.ContainsFunc(got.Events, reported) || len(got.Rails) == 0 {
		t.Errorf("%+v", got)
	}
}

// The longest shorts need no bounce buffer, also where it is the peer's buffers that end them.
func TestShortsNeedNoBounceBuffer(t *testing.T) {
	for _, c := range []struct{ inline, am int }{{128, 128 - 8}, {400, 256 - 8}} {
		s := shapes()[0]
		s.cfg.BounceBuffers, s.cfg.QP.MaxInline, s.cfg.BufferSize = 1, c.inline, 512
		s.fabric.MaxInline = 512
		peer := s.cfg
		peer.BufferSize = 256
		s.peer = &peer
		l := newLink(t, s)
		stall := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.StallQP, Count: -1})
		put := func(int) error { _, err := l.a.PutBcopy(pack([]byte{1}), l.a.peer.At(0)); return err }
		if n := try(t, put); n != 3 {
			t.Fatalf("%d bounce buffers, one of them for all", n)
		}
		lim := l.a.Limits()
		if lim.PutShort != c.inline || lim.AMShort != c.am {
			t.Errorf("%+v, want shorts of %d and %d", lim, c.inline, c.am)
		}
		for _, n := range []int{0, 1, c.am} {
			must(t, l.a.AMShort(1, nil, make([]byte, n)))
		}
		must(t, l.a.AMShort(1, make([]byte, transport.MaxHeader), make([]byte, c.am-transport.MaxHeader)))
		must(t, l.a.PutShort(make([]byte, 1), l.a.peer.At(0)))
		must(t, l.a.PutShort(make([]byte, c.inline), l.a.peer.At(0)))
		if err := put(0); err != transport.ErrNoResource {
			t.Errorf("a bounce buffer is free: %v", err)
		}
		stall.Remove()
		l.until("the messages", func() bool { return l.got == 4 })
	}
}

// Everything works over a NIC that takes little inline, or nothing: what does not fit goes through
// bounce buffers.
func TestNICsWithLittleInline(t *testing.T) {
	for _, inline := range []int{16, 8, 1} {
		t.Run(fmt.Sprint(inline), func(t *testing.T) {
			for _, s := range shapes()[:3] {
				s.cfg.AMBuffers = 2
				s.fabric.MaxInline = inline
				l := newLink(t, s)
				for range 20 {
					l.send(l.a, make([]byte, l.a.Limits().AMShort))
				}
				l.until("all messages", func() bool { return l.got == 20 })
				must(t, l.a.PutShort([]byte("hello"), l.a.peer.At(0)))
				l.flushed(l.a)
				l.close()
			}
		})
	}
}

// The figures of the queue pairs stay when these are gone: what the endpoint's last snapshot shows
// is what its rails have carried.
func TestQPStatsOfAnEndpointThatIsGone(t *testing.T) {
	for how, end := range map[string]func(l *link) error{
		"abort":        func(l *link) error { return l.a.Abort(nil) },
		"close":        func(l *link) error { return l.a.Close(within(l.tb)) },
		"worker close": func(l *link) error { return l.a.w.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				l := newLink(t, s)
				must(t, l.b.w.Start())
				must(t, l.a.PutShort(make([]byte, 5), l.a.peer.At(0)))
				l.flushed(l.a)
				before := l.a.QPStats()
				if c := l.a.Carrier(); len(c.NICs) == 0 || c.NICs[0].Device != before.Rails[0].Device ||
					c.NICs[0].PeerGID.IsZero() {
					t.Errorf("carrier %+v", c)
				}
				must(t, end(l))
				if total := l.a.w.QPTotal(); total.Sends < before.Sends {
					t.Errorf("%d requests in all, after %d", total.Sends, before.Sends)
				}
				l.until("the release", func() bool { return l.a.w.Stats().Endpoints == 0 })
				for range 2 {
					after := l.a.QPStats()
					if after.Sends < before.Sends || len(after.Rails) != len(before.Rails) ||
						after.Rails[0].QPNum != before.Rails[0].QPNum {
						t.Errorf("%+v, not as before: %+v", after, before)
					}
					clear(after.Rails) // the caller's own
				}
				if c := l.a.Carrier(); len(c.NICs) != 0 {
					t.Errorf("carrier %+v, of an endpoint that is gone", c)
				}
			})
		})
	}
}

// The sums over a worker's queue pairs do not fall while endpoints come and go, and in the end they
// are what all of them have counted.
func TestTotalsWhileEndpointsComeAndGo(t *testing.T) {
	w := newWorld(t, soft.Config{Devices: 2})
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: 2}}
	handlers := map[transport.AMID]transport.Handler{1: func(*transport.Message) {}}
	a, b := w.worker(cfg, handlers, w.fabric.Device(0)), w.worker(cfg, handlers, w.fabric.Device(1))
	must(t, errors.Join(a.Start(), b.Start()))
	done, fell := make(chan struct{}), make(chan error)
	go func() {
		for last := uint64(0); ; {
			now := a.QPTotal().Sends
			if now < last {
				fell <- fmt.Errorf("%d requests in all, after %d", now, last)
				return
			}
			last = now
			select {
			case <-done:
				fell <- nil
				return
			default:
			}
		}
	}()
	var ends []*transport.Endpoint
	for range 30 {
		one, err := a.NewEndpoint(transport.EndpointConfig{})
		must(t, err)
		other, err := b.NewEndpoint(transport.EndpointConfig{})
		must(t, err)
		must(t, transport.Connect(one, other))
		must(t, one.AMShort(1, nil, []byte("counts")))
		must(t, one.Flush(within(t), transport.FlushLocal))
		must(t, errors.Join(one.Abort(nil), other.Abort(nil)))
		ends = append(ends, one)
	}
	close(done)
	must(t, <-fell)
	want := uint64(0)
	for _, e := range ends {
		want += e.QPStats().Sends
	}
	if got := a.QPTotal().Sends; got != want || got < 30 {
		t.Errorf("%d requests in all; all endpoints have counted %d", got, want)
	}
}
