package transport_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

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
