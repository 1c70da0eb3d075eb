package tagged_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// hostile is a peer that sends active messages of any content to one endpoint of a worker, which
// has a good peer, too.
type hostile struct {
	*rig
	victim  *tagged.Endpoint
	raw     *transport.Endpoint      // the hostile peer's end
	good    *tagged.Endpoint         // of the good peer
	served  *tagged.Endpoint         // the victim's worker's end towards it
	errors  int                      // calls of the victim's OnError
	receive func(*transport.Message) // may be nil; what the hostile peer's handlers do
}

const window = 8

func newHostile(t testing.TB) *hostile {
	t.Helper()
	small := transport.Config{AMBuffers: 8, MaxOutstanding: 8, BounceBuffers: 8, BufferSize: 1024,
		QP: ibverbx.Config{QPsPerDevice: 1}}
	cfg := tagged.Config{MaxUnexpected: window, Transport: small}
	h := &hostile{rig: newRig(t, 3, 1, cfg)}
	tw, err := transport.NewWorker(h.domains[1], cfg.Transport)
	if err != nil {
		t.Fatal(err)
	}
	h.before = append(h.before, func() {
		if err := tw.Close(); err != nil {
			t.Error(err)
		}
	})
	for id := range transport.AMID(7) {
		if err := tw.Handle(tagged.FirstAMID+id, func(m *transport.Message) {
			if h.receive != nil {
				h.receive(m)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if h.raw, err = tw.NewEndpoint(transport.EndpointConfig{}); err != nil {
		t.Fatal(err)
	}
	h.victim = h.endpoint(0, tagged.EndpointConfig{OnError: func(*tagged.Endpoint, error) { h.errors++ }})
	mine, err := h.victim.Card()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := h.raw.Card()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.victim.Connect(tagged.Card{Version: 1, MaxUnexpected: window, Transport: raw}); err != nil {
		t.Fatal(err)
	}
	if err := h.raw.Connect(mine.Transport); err != nil {
		t.Fatal(err)
	}
	h.good, h.served = h.connect(2, 0)
	return h
}

// post sends an active message, and reports whether it could.
func (h *hostile) post(kind int, header, payload []byte) bool {
	h.t.Helper()
	for range 100 {
		_, err := h.raw.AMBcopy(tagged.FirstAMID+transport.AMID(kind), header,
			func(dst []byte) int { return copy(dst, payload) })
		if !errors.Is(err, transport.ErrNoResource) {
			return err == nil
		}
		h.raw.Worker().Progress()
		h.settle()
	}
	return false
}

// checkGood checks that the worker still serves its good peer. Only that one's message counts: the
// hostile peer may have sent one with the same tag.
func (h *hostile) checkGood() {
	h.t.Helper()
	buf := make([]byte, 16)
	d, err := h.served.Recv(1<<60, tagged.Exact, buf)
	if err != nil {
		h.t.Fatal(err)
	}
	h.done(h.send(h.good, 1<<60, []byte("still here")), d)
	if d.Err() != nil || string(buf[:10]) != "still here" {
		h.t.Fatalf("the other peer: %v, %q", d.Err(), buf)
	}
}

// head is a header of n bytes that grants the given places.
func head(n int, grant uint16, flag byte, id uint32, words ...uint64) []byte {
	b := binary.LittleEndian.AppendUint16(nil, grant)
	b = binary.LittleEndian.AppendUint32(append(b, flag, 0), id)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b[:n]
}

const (
	eager = iota
	first
	more
	announce
	done
	giveBack
	batch
	route
)

// message is one active message.
type message struct {
	kind            int
	header, payload []byte
}

func segment(addr, n uint64) []byte {
	return ibverbx.RemoteSegment{Addr: addr, Length: n,
		Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{1: 12345})}.AppendBinary(nil)
}

// entry begins a message of a batch.
func entry(tag uint64, n uint16) []byte {
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint64(nil, tag), n)
}

// TestProtocolViolations: what no endpoint sends fails the endpoint that receives it, with
// ErrProtocol, and no other.
func TestProtocolViolations(t *testing.T) {
	x := []byte("x")
	whole := message{eager, head(16, 0, 0, 0, 1), x}
	begin := message{first, head(24, 0, 0, 0, 1, 10), x}
	announced := message{announce, head(24, 0, 1, 7, 1, 100), segment(64, 100)}
	for _, c := range []struct {
		what, want string
		messages   []message
	}{
		{"header too short", "a header of 15 bytes", []message{{eager, head(15, 0, 0, 0, 1), x}}},
		{"header too long", "a header of 24 bytes", []message{{eager, head(24, 0, 0, 0, 1, 1), x}}},
		{"reserved byte", "byte 3 is not zero",
			[]message{{eager, append([]byte{0, 0, 0, 1}, make([]byte, 12)...), x}}},
		{"unknown flag", "flags 0x2", []message{{eager, head(16, 0, 2, 0, 1), x}}},
		{"number without flag", "number 3", []message{{eager, head(16, 0, 0, 3, 1), x}}},
		{"window from nowhere", "a window of 9", []message{{giveBack, head(8, 1, 0, 0), nil}}},
		{"window of nothing", "window 0", []message{{giveBack, head(8, 0, 0, 0), nil}}},
		{"window with payload", "1 bytes", []message{{giveBack, head(8, 0, 0, 0), x}}},
		{"notice of nothing", "notice of message 1", []message{{done, head(8, 0, 0, 1), nil}}},
		{"notice again", "notice of message 1",
			[]message{{done, head(8, 1, 0, 1), nil}, {done, head(8, 0, 0, 1), nil}}},
		{"notice far away", "notice of message 2147483648", []message{{done, head(8, 0, 0, 1<<31), nil}}},
		{"notice of message 0", "notice of message 0", []message{{done, head(8, 0, 0, 0), nil}}},
		{"fragment of nothing", "0 bytes missing", []message{{more, head(16, 0, 0, 0, 1), x}}},
		{"first fragment of no bytes", "first fragment with 0 bytes",
			[]message{{first, head(24, 0, 0, 0, 1, 10), nil}}},
		{"first fragment of everything", "first fragment with 1 bytes of 1",
			[]message{{first, head(24, 0, 0, 0, 1, 1), x}}},
		{"length beyond int", "first fragment with", []message{{first, head(24, 0, 0, 0, 1, 1<<63), x}}},
		{"message amid another", "9 bytes missing", []message{begin, whole}},
		{"first amid another", "9 bytes missing", []message{begin, begin}},
		{"announcement amid another", "9 bytes missing", []message{begin, announced}},
		{"fragment at another place", "at 2: 1 of 10", []message{begin, {more, head(16, 0, 0, 0, 2), x}}},
		{"fragment again", "at 1: 2 of 10", []message{begin, {more, head(16, 0, 0, 0, 1), x},
			{more, head(16, 0, 0, 0, 1), x}}},
		{"fragment too long", "fragment of 10 bytes",
			[]message{begin, {more, head(16, 0, 0, 0, 1), []byte("0123456789")}}},
		{"fragment of no bytes", "fragment of 0 bytes", []message{begin, {more, head(16, 0, 0, 0, 1), nil}}},
		{"announcement without memory", "in 0 pieces", []message{{announce, head(24, 0, 0, 1, 1, 100), nil}}},
		{"announcement of many pieces", "in 5 pieces", []message{{announce, head(24, 0, 5, 1, 1, 100), nil}}},
		{"announcement cut off", "17", []message{{announce, head(24, 0, 1, 1, 1, 100), x}}},
		{"announcement of other length", "its pieces have 99",
			[]message{{announce, head(24, 0, 1, 1, 1, 100), segment(64, 99)}}},
		{"announcement of a longer piece", "piece 0 of 1 has 101",
			[]message{{announce, head(24, 0, 1, 1, 1, 100), segment(64, 101)}}},
		{"announcement of an empty piece", "piece 0 of 1 has 0",
			[]message{{announce, head(24, 0, 1, 1, 1, 0), segment(64, 0)}}},
		{"bytes behind it", "stand behind",
			[]message{{announce, head(24, 0, 1, 1, 1, 100), append(segment(64, 100), 0)}}},
		{"batch of nothing", "ends in 0 bytes", []message{{batch, head(8, 0, 0, 0), nil}}},
		{"batch cut off", "ends in 1 bytes",
			[]message{{batch, head(8, 0, 0, 0), append(entry(0, 3), 'a', 'b', 'c', 'd')}}},
		{"batch with a long message", "a message of 5 bytes in 4",
			[]message{{batch, head(8, 0, 0, 0), append(entry(0, 5), 'a', 'b', 'c', 'd')}}},
		{"batch with a flag", "batch: flags", []message{{batch, head(8, 0, 1, 0), entry(0, 0)}}},
		{"batch amid another", "9 bytes missing", []message{begin, {batch, head(8, 0, 0, 0), entry(0, 0)}}},
		{"batch beyond the window", "beyond the window",
			[]message{{batch, head(8, 0, 0, 0), bytes.Repeat(entry(0, 0), 9)}}},
		{"routed to no rank", "a routed message", []message{{route, head(24, 0, 0, 0, 1<<32, 0), nil}}},
		{"routed beyond its end", "1 bytes at 5 of 5", []message{{route, head(24, 0, 0, 5, 1<<32, 5), x}}},
		{"routed and unknown", "kind 4", []message{{route, head(24, 0, 4, 1, 1<<32, 0), x}}},
		{"beyond the window", "beyond the window", []message{whole, whole, whole, whole, whole, whole, whole,
			whole, whole}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newHostile(t)
			if c.what == "notice again" { // it does not complete another send
				if _, err := h.victim.SendSync(1, x); err != nil {
					t.Fatal(err)
				}
			}
			for _, m := range c.messages {
				h.post(m.kind, m.header, m.payload)
			}
			h.until(func() bool { h.raw.Worker().Progress(); return h.errors != 0 })
			if err := h.victim.Err(); !errors.Is(err, tagged.ErrProtocol) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %q in it", err, c.want)
			}
			if s := h.workers[0].Stats(); s.Violations != 1 || s.Failures != 1 {
				t.Errorf("%+v", s)
			}
			h.checkGood()
			if h.errors != 1 {
				t.Errorf("OnError ran %d times", h.errors)
			}
		})
	}
}

// TestNoticesAreBounded: a peer that sends synchronous messages and receives hardly a message
// cannot make notices pile up, since the places of its messages come back with the notices.
func TestNoticesAreBounded(t *testing.T) {
	h := newHostile(t)
	room, unnoticed := window, 0
	var kept []*transport.Message
	h.receive = func(m *transport.Message) {
		m.Keep()
		kept = append(kept, m)
		room += int(binary.LittleEndian.Uint16(m.Header()))
		if m.ID() == tagged.FirstAMID+done {
			unnoticed--
		}
	}
	victim := h.victim.Worker()
	for id := uint32(1); id < 200; {
		h.recv(victim, 1, tagged.Exact)
		h.recv(victim, 1, tagged.Exact)
		for range 2 {
			if room != 0 && h.post(eager, head(16, 0, 1, id, 1), nil) {
				room--
				unnoticed++
				id++
			}
		}
		h.settle()
		h.raw.Worker().Progress()
		if unnoticed > window || h.victim.Stats().Notices > window {
			t.Fatalf("%d notices wait, in a window of %d: %+v", unnoticed, window, h.victim.Stats())
		}
		if len(kept) != 0 { // one message's buffer goes back
			kept[0].Release()
			kept = kept[1:]
		}
	}
	h.receive = nil
	for _, m := range kept {
		m.Release()
	}
	h.until(func() bool { h.raw.Worker().Progress(); return h.victim.Stats().Notices == 0 })
	if err := h.victim.Err(); err != nil {
		t.Error(err)
	}
	h.checkGood()
}

// TestWrongMemory: an announcement of memory that is not there fails its endpoint and the receive,
// and nothing else.
func TestWrongMemory(t *testing.T) {
	for what, payload := range map[string][]byte{
		"no such key": segment(1<<20, 100000),
		"no key":      ibverbx.RemoteSegment{Addr: 1 << 20, Length: 100000}.AppendBinary(nil),
	} {
		h := newHostile(t)
		d := h.recv(h.workers[0], 1, tagged.Exact, make([]byte, 100000))
		h.post(announce, head(24, 0, 1, 1, 1, 100000), payload)
		h.until(func() bool { h.raw.Worker().Progress(); return d.Done() && h.errors != 0 })
		if err := d.Err(); !errors.Is(err, tagged.ErrPeerFailed) && !errors.Is(err, tagged.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
		h.checkGood()
	}
}

// FuzzHostilePeer feeds a worker with active messages of any content. It never panics; only the
// endpoint that receives them fails, and the good peer is served.
func FuzzHostilePeer(f *testing.F) {
	add := func(messages ...message) {
		var b []byte
		for _, m := range messages {
			b = append(append(b, byte(m.kind), byte(len(m.header))), m.header...)
			b = append(append(b, byte(len(m.payload))), m.payload...)
		}
		f.Add(b)
	}
	add(message{eager, head(16, 0, 1, 9, 1), []byte("sync")}, message{announce, head(24, 0, 1, 7, 1, 100),
		segment(64, 100)})
	add(message{first, head(24, 0, 0, 0, 1, 4), []byte("xy")},
		message{more, head(16, 0, 0, 0, 2), []byte("xy")})
	add(message{done, head(8, 1, 0, 1), nil}, message{done, head(8, 1, 0, 2), nil},
		message{giveBack, head(8, 2, 0, 0), nil})
	add(message{batch, head(8, 0, 0, 0), append(append(entry(1, 1), 'x'), entry(0, 0)...)})
	add(message{announce, head(24, 0, 2, 7, 0, 30), append(segment(64, 10), segment(640, 20)...)})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := newHostile(t)
		// Requests that the messages can concern.
		reqs := []*tagged.Request{
			h.recv(h.workers[0], 0, ^uint64(1), make([]byte, 3)),
			h.recv(h.workers[0], 1, tagged.Exact, make([]byte, 200)),
			h.send(h.victim, 1, []byte("x")), h.send(h.victim, 2, make([]byte, 100000)),
		}
		if s, err := h.victim.SendSync(3, []byte("y")); err == nil {
			reqs = append(reqs, s)
		}
		take := func(n int) []byte {
			n = min(n, len(b))
			p := b[:n]
			b = b[n:]
			return p
		}
		for len(b) >= 2 {
			kind, n := int(b[0]%7), int(b[1])
			b = b[2:]
			header := take(min(n, transport.MaxHeader))
			var payload []byte
			if len(b) != 0 {
				n := int(b[0])
				b = b[1:]
				payload = take(n)
			}
			if !h.post(kind, header, payload) {
				break
			}
		}
		h.settle()
		h.raw.Worker().Progress()
		h.checkGood()
		if err := h.victim.Err(); err != nil && !errors.Is(err, tagged.ErrProtocol) &&
			!errors.Is(err, tagged.ErrPeerFailed) {
			t.Fatal(err)
		}
		_ = h.victim.Abort()
		h.settle()
		for i, req := range reqs {
			if req != nil && !req.Done() && !req.Cancel() {
				t.Fatalf("request %d is neither done nor can it be cancelled", i)
			}
		}
	})
}

// TestClaimWhileItArrives: a message can be claimed when its first fragment is here, and received
// before the last is, or after; without it, the receive ends with the peer.
func TestClaimWhileItArrives(t *testing.T) {
	h := newHostile(t)
	w := h.workers[0]
	begin := func() *tagged.Message {
		t.Helper()
		h.post(first, head(24, 0, 0, 0, 1, 3), []byte("a"))
		h.until(func() bool { h.raw.Worker().Progress(); _, ok := w.Probe(1, tagged.Exact); return ok })
		m, ok := w.Claim(1, tagged.Exact)
		if !ok || m.Info().Length != 3 {
			t.Fatal("no claim")
		}
		return m
	}
	finish := func() {
		h.post(more, head(16, 0, 0, 0, 1), []byte("bc"))
		h.until(func() bool { h.raw.Worker().Progress(); return h.victim.Stats().ReceivedBytes%3 == 0 })
	}
	for _, early := range []bool{true, false} {
		m, buf := begin(), make([]byte, 3)
		if !early {
			finish()
		}
		d, err := m.Recv(buf)
		if err != nil || d.Done() == early {
			t.Fatal(err, d.Done())
		}
		if early {
			finish()
		}
		if d.Err() != nil || !d.Done() || string(buf) != "abc" {
			t.Errorf("received early %t: %v, %q", early, d.Err(), buf)
		}
	}
	m := begin()
	if err := h.victim.Abort(); err != nil {
		t.Fatal(err)
	}
	if d, err := m.Recv(make([]byte, 3)); err != nil || !errors.Is(d.Err(), tagged.ErrCanceled) {
		t.Error(err, d.Err())
	}
	h.checkGood()
}
