package tagged_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// TestCard: a card travels as JSON; an endpoint that is closed has none.
func TestCard(t *testing.T) {
	r := newRig(t, 2, 2, tagged.Config{MaxUnexpected: 77})
	a, b := r.endpoint(0, tagged.EndpointConfig{Value: 5}), r.endpoint(1, tagged.EndpointConfig{})
	if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrNotConnected) {
		t.Error(err)
	}
	card, err := b.Card()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	var read tagged.Card
	if err := json.Unmarshal(text, &read); err != nil || read.MaxUnexpected != 77 ||
		!reflect.DeepEqual(read.Transport.QP, card.Transport.QP) {
		t.Fatalf("%v, %s", err, text)
	}
	mine, err := a.Card()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Connect(read), b.Connect(mine)); err != nil {
		t.Fatal(err)
	}
	if a.Value() != 5 || a.Worker() != r.workers[0] || r.workers[0].Config().MaxUnexpected != 77 {
		t.Error(a.Value())
	}
	ctx := background(r)
	if err := a.SendWait(ctx, 1, []byte("x")); err != nil {
		t.Error(err)
	}
	if err := a.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal([]tagged.Card{card, {}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an empty place in a list of cards: %v", err)
	}
	if _, err := a.Card(); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if err := a.Connect(read); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
}

// TestBadArguments: nil arguments and bad configurations are refused.
func TestBadArguments(t *testing.T) {
	r := newRig(t, 1, 1, tagged.Config{})
	e := r.endpoint(0, tagged.EndpointConfig{})
	var none context.Context
	newWorker := func(cfg tagged.Config) error {
		_, err := tagged.NewWorker(r.domains[0], cfg) // it leaves nothing open
		return err
	}
	for name, err := range map[string]error{
		"nothing, endpoint": tagged.Connect(nil, e),
		"endpoint, nothing": tagged.Connect(e, nil),
		"nothing, nothing":  tagged.Connect(nil, nil),
		"no domain": func() error {
			_, err := tagged.NewWorker(nil, tagged.Config{})
			return err
		}(),
		"send, no context":      e.SendWait(none, 1),
		"send sync, no context": e.SendSyncWait(none, 1),
		"close, no context":     e.Close(none),
		"no memory":             func() error { _, err := r.workers[0].Register(nil); return err }(),
		"bad configuration":     newWorker(tagged.Config{Chunk: -1}),
		"bad transport":         newWorker(tagged.Config{Transport: transport.Config{AMBuffers: -1}}),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Send(1, nil); !errors.Is(err, tagged.ErrNotConnected) {
		t.Errorf("the endpoint after a Connect that was refused: %v", err)
	}
}

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
