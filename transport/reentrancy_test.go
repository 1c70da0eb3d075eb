package transport_test

import (
	"errors"
	"testing"

	"ibverbx/transport"
)

// A handler may send, on its own endpoint and on others, and reply to its message.
func TestHandlersSend(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped, s.scramble = true, true
		var l *link
		pongs := 0
		var other *end
		refused := 0
		s.handle = func(m *transport.Message) {
			pongs++
			answer := func(ep *transport.Endpoint) transport.Outcome {
				err := ep.PutShort([]byte{byte(pongs)}, l.b.peer.At(0))
				if err == transport.ErrNoResource {
					refused++
				}
				return outcome(t, err)
			}
			if answer(m.Endpoint()) == transport.PendingNoResource {
				if err := m.Endpoint().Pending(request(answer)); err != nil && err != transport.ErrBusy {
					t.Error(err)
				}
			}
			if n := l.b.w.Progress(); n != 0 {
				t.Errorf("progress inside of a handler did %d things", n)
			}
			if err := other.AMShort(1, nil, nil); err != nil && err != transport.ErrNoResource {
				t.Error(err)
			}
		}
		l = newLink(t, s)
		_, other = l.another(transport.EndpointConfig{})
		for range 100 {
			l.send(l.a, []byte{1})
		}
		l.until("all messages", func() bool { return pongs == 100 })
		l.quiet()
	})
}

// A handler may abort its own endpoint: what has arrived already is handled, nothing else, and the
// worker goes on.
func TestAHandlerAbortsItsEndpoint(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		gone := transport.NewCompletion(1, nil)
		calls := 0
		var ended []error
		s.handle = func(m *transport.Message) {
			if calls++; calls != 1 {
				return
			}
			if err := m.Endpoint().FetchAdd(
				transport.NewCompletion(1, func(c *transport.Completion) { ended = append(ended, c.Err()) }),
				nil, m.Endpoint().Value().(*end).peer.At(0), 1); err != nil {
				t.Error(err)
			}
			if err := m.Endpoint().Abort(gone); err != nil {
				t.Error(err)
			}
		}
		l := newLink(t, s)
		x, y := *l.a, *l.b
		x.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
		y.Endpoint = newEndpoint(t, l.b.w, transport.EndpointConfig{Value: &y})
		must(t, transport.Connect(x.Endpoint, y.Endpoint))
		y.peer = l.a.mr.Remote()
		for range 3 {
			must(t, x.AMShort(1, nil, []byte{1}))
		}
		l.until("the endpoint is gone", gone.Fired)
		if len(ended) != 1 {
			t.Errorf("%d completions of 1", len(ended))
		}
		before := calls
		l.send(l.a, nil)
		l.until("another endpoint's message", func() bool { return calls > before })
		l.until("it is given back", func() bool { return l.b.w.Stats().Endpoints == 1 })
		must(t, x.Abort(nil))
	})
}

// A handler may release messages of other endpoints, purge, and queue requests; an error handler
// may abort others.
func TestCallbacksReachOtherEndpoints(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped, s.scramble = true, true
		var kept []*transport.Message
		s.handle = func(m *transport.Message) {
			m.Keep()
			kept = append(kept, m)
			if len(kept) > 1 { // a message of whichever endpoint came first
				kept[0].Release()
				kept = kept[1:]
			}
			m.Endpoint().Purge(func(*transport.Pending) {})
		}
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		for range 50 {
			l.send(l.a, nil)
			l.send(other, nil)
		}
		l.quiet()
		if got := l.b.w.Stats().AMReceived; got != 100 {
			t.Errorf("%d of 100 messages", got)
		}
		for _, m := range kept {
			m.Release()
		}
	})
}

func TestAnErrorHandlerAborts(t *testing.T) {
	var other *end
	reported, gone := 0, transport.NewCompletion(2, nil)
	s := setup{onError: func(ep *transport.Endpoint, _ error) {
		reported++
		if err := errors.Join(ep.Abort(gone), other.Abort(gone)); err != nil {
			t.Error(err)
		}
	}}
	l := newLink(t, s)
	other, _ = l.another(transport.EndpointConfig{})
	must(t, l.b.Close(within(t)))
	l.until("both are gone", gone.Fired)
	if reported != 1 || l.a.w.Stats().Endpoints != 0 {
		t.Errorf("reported %d times, %+v", reported, l.a.w.Stats())
	}
}

// A pending function may abort its own endpoint.
func TestAPendingFunctionAbortsItsEndpoint(t *testing.T) {
	l := newLink(t, setup{stepped: true, cfg: transport.Config{QP: shapes()[1].cfg.QP}})
	l.a.fill(t)
	gone := transport.NewCompletion(1, nil)
	runs := 0
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		if runs++; runs == 1 {
			if err := head.Abort(gone); err != nil {
				t.Error(err)
			}
		}
		return transport.PendingNoResource
	})))
	l.until("it is gone", gone.Fired)
	if runs != 2 {
		t.Errorf("the function ran %d times: once when it aborted, and once to learn of it", runs)
	}
}

// A completion function may use its completion again.
func TestACompletionIsReusedByItsFunction(t *testing.T) {
	l := newLink(t, setup{})
	var comp transport.Completion
	n := 0
	var again func(c *transport.Completion)
	again = func(c *transport.Completion) {
		if n++; n < 1000 {
			c.Init(1, again)
			if _, err := l.a.PutZcopy(c, l.a.peer.At(0), l.a.mr.Slice(0, 8)); err != nil {
				t.Error(err)
			}
		}
	}
	comp.Init(1, again)
	comp.Done(nil)
	l.until("a thousand puts", func() bool { return n == 1000 })
}
