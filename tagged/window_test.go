package tagged_test

import (
	"bytes"
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
)

// TestWindow: a sender has no more than MaxUnexpected fragments and announcements at a receiver
// that does not receive; the rest waits, and goes out in order as messages are received.
func TestWindow(t *testing.T) {
	const window = 4
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: window})
	w := b.Worker()
	const n = 50
	var sends []*tagged.Request
	length := func(i int) int { return []int{8, 20000}[i%2] }
	for i := range n {
		sends = append(sends, r.send(a, uint64(i), pattern(length(i), i)))
	}
	r.settle()
	if s := w.Stats(); s.Unexpected != window {
		t.Fatalf("%d messages are kept: want %d", s.Unexpected, window)
	}
	for i := range n {
		buf := make([]byte, length(i))
		d := r.recv(w, uint64(i), tagged.Exact, buf)
		r.done(d)
		if d.Err() != nil || !bytes.Equal(buf, pattern(len(buf), i)) {
			t.Fatalf("message %d: %v", i, d.Err())
		}
		if got := w.Stats().Unexpected; got > window {
			t.Fatalf("%d messages are kept", got)
		}
	}
	r.done(sends...)
}

// TestWindowInFragments: one message of more fragments than the window arrives, because the places
// of its first fragments are granted again before its end.
func TestWindowInFragments(t *testing.T) {
	for _, window := range []int{1, 2, 3} {
		r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: window, EagerLimit: 1 << 20})
		for _, first := range []string{"send", "recv"} {
			src, dst := pattern(200000, 1), make([]byte, 200000)
			var s, d *tagged.Request
			if first == "send" {
				s = r.send(a, 1, src)
				r.settle()
			}
			d = r.recv(b.Worker(), 1, tagged.Exact, dst)
			if first == "recv" {
				s = r.send(a, 1, src)
			}
			r.done(s, d)
			if d.Err() != nil || !bytes.Equal(src, dst) {
				t.Fatalf("window %d, %s first: %v", window, first, d.Err())
			}
		}
	}
}

// TestNoDeadlock: two ends send each other messages of all kinds with the smallest of all
// resources, and each receives only after everything was sent.
func TestNoDeadlock(t *testing.T) {
	cfg := tagged.Config{
		MaxUnexpected: 1, Chunk: 5000, Window: 1, EagerLimit: 3000,
		Transport: transport.Config{BufferSize: 512, BounceBuffers: 1, AMBuffers: 1, MaxOutstanding: 1,
			QP: ibverbx.Config{QPsPerDevice: 2}},
	}
	r, a, b := pair(t, 1, cfg)
	const n = 60
	length := func(i int) int { return []int{0, 8, 2500, 20000, 400}[i%5] }
	var all []*tagged.Request
	bufs := map[*tagged.Endpoint][][]byte{}
	for i := range n {
		for _, e := range []*tagged.Endpoint{a, b} {
			send := e.Send
			if i%4 == 0 {
				send = e.SendSync
			}
			req, err := send(uint64(i), pattern(length(i), i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, req)
		}
	}
	r.settle()
	for i := range n {
		for _, e := range []*tagged.Endpoint{a, b} {
			buf := make([]byte, length(i))
			bufs[e] = append(bufs[e], buf)
			all = append(all, r.recv(e.Worker(), uint64(i), tagged.Exact, buf))
		}
	}
	r.done(all...)
	for e, list := range bufs {
		for i, buf := range list {
			if !bytes.Equal(buf, pattern(length(i), i)) {
				t.Fatalf("%s: message %d differs", e.Name(), i)
			}
		}
	}
}

// TestReadsNeedNoCredit: a peer whose program keeps every buffer for active messages holds up what
// this end sends, and nothing that this end receives: a long message that was announced is read,
// whether or not sends, or the program's own requests, wait for a credit.
func TestReadsNeedNoCredit(t *testing.T) {
	for _, c := range []struct{ posted, program bool }{{false, false}, {true, false}, {false, true},
		{true, true}} {
		cfg := tagged.Config{Chunk: 10000, Window: 2, Transport: transport.Config{KeepAlive: -1,
			MaxOutstanding: 40}}
		r := newRig(t, 2, 1, cfg)
		var kept []*transport.Message
		keep := func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
		for _, w := range r.workers {
			if err := w.Transport().Handle(1, keep); err != nil {
				t.Fatal(err)
			}
		}
		a, b := r.connect(0, 1)
		w := a.Worker()
		dst := make([]byte, 100000)
		var d *tagged.Request
		if c.posted {
			d = r.recv(w, 1, tagged.Exact, dst)
		}
		for a.Transport().Stats().Credits != 0 {
			if err := a.Transport().AMShort(1, nil, []byte("kept")); err != nil &&
				!errors.Is(err, transport.ErrNoResource) {
				t.Fatal(err)
			}
			r.settle()
		}
		own := &transport.Pending{}
		own.Func = func(_ *transport.Pending, headView *transport.Endpoint) transport.Outcome {
			if headView.AMShort(1, nil, []byte("own")) != nil {
				return transport.PendingNoResource
			}
			return transport.PendingDone
		}
		if c.program {
			if err := a.Transport().AMShort(1, nil, nil); !errors.Is(err, transport.ErrNoResource) {
				t.Fatal(err)
			}
			if err := a.Transport().Pending(own); err != nil {
				t.Fatal(err)
			}
		}
		short := r.send(a, 2, []byte("waits for a credit"))
		long := r.send(b, 1, pattern(len(dst), 3))
		r.settle()
		if !c.posted {
			d = r.recv(w, 1, tagged.Exact, dst)
		}
		r.settle()
		r.until(func() bool { r.settle(); return d.Done() })
		if d.Err() != nil || !bytes.Equal(dst, pattern(len(dst), 3)) {
			t.Fatalf("%+v: %v", c, d.Err())
		}
		if short.Done() || long.Done() {
			t.Fatalf("%+v: a message has gone out without a credit: %t, %t", c, short.Done(), long.Done())
		}
		got := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 100))
		for _, m := range kept {
			m.Release()
		}
		r.done(short, long, got)
		r.settle()
		for _, m := range kept[min(len(kept), w.Config().Transport.AMBuffers):] {
			m.Release()
		}
	}
}
