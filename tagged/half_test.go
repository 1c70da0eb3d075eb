package tagged_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// TestHalfAMessageOfAFailedPeer: a message that has begun to arrive ends with its peer. The receive
// that had matched it has the peer's error, one that comes later, too, and a message that had
// arrived whole can still be received.
func TestHalfAMessageOfAFailedPeer(t *testing.T) {
	begin := message{first, head(24, 0, 0, 0, 1, 10), []byte("half")}
	for _, c := range []struct {
		what   string
		before []byte // the buffer of a receive that is posted before; nil: none
	}{{"matched", make([]byte, 10)}, {"unexpected", nil}, {"truncated", make([]byte, 9)}} {
		t.Run(c.what, func(t *testing.T) {
			h := newHostile(t)
			w := h.workers[0]
			h.post(eager, head(16, 0, 0, 0, 2), []byte("whole"))
			var r *tagged.Request
			if c.before != nil {
				r = h.recv(w, 1, tagged.Exact, c.before)
			}
			h.post(begin.kind, begin.header, begin.payload)
			h.until(func() bool {
				return w.Stats().CameUnexpected == 2 || r != nil &&
					string(c.before[:4]) == "half" || r != nil && r.Done()
			})
			switch c.what {
			case "unexpected":
				if info, found := w.Probe(1, tagged.Exact); !found || info.Length != 10 {
					t.Errorf("the beginning: %v, %+v", found, info)
				}
			case "truncated":
				if !r.Done() || !errors.Is(r.Err(), tagged.ErrTruncated) {
					t.Errorf("a receive that is too short: %v, %v", r.Done(), r.Err())
				}
			case "matched":
				if r.Done() {
					t.Error("done with half a message")
				}
			}
			h.post(more, head(16, 0, 0, 0, 3), []byte("x")) // at another place: the peer fails
			h.until(func() bool { return h.errors == 1 })
			if c.what == "matched" && (!r.Done() || !errors.Is(r.Err(), tagged.ErrProtocol)) {
				t.Errorf("the receive that had matched: %v, %v", r.Done(), r.Err())
			}
			if c.what == "unexpected" {
				late := h.recv(w, 1, tagged.Exact, make([]byte, 10))
				if !late.Done() || !errors.Is(late.Err(), tagged.ErrProtocol) {
					t.Errorf("a receive that matches it now: %v, %v", late.Done(), late.Err())
				}
			}
			if _, found := w.Probe(1, tagged.Exact); found {
				t.Error("the beginning is still there")
			}
			whole := make([]byte, 5)
			if r := h.recv(w, 2, tagged.Exact, whole); !r.Done() || r.Err() != nil ||
				string(whole) != "whole" {
				t.Errorf("the message that had arrived: %v, %v, %q", r.Done(), r.Err(), whole)
			}
			h.checkGood()
		})
	}
}

// TestFragmentsOfADroppedMessage: what follows a message that its receive was too short for is
// dropped, and the places of all fragments go back.
func TestFragmentsOfADroppedMessage(t *testing.T) {
	h := newHostile(t)
	w := h.workers[0]
	for range 5 { // more places than the window has
		r := h.recv(w, 1, tagged.Exact, make([]byte, 2))
		h.post(first, head(24, 0, 0, 0, 1, 3), []byte("a"))
		h.post(more, head(16, 0, 0, 0, 1), []byte("b"))
		h.post(more, head(16, 0, 0, 0, 2), []byte("c"))
		h.done(r)
		if !errors.Is(r.Err(), tagged.ErrTruncated) {
			t.Fatal(r.Err())
		}
		h.settle()
		buf := make([]byte, 1)
		r = h.recv(w, 2, tagged.Exact, buf)
		h.post(eager, head(16, 0, 0, 0, 2), []byte("d"))
		h.done(r)
		if r.Err() != nil || buf[0] != 'd' {
			t.Fatalf("%v, %q", r.Err(), buf)
		}
	}
	if err := h.victim.Err(); err != nil || h.errors != 0 {
		t.Errorf("%v", err)
	}
	h.checkGood()
}

// TestBadAnnouncementWhileSendsWait: memory that the peer cannot have ends the endpoint at once,
// while its sends wait for credits of the transport.
func TestBadAnnouncementWhileSendsWait(t *testing.T) {
	h := newHostile(t)
	w := h.workers[0]
	var kept []*transport.Message
	h.receive = func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
	// A notice and seven sends take the eight credits; the eighth send has a place and no credit.
	d := h.recv(w, 9, tagged.Exact, make([]byte, 1))
	h.post(eager, head(16, 0, 1, 3, 9), []byte("x"))
	h.done(d)
	h.until(func() bool { h.raw.Worker().Progress(); return len(kept) == 1 })
	var sends []*tagged.Request
	for i := range 8 {
		if r := h.send(h.victim, 5, []byte("y")); i == 7 {
			sends = append(sends, r)
		}
	}
	h.until(func() bool { h.raw.Worker().Progress(); return len(kept) == 8 })
	if sends[0] == nil || sends[0].Done() {
		t.Fatal("a send went out without a credit")
	}
	r := h.recv(w, 1, tagged.Exact, make([]byte, 100))
	nowhere := ibverbx.RemoteSegment{Addr: 64, Length: 100,
		Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{40: 1})}.AppendBinary(nil)
	h.post(announce, head(24, 0, 1, 7, 1, 100), nowhere)
	h.until(func() bool { return h.errors == 1 })
	for _, req := range append(sends, r) {
		h.done(req)
		if !errors.Is(req.Err(), tagged.ErrProtocol) {
			t.Errorf("a request of the endpoint: %v", req.Err())
		}
	}
	if err := h.victim.Err(); !errors.Is(err, tagged.ErrProtocol) || !errors.Is(err, ibverbx.ErrNoKey) {
		t.Errorf("%v", err)
	}
	for _, m := range kept {
		m.Release()
	}
	h.checkGood()
}
