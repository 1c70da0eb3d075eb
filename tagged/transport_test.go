package tagged_test

import (
	"errors"
	"testing"

	"ibverbx/tagged"
	"ibverbx/transport"
)

// TestOtherHandlers: the transport beneath carries the program's own active messages, too.
func TestOtherHandlers(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	got := ""
	handler := func(m *transport.Message) { got = string(m.Data()) }
	if err := r.workers[1].Transport().Handle(1, handler); err != nil {
		t.Fatal(err)
	}
	if err := r.workers[1].Transport().Handle(tagged.FirstAMID, func(*transport.Message) {}); err == nil {
		t.Error("the program could set a handler for an id of this package")
	}
	a, _ := r.connect(0, 1)
	if err := a.Transport().AMShort(1, nil, []byte("own")); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return got == "own" })
}

// TestOtherEndpoints: an endpoint that the program has made for itself on the transport is aborted
// when its peer sends messages of this package, and other endpoints go on.
func TestOtherEndpoints(t *testing.T) {
	h := newHostile(t)
	var value any
	for _, value = range []any{nil, "the program's own", (*tagged.Endpoint)(nil), h.victim} {
		for kind := range 7 {
			own, err := h.workers[0].Transport().NewEndpoint(transport.EndpointConfig{Value: value})
			if err != nil {
				t.Fatal(err)
			}
			if h.raw, err = h.raw.Worker().NewEndpoint(transport.EndpointConfig{}); err != nil {
				t.Fatal(err)
			}
			if err := transport.Connect(own, h.raw); err != nil {
				t.Fatal(err)
			}
			h.post(kind, head(8, 0, 0, 0), []byte("astray"))
			h.until(func() bool { h.raw.Worker().Progress(); return own.Err() != nil })
			if err := own.Err(); !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("value %v, message %d: %v", value, kind, err)
			}
		}
	}
	if s := h.workers[0].Stats(); s.Violations != 4*7 || s.Failures != 0 || h.victim.Err() != nil {
		t.Errorf("%+v; %v", s, h.victim.Err())
	}
	h.checkGood()
}
