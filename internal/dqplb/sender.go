package dqplb

// MaxInFlight bounds the numbers that a sender has on the way (messages). 2^15 at 512 KiB a
// fragment is 16 GiB.
const MaxInFlight = 1 << 15

// Sender hands out numbers and keeps them within a window: a number is given only while it lies
// less than limit ahead of the oldest one that has not been acknowledged.
//
// Invariant: first <= acked <= sent; sent-acked <= limit <= 64*len(done); bit n&(size-1) of done is
// set for an acknowledged n with acked <= n < sent, and clear for every other.
type Sender struct {
	first uint64   // the number that the count starts with
	sent  uint64   // the next number, not yet taken modulo Mod
	acked uint64   // all before it were acknowledged
	limit uint64   // how many numbers may be unacknowledged
	done  []uint64 // bitmap of what was acknowledged beyond acked
}

// NewSender makes a sender that counts from first on.
func NewSender(first uint32) Sender { return newSender(MaxInFlight, first) }

func newSender(limit int, first uint32) Sender {
	size := 64
	for size < limit {
		size *= 2
	}
	return Sender{first: uint64(first), sent: uint64(first), acked: uint64(first), limit: uint64(limit),
		done: make([]uint64, size/64)}
}

// Room reports whether another number may be handed out.
func (s *Sender) Room() bool { return s.sent-s.acked < s.limit }

// Next hands out a number. The caller has asked for room.
func (s *Sender) Next() uint32 {
	n := s.sent
	s.sent++
	return uint32(n % Mod)
}

// First is the number that the count started with.
func (s *Sender) First() uint32 { return uint32(s.first) }

// Sent is how many numbers were handed out.
func (s *Sender) Sent() uint64 { return s.sent - s.first }

// Open is how many numbers were handed out from the oldest unacknowledged one on.
func (s *Sender) Open() int { return int(s.sent - s.acked) }

// Ack handles the acknowledgement of the message with number num. It reports false for a number
// that is not on the way.
func (s *Sender) Ack(num uint32) bool {
	n := s.acked + uint64(Distance(uint32(s.acked%Mod), num))
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
