package rc

import "ibverbx/verbs/roce/internal/wire"

// reorderBuffer keeps packets that have arrived ahead of a gap.
//
// Invariant: all kept packets lie within maxTrack numbers behind the expected one, and none has a
// payload longer than the path MTU.
type reorderBuffer struct {
	slots   []earlyPacket // by the low bits of the number; nil until the first one is kept
	n       int
	highest seq // no packet behind it is kept
}

type earlyPacket struct {
	s       seq // 0 if the slot is free
	header  wire.Header
	payload []byte
}

func (r *reorderBuffer) at(s seq) *earlyPacket { return &r.slots[int(s)&(maxTrack-1)] }

// keep keeps a copy of a packet. It returns false if that is too far ahead.
func (r *reorderBuffer) keep(expected, s seq, h *wire.Header, payload []byte) bool {
	if s-expected >= maxTrack {
		return false
	}
	if r.slots == nil {
		r.slots = make([]earlyPacket, maxTrack)
	}
	if r.n == 0 {
		r.highest = s
	}
	p := r.at(s)
	if p.s == s {
		return true
	}
	*p = earlyPacket{s: s, header: *h, payload: append(p.payload[:0], payload...)}
	r.n++
	r.highest = max(r.highest, s)
	return true
}

// has reports whether a packet is kept.
func (r *reorderBuffer) has(s seq) bool { return r.n != 0 && r.at(s).s == s }

// hasBetween reports whether a packet with a number from first to end-1 is kept.
func (r *reorderBuffer) hasBetween(first, end seq) bool {
	if r.n == 0 {
		return false
	}
	for s := first; s < min(end, r.highest+1); s++ {
		if r.has(s) {
			return true
		}
	}
	return false
}

// take removes a packet, which is the caller's until the next call. It returns nil if that is not
// there.
func (r *reorderBuffer) take(s seq) *earlyPacket {
	if !r.has(s) {
		return nil
	}
	p := r.at(s)
	p.s = 0
	if r.n--; r.n == 0 {
		r.highest = 0
	}
	return p
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
