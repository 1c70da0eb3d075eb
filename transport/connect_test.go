package transport_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Connect of two endpoints of this process says what keeps either from being connected, and
// changes nothing then.
func TestConnectOfTwoThatCannotBe(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	fresh := func() *transport.Endpoint { return newEndpoint(t, worker, transport.EndpointConfig{}) }
	aborted := fresh()
	must(t, aborted.Abort(nil))
	connected := fresh()
	must(t, transport.Connect(connected, fresh()))
	for _, c := range []struct {
		name string
		a, b *transport.Endpoint
		want error
	}{
		{"the first is aborted", aborted, fresh(), transport.ErrCanceled},
		{"the second is aborted", fresh(), aborted, transport.ErrCanceled},
		{"the first is connected", connected, fresh(), verbs.ErrInvalid},
		{"no second", fresh(), nil, verbs.ErrInvalid},
	} {
		if err := transport.Connect(c.a, c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		for _, e := range []*transport.Endpoint{c.a, c.b} {
			if e != nil && e != aborted && e != connected {
				must(t, transport.Connect(e, fresh()))
			}
		}
	}
}

// Whatever move of a queue pair fails on the way to a connection, and whichever receive, Connect
// returns its error, and the endpoint can be connected then: the receives of the first attempt,
// which were flushed, do not disturb the second.
func TestConnectWhereACallFails(t *testing.T) {
	for _, call := range []string{"modify", "post recv"} {
		for _, nics := range []int{1, 2} {
			for at, failed := 0, true; failed; at++ {
				w, dom, f := unreliableNICs(t, nics)
				got := 0
				worker, err := transport.NewWorker(dom, transport.Config{QP: ibverbx.Config{QPsPerDevice: 1},
					AMBuffers: 2})
				must(t, err)
				w.workers = append(w.workers, worker)
				must(t, worker.Handle(1, func(*transport.Message) { got++ }))
				a := newEndpoint(t, worker, transport.EndpointConfig{})
				b := newEndpoint(t, worker, transport.EndpointConfig{})
				f.N, f.At, f.Only, f.Name = 0, at, call, ""
				err = a.Connect(card(t, b))
				f.At = -1
				if failed = f.Name != ""; failed != errors.Is(err, unreliable.Err) || a.Err() != nil {
					t.Errorf("%s %d of %d NICs: %v, and then %v", call, at, nics, err, a.Err())
				}
				if failed {
					if err := a.AMShort(1, nil, nil); !errors.Is(err, transport.ErrNotConnected) {
						t.Errorf("a send before it is connected: %v", err)
					}
					must(t, a.Connect(card(t, b)))
				}
				must(t, b.Connect(card(t, a)))
				for range 8 { // more than were posted the first time
					must(t, b.AMShort(1, nil, []byte("to a")))
					must(t, a.AMShort(1, nil, []byte("to b")))
					before := got
					w.until("the messages arrive", func() bool { return got == before+2 })
				}
				if n := worker.Stats().StaleEvents; n != 0 {
					t.Errorf("%d stale completions", n)
				}
				if !failed && at < map[string]int{"modify": 3 * nics, "post recv": 1}[call] {
					t.Errorf("%d calls of %s", at, call)
				}
				w.close()
			}
		}
	}
}

// A card is taken at the bounds of each field and refused beyond, and the endpoint can be connected
// afterwards, once.
func TestRangesOfACard(t *testing.T) {
	const rails, headers = 4, 8 + transport.MaxHeader
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	area := func(bytes int) ibverbx.RemoteMR {
		_, mr := w.register(worker, bytes, 0)
		return mr.Remote()
	}
	for _, c := range []struct {
		edit func(*transport.Card)
		want error
		says string // "" where it is taken
	}{
		{func(c *transport.Card) {}, nil, ""},
		{func(c *transport.Card) { c.Version-- }, verbs.ErrNotSupported, "version 1"}, // no abort messages
		{func(c *transport.Card) { c.Version++ }, verbs.ErrNotSupported, "version 3"},
		{func(c *transport.Card) { c.AMBuffers = 1 }, nil, ""},
		{func(c *transport.Card) { c.AMBuffers = 0 }, verbs.ErrInvalid, "am_buffers 0"},
		{func(c *transport.Card) { c.AMBuffers = transport.MaxAMBuffers }, nil, ""},
		{func(c *transport.Card) { c.AMBuffers = transport.MaxAMBuffers + 1 }, verbs.ErrInvalid,
			"am_buffers 4097"},
		{func(c *transport.Card) { c.BufferSize = headers }, nil, ""},
		{func(c *transport.Card) { c.BufferSize = headers - 1 }, verbs.ErrInvalid, "buffer_size 71"},
		{func(c *transport.Card) { c.BufferSize = 1 << 30 }, nil, ""},
		{func(c *transport.Card) { c.BufferSize = 1<<30 + 1 }, verbs.ErrInvalid, "buffer_size 1073741825"},
		{func(c *transport.Card) { c.Flush = area(8 * rails) }, nil, ""},
		{func(c *transport.Card) { c.Flush = area(8*rails - 1) }, verbs.ErrInvalid, "flush area of 31 bytes"},
		{func(c *transport.Card) { c.QP.QPNums = nil }, verbs.ErrInvalid, "queue pairs"},
	} {
		x, y := newEndpoint(t, worker, transport.EndpointConfig{}),
			newEndpoint(t, worker, transport.EndpointConfig{})
		good := card(t, y)
		bad := good
		c.edit(&bad)
		err := x.Connect(bad)
		if c.says == "" {
			must(t, err)
		} else if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error %v: want %v that says %q", err, c.want, c.says)
		} else {
			must(t, x.Connect(good))
		}
		if err := x.Connect(good); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("connected twice: %v", err)
		}
	}
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

// A peer without handlers, and the ids of one that has some, are named when no handler takes a
// message.
func TestTheHandlersOfThePeerAreNamed(t *testing.T) {
	w := newWorld(t, setupFabric(3))
	sender := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	nothing := func(*transport.Message) {}
	for nic, c := range []struct {
		handlers map[transport.AMID]transport.Handler
		want     string
	}{
		{nil, "the peer has none"},
		{map[transport.AMID]transport.Handler{0: nothing, 7: nothing, 63: nothing}, "the peer has 0, 7, 63"},
	} {
		peer := w.worker(transport.Config{}, c.handlers, w.fabric.Device(1+nic))
		a := newEndpoint(t, sender, transport.EndpointConfig{})
		must(t, transport.Connect(a, newEndpoint(t, peer, transport.EndpointConfig{})))
		for _, id := range []transport.AMID{1, 62, 64, 255} {
			err := a.AMShort(id, nil, nil)
			if !errors.Is(err, transport.ErrNoHandler) {
				t.Errorf("%d: %v", id, err)
				continue
			}
			once(t, err.Error(), c.want)
		}
	}
}
