package transport_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// hostile is an endpoint whose peer is a bare virtual queue pair that sends arbitrary messages, and
// a link of the same worker.
type hostile struct {
	*link
	victim   *transport.Endpoint
	raw      *ibverbx.VirtualQP
	mr       *ibverbx.MR
	reported []error
	handled  [][]byte // what the victim's handler was given
}

func newHostile(tb testing.TB, s setup) *hostile {
	tb.Helper()
	h := &hostile{}
	s.handle = func(m *transport.Message) {
		if m.Endpoint().Name() == "victim" {
			h.handled = append(h.handled, append(append([]byte{}, m.Header()...), m.Data()...))
		} else {
			h.got++
		}
	}
	h.link = newLink(tb, s)
	h.victim = newEndpoint(tb, h.b.w, transport.EndpointConfig{Name: "victim",
		OnError: func(_ *transport.Endpoint, err error) { h.reported = append(h.reported, err) }})
	dom := h.a.w.Domain()
	cfg := h.b.w.Config().QP
	cfg.Linger = -1
	var err error
	if h.raw, err = dom.NewQP(nil, cfg); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(h.end)
	h.mr, err = dom.Register(make([]byte, 1<<16), verbs.AccessAll)
	must(tb, err)
	qp, err := h.raw.Card()
	must(tb, err)
	theirs := card(tb, h.victim)
	must(tb, h.raw.Connect(theirs.QP))
	must(tb, h.victim.Connect(transport.Card{Version: 2, QP: qp, AMBuffers: 4, BufferSize: 8192, Handlers: 2,
		Flush: h.a.mr.Remote()}))
	for i := range 8 {
		if _, err := h.raw.PostRecv(
			ibverbx.RecvWR{ID: uint64(i), Local: h.mr.Slice(uint64(i)*4096, 4096)}); err != nil {
			tb.Fatal(err)
		}
	}
	return h
}

// end closes what the link does not close.
func (h *hostile) end() {
	if h.closed {
		return
	}
	_ = h.raw.Close()
	_ = h.raw.CQ().Close()
	if err := h.mr.Close(); err != nil {
		h.tb.Error(err)
	}
	h.close()
}

// say sends bytes as one message, unless the queue pair has failed.
func (h *hostile) say(msg []byte) {
	n := copy(h.mr.Bytes()[32768:], msg)
	_, _ = h.raw.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Local: h.mr.Slice(32768, uint64(n))})
	for range 3 {
		h.progress()
		for range h.raw.CQ().Completions() {
		}
	}
}

// works checks that another endpoint on the victim's worker is not affected.
func (h *hostile) works() {
	h.tb.Helper()
	got := h.got
	h.send(h.a, []byte("on"))
	h.until("another endpoint's message", func() bool { return h.got == got+1 })
	must(h.tb, h.a.PutShort([]byte("on"), h.a.peer.At(0)))
	h.flushed(h.a)
	must(h.tb, h.b.Err())
}

// message is a message as an endpoint sends it.
func message(kind, id, length byte, credits uint16, payload string) []byte {
	b := []byte{kind, id, length, 0, 0, 0, 0, 0}
	binary.LittleEndian.PutUint16(b[4:], credits)
	return append(b, payload...)
}

// FuzzHeader: whatever the bytes, the parser refuses them or finds a message in which everything
// lies inside.
func FuzzHeader(f *testing.F) {
	f.Add(message(1, 1, 2, 3, "hdpayload"))
	f.Add(message(2, 0, 0, 5, ""))
	f.Add(message(3, 0, 0, 0, ""))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, msg []byte) {
		kind, id, length, credits, err := transport.ParseHeader(msg)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without text")
			}
			return
		}
		if kind < 1 || kind > 4 || id > uint8(transport.MaxAMID) || int(length) > transport.MaxHeader ||
			8+int(length) > len(msg) {
			t.Fatalf("% x: kind %d, id %d, header of %d bytes", msg, kind, id, length)
		}
		if again := message(kind, id, length, credits, string(msg[8:])); string(again) != string(msg) {
			t.Errorf("% x was read as % x", msg, again)
		}
	})
}

// FuzzHostilePeer: a peer sends messages of arbitrary bytes. Its endpoint may fail, nothing panics,
// and another endpoint works.
func FuzzHostilePeer(f *testing.F) {
	// Each message is preceded by its length.
	say := func(msgs ...[]byte) (all []byte) {
		for _, m := range msgs {
			all = append(append(all, byte(len(m))), m...)
		}
		return all
	}
	good := message(1, 1, 2, 0, "hi there")
	f.Add(byte(0), say(good, good, good, good, good))
	f.Add(byte(1), say(good, message(2, 0, 0, 1, ""), message(3, 0, 0, 0, ""), good))
	f.Add(byte(0), say(message(1, 9, 0, 0, "no handler")))
	f.Add(byte(1), say([]byte{}, []byte{1}, message(1, 1, 64, 0, "short")))
	f.Add(byte(1), say(message(3, 0, 0, 0, ""), message(3, 0, 0, 0, "")))
	f.Fuzz(func(t *testing.T, shape byte, data []byte) {
		if len(data) > 1024 {
			return
		}
		s := shapes()[shape%2]
		s.cfg.AMBuffers, s.cfg.MaxEndpoints, s.cfg.QP.Linger = 3, 4, -1
		h := newHostile(t, s)
		_ = h.victim.AMShort(1, nil, []byte("one of its own"))
		bytes := 0
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			h.say(data[1 : 1+n])
			data = data[1+n:]
			bytes += n
		}
		h.quiet()
		if len(h.reported) > 1 {
			t.Errorf("reported %d times", len(h.reported))
		}
		if (h.victim.Err() != nil) != (len(h.reported) == 1) {
			t.Errorf("reported %v, and Err says %v", h.reported, h.victim.Err())
		}
		for _, m := range h.handled {
			if bytes -= len(m) + 8; bytes < 0 {
				t.Fatal("more was handled than was sent")
			}
		}
		h.works()
		must(t, h.victim.Abort(nil))
		h.end()
	})
}

// FuzzCard: a card of arbitrary JSON is refused with an error or connects, and afterwards the
// endpoint sends, fails or closes, and never panics.
func FuzzCard(f *testing.F) {
	w := newWorld(f, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	good, err := json.Marshal(card(f, newEndpoint(f, worker, transport.EndpointConfig{})))
	must(f, err)
	f.Add(good)
	for _, text := range []string{
		`{}`, `null`, `{"version":2}`, `{"version":1,"am_buffers":4,"buffer_size":8192,"handlers":"3"}`,
		`{"version":2,"am_buffers":-1,"buffer_size":1e99,"handlers":"-1"}`,
		`{"version":2,"qp":{"qpNums":["0000000017"],"notifyQpNum":"0000000000"},"am_buffers":64,` +
			`"buffer_size":8192,"handlers":"2","flush":{"addr":"4096","length":"1024","rkeys":{"0":7}}}`,
		`{"version":2,"flush":{"addr":"18446744073709551615","length":"2","rkeys":{}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var c transport.Card
		if json.Unmarshal(text, &c) != nil {
			return
		}
		w := newWorld(t, setupFabric(1))
		worker := w.worker(
			transport.Config{QP: ibverbx.Config{Linger: -1,
				Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}}, nil, w.fabric.Device(0))
		ep := newEndpoint(t, worker, transport.EndpointConfig{})
		if err := ep.Connect(c); err != nil {
			if err := ep.AMShort(1, nil, nil); !errors.Is(err, transport.ErrNotConnected) {
				t.Errorf("not connected, and an active message says %v", err)
			}
			return
		}
		lim := ep.Limits()
		if lim.AMShort < 0 || lim.AMBcopy < 0 || lim.AMZcopy < 0 {
			t.Errorf("%+v", lim)
		}
		for id := range transport.MaxAMID + 1 {
			_ = ep.AMShort(id, nil, make([]byte, lim.AMShort))
		}
		_, _ = ep.StartFlush(transport.FlushRemote, nil)
		worker.Progress()
		_ = fmt.Sprint(ep.Stats(), ep.Err())
		must(t, ep.Abort(nil))
	})
}

// A header is refused with what is wrong with it, and taken at the bounds.
func TestRangesOfAHeader(t *testing.T) {
	long := string(make([]byte, 64))
	for _, c := range []struct {
		msg  []byte
		says string // "" where it is taken
	}{
		{message(1, 63, 64, 65535, long), ""}, {message(1, 0, 0, 0, ""), ""}, {message(2, 0, 0, 1, ""), ""},
		{message(3, 0, 0, 0, ""), ""},
		{message(1, 1, 0, 0, "")[:7], "message of 7 bytes: a header has 8"},
		{message(0, 1, 0, 0, ""), "unknown kind 0"}, {message(9, 1, 0, 0, ""), "unknown kind 9"},
		{message(2, 0, 0, 0, "x"), "message of kind 2 with a payload"},
		{message(3, 1, 0, 0, ""), "message of kind 3 with a payload"},
		{message(2, 0, 1, 0, ""), "message of kind 2 with a payload"},
		{message(1, 64, 0, 0, ""), "active message 64: ids end at 63"},
		{message(1, 5, 65, 0, long+"x"), "active message 5: a header of 65 bytes in a message of 73"},
		{message(1, 5, 2, 0, "x"), "active message 5: a header of 2 bytes in a message of 9"},
	} {
		kind, id, length, credits, err := transport.ParseHeader(c.msg)
		switch {
		case c.says != "":
			if err == nil || err.Error() != c.says && !strings.HasSuffix(err.Error(), c.says) {
				t.Errorf("% x: error %v, want %q", c.msg[:7], err, c.says)
			}
		case err != nil:
			t.Errorf("% x: %v", c.msg[:8], err)
		case fmt.Sprint(kind, id, length, credits) != fmt.Sprint(c.msg[0], c.msg[1], c.msg[2],
			uint16(c.msg[4])|uint16(c.msg[5])<<8):
			t.Errorf("% x: read as %d, %d, %d, %d", c.msg[:8], kind, id, length, credits)
		}
	}
	for _, at := range []int{3, 6, 7} {
		msg := message(1, 1, 0, 0, "")
		msg[at] = 1
		if _, _, _, _, err := transport.ParseHeader(msg); err == nil ||
			!strings.Contains(err.Error(), "reserved bytes are not zero") {
			t.Errorf("% x: %v", msg, err)
		}
	}
}

// What no peer sends fails the endpoint once, and says why; nothing behind it is handled.
func TestViolationsOfAPeer(t *testing.T) {
	good := message(1, 1, 0, 0, "good")
	for _, c := range []struct {
		says string
		msgs [][]byte
		most int // messages that may be handled
	}{
		{"reserved bytes are not zero", [][]byte{{1, 1, 0, 0, 0, 0, 0, 1}}, 0},
		{"active message 9, which has no handler", [][]byte{message(1, 9, 0, 0, "")}, 0},
		{"5 credits for 4 buffers", [][]byte{message(1, 1, 0, 1, "")}, 0},
		{"65539 credits for 4 buffers", [][]byte{message(2, 0, 0, 65535, "")}, 0},
		{"active message 1 without a credit", [][]byte{good, good, good, good}, 3},
	} {
		eachShape(t, func(t *testing.T, s setup) {
			s.cfg.AMBuffers, s.cfg.MaxEndpoints, s.cfg.QP.Linger = 3, 4, -1
			h := newHostile(t, s)
			var wrs []ibverbx.SendWR
			for i, msg := range append(c.msgs, good) {
				at := uint64(32768 + 64*i)
				copy(h.mr.Bytes()[at:], msg)
				wrs = append(wrs, ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
					Relaxed: true, Local: h.mr.Slice(at, uint64(len(msg)))})
			}
			only(h.raw.PostSend(wrs...))
			h.quiet()
			err := h.victim.Err()
			if !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), c.says) ||
				len(h.reported) != 1 || len(h.handled) > c.most {
				t.Errorf("%d reports, %d messages handled, %v, want %s", len(h.reported), len(h.handled),
					err, c.says)
			}
			h.works()
		})
	}
}
