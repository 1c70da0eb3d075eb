package transport_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// While Close waits for what is pending, the endpoint takes nothing new, and says that it is
// closed.
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

// Progress counts an endpoint that it has released as something done, and nothing afterwards.
func TestProgressCountsWhatItReleases(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{KeepAlive: -1}, nil, w.fabric.Device(0))
	for range 2 {
		must(t, newEndpoint(t, worker, transport.EndpointConfig{}).Abort(nil))
	}
	if n := worker.Progress(); n != 2 {
		t.Errorf("progress has done %d things: two endpoints were to be released", n)
	}
	if n := worker.Stats().Endpoints; n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
	if n := worker.Progress(); n != 0 {
		t.Errorf("progress has done %d things where nothing was to be done", n)
	}
}

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

// panics reports whether f does.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Mistakes of the program that no error could tell it of panic: completions for nothing, messages
// that are given back twice, or that were not kept.
func TestMistakesThatPanic(t *testing.T) {
	for n, want := range map[int]bool{-1: true, 0: true, 1: false} {
		if panics(func() { transport.NewCompletion(n, nil) }) != want {
			t.Errorf("a completion for %d operations: panics %v", n, !want)
		}
	}
	var kept *transport.Message
	inHandler := false
	l := newLink(t, setup{handle: func(m *transport.Message) {
		inHandler = panics(m.Release)
		m.Keep()
		kept = m
	}})
	l.send(l.a, []byte{1})
	l.until("the message", func() bool { return kept != nil })
	if !inHandler {
		t.Error("a message was released that was not kept")
	}
	kept.Release()
	if !panics(kept.Release) {
		t.Error("a message was released twice")
	}
	l.quiet()
	if s := l.b.w.Stats(); s.AMKept != 0 {
		t.Errorf("%d messages are kept", s.AMKept)
	}
}

// A call that waits calls Idle where progress has found nothing to do, and not behind progress that
// did something.
func TestIdleIsCalledWhereNothingIsToDo(t *testing.T) {
	s := shapes()[1]
	s.stepped = true
	idle, looked, got := 0, 0, 0
	s.handle = func(*transport.Message) { got++ }
	var l *link
	peer := s.cfg
	peer.Idle = func() {
		if idle++; got != looked {
			t.Errorf("Idle is called behind progress that has handled message %d", got)
		}
		l.fabric.Step()
	}
	s.peer = &peer
	l = newLink(t, s)
	for range 5 {
		must(t, l.a.AMShort(1, nil, []byte("hello")))
	}
	must(t, l.b.w.WaitFor(within(t), 0, func() bool { looked = got; return got == 5 }))
	if idle == 0 {
		t.Error("Idle was not called")
	}
}
