package transport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// link is two connected endpoints, a and b, of two workers, and what both have registered.
type link struct {
	*world
	a, b *end
	ends []*end // of b's worker, by another
	got  int    // messages that b's handler 1 took, where the test has none of its own
}

// end is one side of a link.
type end struct {
	*transport.Endpoint
	w    *transport.Worker
	mem  []byte
	mr   *ibverbx.MR
	peer ibverbx.RemoteMR // the other side's memory
	nics []*soft.Device
	// handler is called by a's handler 1, which does nothing else.
	handler func()
}

func newLink(tb testing.TB, s setup) *link {
	tb.Helper()
	n := max(s.nics, 1)
	l := &link{world: newWorld(tb, soft.Config{
		Devices: 2 * n, Stepped: s.stepped, Seed: s.seed, Scramble: s.scramble && !s.single(),
		Device: s.fabric,
	})}
	peer := s.cfg
	if s.peer != nil {
		peer = *s.peer
	}
	handle := s.handle
	if handle == nil {
		handle = func(*transport.Message) { l.got++ }
	}
	l.a = l.newEnd(s.cfg, 0, n, s.memory, func(*transport.Message) {
		if l.a.handler != nil {
			l.a.handler()
		}
	})
	l.b = l.newEnd(peer, n, n, s.memory, handle)
	l.join(transport.EndpointConfig{Name: "peer b", OnError: s.onError, OnReady: s.onReady}, l.a, l.b)
	return l
}

func (l *link) newEnd(cfg transport.Config, first, n, memory int, handle transport.Handler) *end {
	l.tb.Helper()
	e := &end{}
	for i := range n {
		e.nics = append(e.nics, l.fabric.Device(first+i))
	}
	e.w = l.worker(cfg, map[transport.AMID]transport.Handler{1: handle}, e.nics...)
	if memory == 0 {
		memory = 64 << 10
	}
	e.mem, e.mr = l.register(e.w, memory, byte(first+1)*77)
	return e
}

// join connects new endpoints of two ends' workers. Cards and memory descriptions travel as JSON,
// as between two processes.
func (l *link) join(cfg transport.EndpointConfig, a, b *end) {
	l.tb.Helper()
	a.Endpoint, b.Endpoint = newEndpoint(l.tb, a.w, cfg),
		newEndpoint(l.tb, b.w, transport.EndpointConfig{Name: "peer a"})
	ca, cb := card(l.tb, a.Endpoint), card(l.tb, b.Endpoint)
	if err := a.Connect(throughJSON(l.tb, cb)); err != nil {
		l.tb.Fatal(err)
	}
	if err := b.Connect(throughJSON(l.tb, ca)); err != nil {
		l.tb.Fatal(err)
	}
	a.peer, b.peer = throughJSON(l.tb, b.mr.Remote()), throughJSON(l.tb, a.mr.Remote())
}

// another connects one more pair of endpoints on the same two workers. It shares the memory.
func (l *link) another(cfg transport.EndpointConfig) (a, b *end) {
	l.tb.Helper()
	x, y := *l.a, *l.b
	l.join(cfg, &x, &y)
	l.ends = append(l.ends, &y)
	return &x, &y
}

// peers are the ends of b's worker that another has made.
func (l *link) peers() []*end { return l.ends }

func newEndpoint(tb testing.TB, w *transport.Worker, cfg transport.EndpointConfig) *transport.Endpoint {
	tb.Helper()
	ep, err := w.NewEndpoint(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return ep
}

func card(tb testing.TB, ep *transport.Endpoint) transport.Card {
	tb.Helper()
	c, err := ep.Card()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func throughJSON[T any](tb testing.TB, v T) (out T) {
	tb.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// must fails the test for an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// pack writes data into a bounce buffer.
func pack(data []byte) func([]byte) int {
	return func(dst []byte) int { return copy(dst, data) }
}

// try makes one call after another until one is refused, and returns how many were not.
func try(tb testing.TB, call func(i int) error) (n int) {
	tb.Helper()
	for ; n < 1<<16; n++ {
		if err := call(n); err == transport.ErrNoResource {
			return n
		} else if err != nil {
			tb.Fatal(err)
		}
	}
	tb.Fatal("resources without an end")
	return n
}

// fill sends puts of a byte each, byte i to address 60000+i, until the endpoint has no room for
// more operations.
func (e *end) fill(tb testing.TB) (n int) {
	tb.Helper()
	return try(tb, func(i int) error { return e.PutShort([]byte{byte(i)}, e.peer.At(60000+uint64(i))) })
}

// send sends active message 1, with progress until it goes out.
func (l *link) send(e *end, payload []byte) {
	l.tb.Helper()
	l.until("an active message is sent", func() bool {
		err := e.AMShort(1, nil, payload)
		if err != nil && err != transport.ErrNoResource {
			l.tb.Fatal(err)
		}
		return err == nil
	})
}

// flushed makes a remote flush while the link makes progress.
func (l *link) flushed(e *end) {
	l.tb.Helper()
	comp := transport.NewCompletion(1, nil)
	l.until("a remote flush begins", func() bool {
		done, err := e.StartFlush(transport.FlushRemote, comp)
		if err != nil && err != transport.ErrNoResource {
			l.tb.Fatal(err)
		}
		if done {
			comp.Done(nil)
		}
		return err == nil
	})
	l.until("a remote flush ends", comp.Fired)
	must(l.tb, comp.Err())
}

// landed compares memory with what it should hold.
func landed(tb testing.TB, what string, got, want []byte) {
	tb.Helper()
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		tb.Fatalf("%s: differs from byte %d on", what, at)
	}
}

// within is a context that ends after patience.
func within(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// setupFabric is a fabric of so many NICs that works in the background.
func setupFabric(devices int) soft.Config { return soft.Config{Devices: devices} }

// overlapping is the length of transfers that may overlap: a word under the race detector.
func overlapping(n uint64) uint64 {
	if guard.Race {
		return 8
	}
	return n
}
