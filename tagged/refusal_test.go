package tagged_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func TestConfigRefusals(t *testing.T) {
	f, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(f.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []tagged.Config{
		{EagerLimit: 1<<30 + 1}, {Chunk: -1}, {Window: -1}, {MaxUnexpected: -1}, {MaxUnexpected: 1 << 16},
		{MaxRequests: -1},
		{Transport: transport.Config{BufferSize: 300}}, {Transport: transport.Config{AMBuffers: -1}},
	} {
		if _, err := tagged.NewWorker(dom, cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if err := errors.Join(dom.Close(), f.Close()); err != nil {
		t.Error(err) // a refused worker left something open
	}
}

// TestCard: a card travels as JSON; what no peer shows is refused, and a good card is taken after
// that.
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

// TestNoRegistration: memory that cannot be registered. A send is refused; of a receive the sender
// does not notice.
func TestNoRegistration(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	mem := pattern(100000, 1)
	region, err := a.Worker().Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	if &region.Bytes()[0] != &mem[0] || region.MR().Len() != 100000 {
		t.Error("the region is of other memory")
	}
	for i := range r.domains { // registers nothing more, and goes when its users have gone
		if err := r.domains[i].Close(); err != nil {
			t.Fatal(err)
		}
		if r.domains[i], err = ibverbx.NewDomain(r.fabric.Device(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Send(1, make([]byte, 100000)); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("send: %v", err)
	}
	for _, pieces := range []int{1, 9} {
		s, d := r.send(a, 1, mem), r.recv(b.Worker(), 1, tagged.Exact, cut(make([]byte, 100000), pieces)...)
		r.done(s, d)
		if s.Err() != nil || !errors.Is(d.Err(), ibverbx.ErrClosed) {
			t.Errorf("receive into %d pieces: %v; the sender: %v", pieces, d.Err(), s.Err())
		}
	}
	if _, err := a.Worker().Register(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if a.Err() != nil || b.Err() != nil {
		t.Error(a.Err(), b.Err())
	}
}

// TestManyNICs: where the description of four pieces on many NICs is too long for a message, they
// go through one buffer.
func TestManyNICs(t *testing.T) {
	cfg := tagged.Config{Transport: transport.Config{BufferSize: 512, QP: ibverbx.Config{QPsPerDevice: 1}}}
	r, a, b := pair(t, 25, cfg)
	src, dst := pattern(100000, 1), make([]byte, 100000)
	d := r.recv(b.Worker(), 1, tagged.Exact, dst)
	r.done(r.send(a, 1, cut(src, 4)...), d)
	if d.Err() != nil || !bytes.Equal(src, dst) || a.Worker().Stats().Staged != 1 {
		t.Errorf("%v, %+v", d.Err(), a.Worker().Stats())
	}
}

// TestOtherHandlers: the transport beneath carries active messages of the program's own besides.
func TestOtherHandlers(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	got := ""
	if err := r.workers[1].Transport().Handle(
		1, func(m *transport.Message) { got = string(m.Data()) }); err != nil {
		t.Fatal(err)
	}
	if err := r.workers[1].Transport().Handle(tagged.FirstAMID, func(*transport.Message) {}); err == nil {
		t.Error("an id of this package was given to another")
	}
	a, _ := r.connect(0, 1)
	if err := a.Transport().AMShort(1, nil, []byte("own")); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return got == "own" })
}

// TestOtherEndpoints: an endpoint that the program has made beneath is no business of this package.
// A peer that sends it messages of this package is aborted, and the others are served.
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
			h.say(kind, head(8, 0, 0, 0), []byte("astray"))
			h.until(func() bool { h.raw.Worker().Progress(); return own.Err() != nil })
			if err := own.Err(); !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("value %v, message %d: %v", value, kind, err)
			}
		}
	}
	if s := h.workers[0].Stats(); s.Violations != 4*7 || s.Failures != 0 || h.victim.Err() != nil {
		t.Errorf("%+v; %v", s, h.victim.Err())
	}
	h.alive()
}
