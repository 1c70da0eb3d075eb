package rc

import (
	"bytes"
	"time"

	"ibverbx/verbs/roce/internal/wire"
)

// reorderBuffer keeps packets of an end of ours that have arrived ahead of the expected one.
//
// A forger that knows neither numbers nor keys can guess a number ahead of the expected one, and
// until the expected packet comes nothing shows that the forged one is not the peer's. So a packet
// that networks do not explain is dropped before its turn comes (doubt), and so are two packets
// with one number (keep): the peer sends them again.
//
// Invariant: all kept packets lie within maxTrack numbers behind the expected one, and none has a
// payload longer than the path MTU. highest is kept. The number of slots is a power of two, or 0.
type reorderBuffer struct {
	slots   []*earlyPacket // by the low bits of the number
	n       int
	highest seq // no packet behind it is kept; 0 if none are
	pool    *Pool
}

type earlyPacket struct {
	s       seq
	at      int64 // when it arrived
	header  wire.Header
	payload []byte
}

const (
	// A packet that was sent once comes behind later ones if the network changed their order. Of
	// the packets between it and one that has overtaken it, at most overtaken are missing, or fewer
	// than have arrived: networks that reorder hold up a few packets, and others lose some. Between
	// a forged packet and the first real one after it, all are missing.
	overtaken = 2
	// overtakenWithin is the longest time by which a packet that was sent once comes behind later
	// ones. One that is sent again may take any time.
	overtakenWithin = int64(10 * time.Millisecond)
	// smallRing is how many slots stay when nothing is kept.
	smallRing = 64
)

// find returns the packet with a number, or nil if that is not kept.
func (r *reorderBuffer) find(s seq) *earlyPacket {
	if r.n == 0 {
		return nil
	}
	if p := r.slots[int(s)&(len(r.slots)-1)]; p != nil && p.s == s {
		return p
	}
	return nil
}

// keep keeps a copy of a packet. If another one with its number is kept, both are dropped. It
// returns false if the packet is too far ahead.
func (r *reorderBuffer) keep(now int64, expected, s seq, h *wire.Header, payload []byte) bool {
	if s-expected >= maxTrack {
		return false
	}
	if p := r.find(s); p != nil {
		if !p.equals(h, payload) {
			r.drop(s)
		}
		return true
	}
	r.grow(int(s - expected))
	p := r.pool.get()
	p.s, p.at, p.header, p.payload = s, now, *h, append(p.payload[:0], payload...)
	r.slots[int(s)&(len(r.slots)-1)] = p
	r.n++
	r.highest = max(r.highest, s)
	return true
}

// grow makes slots for all numbers up to that many behind the expected one.
func (r *reorderBuffer) grow(ahead int) {
	if ahead < len(r.slots) {
		return
	}
	size := smallRing
	for size <= ahead {
		size *= 2
	}
	old := r.slots
	r.slots = make([]*earlyPacket, size)
	for _, p := range old {
		if p != nil {
			r.slots[int(p.s)&(size-1)] = p
		}
	}
}

// take removes a packet, which the caller gives back to the pool. It returns nil if the packet is
// not there.
func (r *reorderBuffer) take(s seq) *earlyPacket {
	p := r.find(s)
	if p == nil {
		return nil
	}
	r.slots[int(s)&(len(r.slots)-1)] = nil
	if r.n--; r.n == 0 {
		r.highest = 0
		if len(r.slots) > smallRing {
			r.slots = nil
		}
		return p
	}
	for r.find(r.highest) == nil {
		r.highest--
	}
	return p
}

func (r *reorderBuffer) drop(s seq) { r.pool.put(r.take(s)) }

// dropFrom drops all packets from a number on.
func (r *reorderBuffer) dropFrom(s seq) {
	for r.n != 0 && r.highest >= s {
		r.drop(r.highest)
	}
}

// dropBetween drops the packets with numbers from first to end-1.
func (r *reorderBuffer) dropBetween(first, end seq) {
	for s := first; s < min(end, r.highest+1); s++ {
		if r.find(s) != nil {
			r.drop(s)
		}
	}
}

// doubt is called when a packet arrives that was sent once. It drops the kept packets that cannot
// have overtaken it, and returns true if there are any.
func (r *reorderBuffer) doubt(now int64, s seq) bool {
	if s >= r.highest || r.find(s) != nil {
		return false
	}
	for missing, arrived := 0, 0; s < r.highest; {
		s++
		p := r.find(s)
		switch {
		case p == nil:
			missing++
		case missing > max(overtaken, arrived) || now-p.at > overtakenWithin:
			r.dropFrom(s)
			return true
		default:
			arrived++
		}
	}
	return false
}

// equals reports whether a packet is a copy, or was sent again: then it requests an acknowledgement
// even if the first one did not.
func (p *earlyPacket) equals(h *wire.Header, payload []byte) bool {
	a, b := p.header, *h
	a.AckReq, a.Reserved = b.AckReq, b.Reserved
	var x, y [wire.MaxHeader]byte // only the fields that the opcode has
	return a.Put(x[:]) == b.Put(y[:]) && x == y && bytes.Equal(p.payload, payload)
}

// Pool has memory for packets that have arrived ahead of others. QPs that are guarded by the same
// lock can share it.
//
// Invariant: it holds at most poolPackets packets; more exist only while they are kept.
type Pool struct{ free []*earlyPacket }

const poolPackets = 256

func (p *Pool) get() *earlyPacket {
	last := len(p.free) - 1
	if last < 0 {
		return new(earlyPacket)
	}
	e := p.free[last]
	p.free[last] = nil
	p.free = p.free[:last]
	return e
}

func (p *Pool) put(e *earlyPacket) {
	if len(p.free) < poolPackets {
		p.free = append(p.free, e)
	}
}

// seq is a packet sequence number that does not wrap. Its low 24 bits are the PSN.
type seq uint64

// firstSeq returns the sequence number of the first packet of a direction. It leaves room below, so
// that numbers before the first packet do not underflow.
func firstSeq(psn uint32) seq { return 1<<32 | seq(psn&psnMask) }

const psnMask = 1<<24 - 1

// psn is the number in a packet.
func (s seq) psn() uint32 { return uint32(s) & psnMask }

// near is the sequence number with a PSN that is nearest to s: half of the PSNs lie ahead, half
// behind (IBTA 9.7.2).
func (s seq) near(psn uint32) seq { return s + seq(int64(wire.PSNDiff(psn, s.psn()))) }
