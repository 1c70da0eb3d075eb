package sim

import (
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// With failover a physical request may go out again when its rail has died. This file has the rules
// for that: only parts that are certainly lost go out again, on another rail, unchanged, and not
// ahead of earlier lost parts.

// part is a piece of a request that travels over one queue pair at a time: the content of a
// physical request and of its copies.
type part struct {
	of    *send
	kind  partKind
	at, n int // of data: the offset and the bytes; of a marker: its number
	op    verbs.Opcode
	imm   uint32

	// the last copy
	on    *wireLife
	place int // among everything that went out on that queue pair
	state partState
}

type partKind uint8

const (
	partData   partKind = iota // a fragment, an atomic or a relaxed SEND
	partMarker                 // a number without data
	partRaw                    // the user's immediate behind the last fragment
	partFinal                  // an ordinary SEND or a notification of Spray
)

type partState uint8

const (
	partOnNIC partState = iota
	partAcked
	partLost // it has failed or was flushed; it may have arrived
)

// covered reports whether the last copy of a part has arrived, as the peer's library has seen. A
// last fragment that the user's immediate follows arrives with the immediate.
func (p *part) covered() bool {
	e := p.on.q.end
	return p.on.arrived() > p.place && (!p.announces(e) || !e.owesRaw(p.of))
}

// ended reports whether the library may know that no copy of a part is on its way, and that it need
// not go out again.
func (p *part) ended() bool {
	if p.on.q.end.conn.hostile { // the arrivals are unknown
		return p.state != partOnNIC
	}
	return p.state == partAcked || p.state == partLost && p.on.settled() && (p.covered() || p.op.IsAtomic())
}

// numbered reports whether a part carries a number of DQPLB.
func (p *part) numbered(e *end) bool {
	return p.op == verbs.OpRDMAWriteWithImm && p.kind <= partMarker && e.vq.Scheme() == ibverbx.DQPLB
}

// announces reports whether a part is a last fragment that the user's immediate follows.
func (p *part) announces(e *end) bool {
	_, _, raw, _ := number(p.imm)
	return p.numbered(e) && raw
}

// partOf returns the part of a request that a physical request carries, and whether that has gone
// out before.
func (e *end) partOf(q *wire, s *send, wr *verbs.SendWR) (p *part, again bool) {
	if wr.Opcode == verbs.OpRDMAWriteWithImm && q.raw && (wr.Bytes() != 0 || wr.Imm != s.imm) &&
		!e.conn.hostile && (!e.leaving || !q.dead()) {
		e.w.Broken(ruleWire, "%v: between a last fragment and its immediate come %d bytes of %v on %v, in "+
			"%v: %#x", e, wr.Bytes(), s, q, q.State(), wr.Imm)
	}
	p = &part{of: s, op: wr.Opcode, imm: wr.Imm, n: int(wr.Bytes()), on: q.wireLife}
	if !wr.Opcode.HasImm() {
		p.imm = 0
	}
	switch {
	case wr.Opcode.IsSend():
		if !s.relax {
			p.kind = partFinal
		}
	case wr.Opcode == verbs.OpRDMAWriteWithImm && e.vq.Scheme() == ibverbx.Spray:
		p.kind = partFinal
	case wr.Opcode == verbs.OpRDMAWriteWithImm && q.raw:
		p.kind = partRaw
	case wr.Opcode == verbs.OpRDMAWriteWithImm && p.n == 0 && !isLast(wr.Imm):
		n, _, _, _ := number(wr.Imm)
		p.kind, p.at = partMarker, int(n)
	case !s.op.IsAtomic():
		p.at = int(wr.RemoteAddr-e.peer.host.MR.Addr()) - s.remote.Off
	}
	for _, known := range s.parts {
		if known.kind == p.kind && known.at == p.at {
			return known, true
		}
	}
	return p, false
}

func isLast(imm uint32) bool {
	_, last, _, _ := number(imm)
	return last
}

// enterPart records a part that goes out for the first time.
func (e *end) enterPart(s *send, p *part) {
	for _, other := range s.parts {
		if p.kind == partData && other.kind == partData && p.at < other.at+other.n && other.at < p.at+p.n {
			e.w.Broken(ruleRepeat, "%v: bytes %d to %d of %v go out, and %d to %d did before", e, p.at,
				p.at+p.n, s, other.at, other.at+other.n)
		}
	}
	s.parts = append(s.parts, p)
	e.putOn(p.on.q, p)
}

// putOn records that a part goes out on a queue pair. A nil part is one of the library's own
// messages.
func (e *end) putOn(q *wire, p *part) {
	if p == nil {
		q.out, q.takers = append(q.out, nil), append(q.takers, len(q.out))
		return
	}
	p.on, p.place, p.state = q.wireLife, len(q.out), partOnNIC
	q.out = append(q.out, p)
	switch {
	case p.announces(e):
		q.takers = append(q.takers, -1)
	case p.op.IsSend() || p.op.HasImm():
		q.takers = append(q.takers, p.place)
	}
}

// repeatOnWire checks a part that goes out again.
func (e *end) repeatOnWire(q *wire, s *send, p *part, wr *verbs.SendWR) {
	dead := e.leaving && q.dead() // it is flushed at once
	if why := e.whyNotAgain(q, s, p, wr); why != "" && !e.conn.hostile && !dead {
		e.w.Broken(ruleRepeat, "%v: %v of %d bytes of %v goes out on %v, and did on %v before: %s", e,
			wr.Opcode, wr.Bytes(), s, q, p.on.q, why)
	}
	if (p.kind == partFinal || s.relax || p.numbered(e) && isLast(p.imm)) && !e.conn.hostile {
		e.mustSolicit(s, wr)
	}
	if !e.conn.hostile {
		e.repeats++
	}
	switch {
	case p.kind == partRaw:
		q.raw = false
	case p.numbered(e):
		q.raw, q.plain = p.announces(e), false
	case isWrite(p.op) && p.kind == partData:
		q.plain = true
	}
	e.putOn(q, p)
}

// whyNotAgain returns why a part may not go out again; "" if it may.
func (e *end) whyNotAgain(q *wire, s *send, p *part, wr *verbs.SendWR) string {
	was, m := p.on, p.on.mate()
	switch {
	case s.op.IsAtomic():
		return "atomics are not repeated"
	case p.state == partAcked && (!p.announces(e) || !e.owesRaw(s)):
		return "it was acknowledged"
	case p.state == partOnNIC:
		return "the NIC still has it"
	case was == q.wireLife:
		return "that is the same rail"
	case !was.dead() || was.sendsHeld() != 0:
		return sprintf("that rail has not given back all: it is in %v and has %d requests", was.q.State(),
			was.sendsHeld())
	case p.n != int(wr.Bytes()) || p.op != wr.Opcode || wr.Opcode.HasImm() && p.imm != wr.Imm:
		return sprintf("that was a %v of %d bytes with immediate %#x, and this one has %#x", p.op, p.n, p.imm,
			wr.Imm)
	case p.op == verbs.OpRDMARead || m == nil:
		return ""
	case !m.dead():
		return sprintf("the peer's end of that rail is in %v and takes late packets", m.q.State())
	case m.recvsHeld() != 0:
		return sprintf("the peer has not taken in all that arrived there: %d receives", m.recvsHeld())
	case p.covered():
		return "the peer has seen that it arrived, or something behind it"
	case isWrite(s.op) && p.kind == partData && p.n != 0 && s.index < e.peer.checked:
		return "the peer was notified of something behind it"
	}
	if p.numbered(e) || p.op.IsSend() {
		for _, x := range was.out[:p.place] {
			if x == nil || x == p || x.op == verbs.OpRDMARead || x.op.IsAtomic() || x.covered() ||
				e.stops(x.of) {
				continue
			}
			if x.state == partLost || x.state == partOnNIC && x.on != q.wireLife {
				return sprintf("lost before it and not ahead of it now: %v", x)
			}
		}
	}
	return ""
}

// stops reports whether a request posts nothing more because it or an earlier one has failed: later
// ones are never notified.
func (e *end) stops(s *send) bool { return s.failed || s.index >= e.stopAt }

// owesRaw reports whether the user's immediate behind the last fragment has not arrived.
func (e *end) owesRaw(s *send) bool {
	return !slices.ContainsFunc(s.parts, func(p *part) bool {
		return p.kind == partRaw && (p.state == partAcked || p.covered())
	})
}

// partsEnded reports whether no data of a request is on its way or lost.
func (s *send) partsEnded() bool {
	return !slices.ContainsFunc(s.parts, func(p *part) bool { return p.kind != partFinal && !p.ended() })
}

// String describes where a part is.
func (p *part) String() string {
	state := [...]string{"on the NIC", "acknowledged", "lost"}[p.state]
	return sprintf("%v of %d bytes from %d, %s on %v (place %d, arrived to %d, settled %v)", p.op, p.n, p.at,
		state, p.on.q, p.place, p.on.arrived(), p.on.settled())
}

// lost reports whether a part is lost, as far as the library can know.
func (p *part) lost() bool { return p.state == partLost && !p.covered() }

// lostMessage returns the first lost ordinary SEND; nil if none is.
func (e *end) lostMessage() *send {
	return e.lostBefore(len(e.sends), func(p *part) bool { return p.kind == partFinal && p.op.IsSend() })
}

// lostBefore returns the first request before an index with a lost part that matches; nil if there
// is none.
func (e *end) lostBefore(index int, which func(*part) bool) *send {
	for _, s := range e.sends[e.sendHead:index] {
		if s.session == e.sessionNo && slices.ContainsFunc(s.parts, func(p *part) bool {
			return which(p) && p.lost()
		}) {
			return s
		}
	}
	return nil
}

// mustBeProved checks that a notification of DQPLB proves a write ahead of it: each part was
// acknowledged, or something behind it on its rail has arrived. Data that is there without that may
// be luck.
func (e *end) mustBeProved(s, by *send) {
	if by.op.IsSend() || e.vq.Scheme() != ibverbx.DQPLB || e.conn.hostile || e.ended() {
		return
	}
	for _, p := range s.parts {
		if p.state != partAcked && !p.covered() {
			e.w.Broken(ruleNotification, "%v has been notified of %v, which does not prove that %v is there:"+
				" %v", e.peer, by, s, p)
		}
	}
}

// mayNotLand checks that no copy of a reported request can still land.
func (e *end) mayNotLand(s *send) {
	if e.vq.Err() != nil || e.ended() || s.session != e.sessionNo || e.conn.hostile {
		return
	}
	for _, p := range s.parts {
		if p.state == partAcked || p.op == verbs.OpRDMARead && p.on.dead() && p.on.sendsHeld() == 0 {
			continue
		}
		if p.state == partOnNIC || !p.on.settled() {
			e.w.Broken(lab.Ownership, "%v: %v is reported, and some of it can still arrive: %v", e, s, p)
		}
	}
}
