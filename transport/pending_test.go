package transport_test

import (
	"errors"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// request is a pending request whose function needs only the view from the head of the queue.
func request(f func(head *transport.Endpoint) transport.Outcome) *transport.Pending {
	return &transport.Pending{Func: func(_ *transport.Pending,
		head *transport.Endpoint) transport.Outcome {
		return f(head)
	}}
}

// outcome is what a pending function returns for the error of its send.
func outcome(tb testing.TB, err error) transport.Outcome {
	tb.Helper()
	switch err {
	case nil:
		return transport.PendingDone
	case transport.ErrNoResource:
		return transport.PendingNoResource
	}
	tb.Error(err)
	return transport.PendingDone
}

func TestContract04PendingRefusesWhatIsWrong(t *testing.T) {
	s := shapes()[0]
	s.stepped = true
	l := newLink(t, s)
	if err := l.a.Pending(&transport.Pending{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a request without a function: %v", err)
	}
	l.a.fill(t)
	p := request(func(*transport.Endpoint) transport.Outcome { return transport.PendingDone })
	must(t, l.a.Pending(p))
	if err := l.a.Pending(p); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a request that is queued already: %v", err)
	}
	l.quiet()
	l.a.fill(t)
	must(t, l.a.Pending(p)) // once done it can be queued again
}
