package tagged_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"ibverbx/tagged"
	"ibverbx/verbs"
)

// TestCard: a card travels as JSON; a card that no peer makes is refused, and a good one is
// accepted after that.
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
	for what, change := range map[string]func(*tagged.Card){
		"version":     func(c *tagged.Card) { c.Version = 2 },
		"no window":   func(c *tagged.Card) { c.MaxUnexpected = 0 },
		"window":      func(c *tagged.Card) { c.MaxUnexpected = 1 << 16 },
		"buffers":     func(c *tagged.Card) { c.Transport.BufferSize = 100 },
		"no handlers": func(c *tagged.Card) { c.Transport.Handlers = 0xff },
		"transport":   func(c *tagged.Card) { c.Transport.AMBuffers = 0 },
	} {
		bad := read
		change(&bad)
		if err := a.Connect(bad); !errors.Is(err, verbs.ErrInvalid) &&
			!errors.Is(err, verbs.ErrNotSupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	mine, err := a.Card()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Connect(read), b.Connect(mine)); err != nil {
		t.Fatal(err)
	}
	if err := a.Connect(read); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("connected twice: %v", err)
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
