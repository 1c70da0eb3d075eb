package ibverbx

import "math/bits"

// DQPLB numbers messages modulo 2^24-1: from 0 to 0xFFFFFE; 0xFFFFFF is never sent. The number
// travels in the low 24 bits of the immediate, which is little-endian on the wire (the C++ original
// stores it without htonl), unlike every other immediate.
const (
	seqMod  = 1<<24 - 1
	seqMask = 1<<24 - 1
	immLast = 1 << 31 // the last fragment of its request: the receiver is to be notified
	// the user's immediate follows as a message of its own; only between ends that announce it
	immRaw      = 1 << 30
	immReserved = 0x3f << 24
)

// seqNext is the number after s.
func seqNext(s uint32) uint32 {
	if s++; s == seqMod {
		return 0
	}
	return s
}

// seqDistance is how far s lies ahead of base, from 0 to seqMod-1.
func seqDistance(base, s uint32) uint32 {
	if s >= base {
		return s - base
	}
	return s + seqMod - base
}

// seqImm converts between a DQPLB immediate and what package verbs calls the immediate, which is
// its own inverse.
func seqImm(v uint32) uint32 { return bits.ReverseBytes32(v) }

// numberSender hands out DQPLB numbers and keeps them within the receiver's window: a number is
// given only while it lies less than limit ahead of the oldest one that has not been acknowledged.
//
// Invariant: first <= acked <= sent; sent-acked <= limit <= 64*len(done); bit n&(size-1) of done is
// set for an acknowledged n with acked <= n < sent, and clear for every other.
type numberSender struct {
	first uint64   // the number that the count starts with
	sent  uint64   // the next number, not yet taken modulo seqMod
	acked uint64   // all before it were acknowledged
	limit uint64   // the receiver's window, messages
	done  []uint64 // bitmap of what was acknowledged beyond acked
}

func newNumberSender(limit int, first uint32) numberSender {
	size := 64
	for size < limit {
		size *= 2
	}
	return numberSender{first: uint64(first), sent: uint64(first), acked: uint64(first), limit: uint64(limit),
		done: make([]uint64, size/64)}
}

// room reports whether another number may be handed out.
func (s *numberSender) room() bool { return s.sent-s.acked < s.limit }

// next hands out a number. The caller has asked for room.
func (s *numberSender) next() uint32 {
	n := s.sent
	s.sent++
	return uint32(n % seqMod)
}

// ack notes that the message with number num was acknowledged. It reports false for a number that
// is not on the way.
func (s *numberSender) ack(num uint32) bool {
	n := s.acked + uint64(seqDistance(uint32(s.acked%seqMod), num))
	if n >= s.sent {
		return false
	}
	size := uint64(len(s.done)) * 64
	word, bit := &s.done[(n&(size-1))>>6], uint64(1)<<(n&63)
	if *word&bit != 0 {
		return false
	}
	if n != s.acked {
		*word |= bit
		return true
	}
	// The oldest: move on over it and over all that were acknowledged out of order behind it.
	s.acked++
	for s.acked != s.sent {
		word, bit := &s.done[(s.acked&(size-1))>>6], uint64(1)<<(s.acked&63)
		if *word&bit == 0 {
			break
		}
		*word &^= bit
		s.acked++
	}
	return true
}

// arrival is one numbered message as the receiver saw it.
type arrival struct {
	bytes uint32
	imm   uint32 // the user's immediate, if hasImm
	state arrivalState
}

type arrivalState uint8

const (
	arrived    arrivalState = 1 << iota // the slot is taken
	arrivedEnd                          // last message of its request
	arrivedImm                          // imm is the user's
)

// numberReceiver puts numbered messages back in order. What lies beyond the next expected number
// waits in a ring that grows with need up to maxArrivals.
//
// Invariant: next is the lowest number not seen; ring[(base+d)&mask] is the message with number
// next+d, for d in 1..span-1; the slot of next itself is free; len(ring) is a power of two.
type numberReceiver struct {
	next  uint32 // number expected next
	base  uint64 // ring position of next
	ring  []arrival
	bytes uint64 // of the current request, so far
	held  int    // messages in the ring
}

// Verdicts of numberReceiver.admit.
type admitResult uint8

const (
	admitWaits     admitResult = iota // out of order: kept
	admitAdvances                     // was the next one: call take until it reports false
	admitDuplicate                    // was seen before, or lies behind
	admitFar                          // beyond every window
)

// admit takes in message num.
func (r *numberReceiver) admit(num uint32, a arrival) admitResult {
	d := seqDistance(r.next, num)
	if d >= maxArrivals {
		if d >= seqMod-maxArrivals {
			return admitDuplicate
		}
		return admitFar
	}
	for int(d) >= len(r.ring) {
		r.grow()
	}
	slot := &r.ring[(r.base+uint64(d))&uint64(len(r.ring)-1)]
	if slot.state != 0 {
		return admitDuplicate
	}
	*slot = a
	slot.state |= arrived
	r.held++
	if d != 0 {
		return admitWaits
	}
	return admitAdvances
}

// take moves past the next message if it is there. Its end reports a request completed, with the
// bytes of the whole.
func (r *numberReceiver) take() (a arrival, total uint64, ok bool) {
	if len(r.ring) == 0 {
		return a, 0, false
	}
	slot := &r.ring[r.base&uint64(len(r.ring)-1)]
	if slot.state == 0 {
		return a, 0, false
	}
	a = *slot
	slot.state = 0
	r.held--
	r.base++
	r.next = seqNext(r.next)
	r.bytes += uint64(a.bytes)
	total = r.bytes
	if a.state&arrivedEnd != 0 {
		r.bytes = 0
	}
	return a, total, true
}

func (r *numberReceiver) grow() {
	ring := make([]arrival, max(64, 2*len(r.ring)))
	for d := range uint64(len(r.ring)) {
		ring[(r.base+d)&uint64(len(ring)-1)] = r.ring[(r.base+d)&uint64(len(r.ring)-1)]
	}
	r.ring = ring
}
