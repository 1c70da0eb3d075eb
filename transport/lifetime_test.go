package transport_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
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

// MaxEndpoints is a limit; a closed endpoint makes room, and its number is used again.
func TestEndpointPlacesAreUsedAgain(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.MaxEndpoints = 3
		l := newLink(t, s)
		for round := range 20 {
			x, _ := l.another(transport.EndpointConfig{})
			y, _ := l.another(transport.EndpointConfig{})
			if _, err := l.a.w.NewEndpoint(transport.EndpointConfig{}); !errors.Is(err, verbs.ErrInvalid) {
				t.Fatalf("a fourth endpoint: %v", err)
			}
			must(t, x.PutShort([]byte{byte(round)}, x.peer.At(0)))
			must(t, y.AMShort(1, nil, nil))
			if round%2 == 0 {
				l.flushed(x)
			}
			gone := transport.NewCompletion(2, nil)
			must(t, x.Abort(gone))
			must(t, y.Abort(gone))
			l.until("both are gone", gone.Fired)
			l.until("the peer's learn of it", func() bool {
				for _, e := range l.peers() {
					_ = e.Abort(nil)
				}
				return l.b.w.Stats().Endpoints == 1
			})
			must(t, l.a.PutShort([]byte{1}, l.a.peer.At(8)))
			l.flushed(l.a)
		}
		if s := l.a.w.Stats(); s.StaleEvents != 0 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// An endpoint that is released holds no buffers, and takes every call.
func TestReleasedEndpointTakesCalls(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		card, err := l.b.Card()
		must(t, err)
		gone := transport.NewCompletion(1, nil)
		must(t, l.a.Abort(gone))
		l.until("it is released", gone.Fired)
		if l.a.Stats().Outstanding != 0 || l.a.Limits().PutShort == 0 || l.a.Err() == nil ||
			l.a.Name() == "" {
			t.Errorf("%+v, %+v, %v", l.a.Stats(), l.a.Limits(), l.a.Err())
		}
		l.a.Fence()
		_, errCard := l.a.Card()
		_, errFlush := l.a.StartFlush(transport.FlushRemote, nil)
		for call, err := range map[string]error{
			"card": errCard, "connect": l.a.Connect(card), "flush": errFlush,
			"put": l.a.PutShort([]byte{1}, l.a.peer.At(0)), "message": l.a.AMShort(1, nil, nil),
			"close": l.a.Close(within(t)), "abort": l.a.Abort(nil),
		} {
			if err == nil {
				t.Errorf("%s: no error", call)
			}
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

func TestConnectRefusesWhatDoesNotFit(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	a, b := newEndpoint(t, worker, transport.EndpointConfig{}),
		newEndpoint(t, worker, transport.EndpointConfig{})
	good := card(t, b)
	for name, spoil := range map[string]func(c *transport.Card){
		"no abort messages": func(c *transport.Card) { c.Version = 1 },
		"version":           func(c *transport.Card) { c.Version = 3 },
		"no buffers":        func(c *transport.Card) { c.AMBuffers = 0 },
		"too many buffers":  func(c *transport.Card) { c.AMBuffers = transport.MaxAMBuffers + 1 },
		"buffers too small": func(c *transport.Card) { c.BufferSize = 8 },
		"buffers too large": func(c *transport.Card) { c.BufferSize = 1<<30 + 1 },
		"no flush area":     func(c *transport.Card) { c.Flush = ibverbx.RemoteMR{} },
		"no queue pairs":    func(c *transport.Card) { c.QP.QPNums = nil },
	} {
		c := good
		spoil(&c)
		if err := a.Connect(c); err == nil {
			t.Errorf("%s: connected", name)
		}
	}
	must(t, a.Connect(good)) // the refusals left no trace
	must(t, b.Connect(card(t, a)))
	if err := a.Connect(good); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("connected twice: %v", err)
	}
	if err := worker.Handle(1, func(*transport.Message) {}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a handler after the card: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	for name, cfg := range map[string]transport.Config{
		"endpoints":        {MaxEndpoints: -1},
		"buffer size":      {BufferSize: 100},
		"bounce buffers":   {BounceBuffers: -1},
		"am buffers":       {AMBuffers: transport.MaxAMBuffers + 1},
		"outstanding":      {MaxOutstanding: -1},
		"receives":         {QP: ibverbx.Config{MaxMsgCntPerQP: 10}},
		"pieces":           {QP: ibverbx.Config{MaxSGE: 1}},
		"completion queue": {MaxEndpoints: 1 << 20},
	} {
		if _, err := transport.NewWorker(dom, cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
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
