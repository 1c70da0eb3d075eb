package rc

import (
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// What the simulation sees on the wire: signs of life, and what packets must not say, or not yet.

// packetArrives watches what arrives at an end.
func (w *world) packetArrives(to int, h *wire.Header, payload []byte) {
	a := w.actors[to]
	h.Marked = w.marks != 0 && (uint64(h.PSN)+w.seed)%w.marks == 0
	if h.Opcode == wire.Acknowledge || h.TellsGap() {
		a.negative(h)
	}
	a.echoes = a.echoes || h.Marked && a.e.q.ours && h.Opcode.IsRequest() && a.e.q.IsNear(h)
	if h.Opcode == wire.Acknowledge && h.Syndrome.IsRNR() {
		a.rnrs++
		a.fresh++
		a.mostRNRs = max(a.mostRNRs, a.rnrs) // the requests before it may take time to end
	}
	if len(w.late) < 40 && w.rng.IntN(20) == 0 {
		h := *h
		b := make([]byte, wire.MaxHeader+len(payload)+int(h.Pad)+wire.ICRCSize)
		n := h.Put(b)
		copy(b[n:], payload)
		w.late = append(w.late, datagram{to: to, bytes: b[:n+len(payload)+int(h.Pad)+wire.ICRCSize]})
	}
}

// patience is for how long an end waits without a sign of life.
func (a *actor) patience() int64 {
	return int64(verbs.AckTimeout(a.e.q.Attr.Timeout)) * int64(a.e.q.Attr.RetryCount+1)
}

// hear notes progress: the peer has answered, or something begins to be awaited.
func (a *actor) hear() {
	r, now := &a.e.q.req, a.w.now
	if a.dead != alive || a.e.q.State == verbs.StateErr {
		return
	}
	heard := int(r.una)
	for s := r.una; s < r.next; s++ {
		if r.at(s).state == done {
			heard++
		}
	}
	waits := r.una != r.next
	if heard != a.heard || waits && !a.waited {
		if heard != a.heard {
			a.rnrs = a.fresh
		}
		a.heard, a.progress = heard, now
	}
	if a.waited = waits; !waits {
		return
	}
	if r.timers.rnr != 0 { // until the receiver is ready, and it is asked again
		a.progress = now
	}
	if a.w.shape.rate == 0 && now-a.progress > a.patience()+1e6 {
		a.w.violate("it ends", "nothing is heard for %d, patience %d", now-a.progress, a.patience())
	}
}

// negative notes what a negative acknowledgement that arrives forbids.
func (a *actor) negative(h *wire.Header) {
	r := &a.e.q.req
	s := r.una.near(h.PSN)
	if a.e.q.State != verbs.StateRTS || s < r.una || s >= r.next || r.at(s).state == done ||
		r.at(s).state == lost {
		return // a copy, or of an earlier connection
	}
	switch {
	case h.Syndrome.IsRNR():
		if a.w.now >= a.ready {
			a.ready = a.w.now + int64(verbs.RNRTimer(h.Syndrome.Value()))
			a.again = s
		}
	case h.Syndrome.IsNak() && h.Syndrome != wire.NakSequence && a.stop == 0:
		a.stop = a.begun()
	}
}

// leaves checks what leaves an end: nothing while the peer's receiver is not ready, no request
// behind one that was refused, no fenced request before the answers that it waits for. To a foreign
// peer nothing leaves that only ends of ours send. No read asks for more than the window holds, nor
// for a part of what it asked for before of which nothing has arrived.
func (a *actor) leaves(h *wire.Header) {
	if s := &a.w.shape; !s.announce[1-a.e.id] && !s.ours {
		switch {
		case a.e.q.ours:
			a.w.violate("foreign ends", "the peer, which says nothing, is taken for an end of ours")
		case h.Reserved != 0 && h.Opcode.IsResponse(), h.TellsGap(), h.Backward && h.Opcode.IsResponse():
			a.w.violate("foreign ends", "%+v is no answer for a foreign end", h)
		}
	}
	if h.Opcode == wire.Congestion {
		if a.e.q.ours || a.notified != 0 && a.w.now-a.notified < cnpEvery {
			a.w.violate("congestion", "a CNP leaves %d ns after another, or to an end of ours",
				a.w.now-a.notified)
		}
		a.notified = a.w.now
		return
	}
	if !h.Opcode.IsRequest() {
		a.answers(h)
		return
	}
	a.hear()
	if a.w.now < a.ready {
		a.w.violate("receivers that are not ready", "%v leaves", h.Opcode)
	}
	if a.stop != 0 && a.stop.near(h.PSN) >= a.stop {
		a.w.violate("errors", "%v leaves behind a request that was refused", h.Opcode)
	}
	if window := a.w.shape.window; h.Opcode.IsRead() && window != 0 && int(h.Length) > window {
		a.w.violate("windows", "a read asks for %d bytes, the window has %d", h.Length, window)
	}
	r := &a.e.q.req
	if p := r.readOf(r.una.near(h.PSN)); h.Reserved == wire.Repeated && p != nil &&
		p.left == int(p.end-p.first) && (p.first.psn() != h.PSN || h.Opcode.IsRead() &&
		a.e.q.packets(uint64(h.Length)) != uint64(p.left)) {
		a.w.violate("reads", "number %d of one that nobody may have seen is asked for alone", h.PSN)
	}
	if !h.Opcode.Begins() {
		return
	}
	for i := range a.posted {
		if r := &a.posted[i]; r.fenced && r.first.psn() == h.PSN {
			for _, b := range a.posted[:i] {
				answered := b.wr.Opcode == verbs.OpRDMARead || b.wr.Opcode.IsAtomic()
				if answered && a.e.q.req.una < b.first+seq(b.packets) {
					a.w.violate("fences", "%v %d leaves before %v %d has ended", r.wr.Opcode, r.wr.ID,
						b.wr.Opcode, b.wr.ID)
				}
			}
		}
	}
}

// answers checks an answer that leaves: it tells an end of ours of a mark, and acknowledges nothing
// behind a read or atomic that was not answered. To a foreign peer no acknowledgement leaves for a
// number of a read or atomic.
func (a *actor) answers(h *wire.Header) {
	if a.echoes && !h.Backward && a.e.q.State != verbs.StateErr {
		a.w.violate("congestion", "the peer is not told that its packet was marked")
	}
	a.echoes = false
	s := a.peer.carried.near(h.PSN)
	if h.Opcode != wire.Acknowledge && !h.TellsGap() {
		a.answered = max(a.answered, s+1)
		return
	}
	if h.Opcode == wire.Acknowledge && h.Syndrome.IsAck() {
		if !a.e.q.ours && a.peer.asks(h.PSN) {
			a.w.violate("answers", "a read or atomic of number %d is acknowledged", h.PSN)
		}
		s++
	}
	for i := range a.peer.posted {
		r := &a.peer.posted[i]
		end := r.first + seq(r.packets)
		if (r.wr.Opcode == verbs.OpRDMARead || r.wr.Opcode.IsAtomic()) && end <= s && end > a.answered {
			a.w.violate("answers", "all before %d is acknowledged, before the answer to %v %d", s.psn(),
				r.wr.Opcode, r.wr.ID)
		}
	}
}

// asks reports whether a number is that of a read or atomic whose answer is missing.
func (a *actor) asks(psn uint32) bool {
	for i := range a.posted {
		r := &a.posted[i]
		if s := r.first.near(psn); s >= max(r.first, a.e.q.req.una) && s < r.first+seq(r.packets) {
			return r.wr.Opcode == verbs.OpRDMARead || r.wr.Opcode.IsAtomic()
		}
	}
	return false
}
