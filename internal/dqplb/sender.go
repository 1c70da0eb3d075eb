package dqplb

import "math/bits"

// MaxInFlight bounds the numbered messages that a sender has in flight. 2^15 fragments of 512 KiB
// are 16 GiB.
const MaxInFlight = 1 << 15

// Sender hands out numbers within a window: each is less than limit ahead of the oldest
// unacknowledged one.
//
// Invariant: first <= acked <= sent; sent-acked <= limit. done has size bits, a power of two or
// none; bit n&(size-1) is set for an acknowledged n with acked < n < acked+size, and clear for
// every other; beyond counts those that are set, and there are no other acknowledged numbers from
// acked on.
type Sender struct {
	first uint64 // the number that the count starts with
	sent  uint64 // the next number, not yet taken modulo Mod
	acked uint64 // all earlier numbers were acknowledged
	limit uint64 // how many numbers may be unacknowledged
	// done is a bitmap of the numbers acknowledged beyond acked. It grows with need; numbers
	// acknowledged in order never use it.
	done   []uint64
	beyond int
}

// minDone is the first size of the bitmap, in numbers.
const minDone = 512

// NewSender makes a sender that counts from first on.
func NewSender(first uint32) Sender { return newSender(MaxInFlight, first) }

func newSender(limit int, first uint32) Sender {
	return Sender{first: uint64(first), sent: uint64(first), acked: uint64(first), limit: uint64(limit)}
}

// Room reports whether another number may be handed out.
func (s *Sender) Room() bool { return s.sent-s.acked < s.limit }

// Next hands out a number. Room must have returned true.
func (s *Sender) Next() uint32 {
	n := s.sent
	s.sent++
	return uint32(n % Mod)
}

// First returns the number that the count started with.
func (s *Sender) First() uint32 { return uint32(s.first) }

// Sent returns how many numbers were handed out.
func (s *Sender) Sent() uint64 { return s.sent - s.first }

// Open returns how many numbers were handed out from the oldest unacknowledged one on.
func (s *Sender) Open() int { return int(s.sent - s.acked) }

// Ack handles the acknowledgement of the message with number num. It reports false for a number
// that is not in flight.
func (s *Sender) Ack(num uint32) bool {
	n := s.acked + uint64(Distance(uint32(s.acked%Mod), num))
	if n >= s.sent {
		return false
	}
	if n == s.acked {
		// The oldest: move past it and past all later ones that were acknowledged out of order.
		s.acked++
		for s.beyond != 0 {
			word, bit := s.bit(s.acked)
			if *word&bit == 0 {
				break
			}
			*word &^= bit
			s.beyond--
			s.acked++
		}
		return true
	}
	for n-s.acked >= uint64(len(s.done))*64 {
		s.grow()
	}
	word, bit := s.bit(n)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.beyond++
	return true
}

// bit returns the place of number n in the bitmap, which must reach that far.
func (s *Sender) bit(n uint64) (word *uint64, bit uint64) {
	return &s.done[n>>6&uint64(len(s.done)-1)], 1 << (n & 63)
}

// grow doubles the bitmap.
func (s *Sender) grow() {
	old := *s
	s.done = make([]uint64, max(minDone/64, 2*len(old.done)))
	for n := old.acked; n != old.acked+64*uint64(len(old.done)); n++ {
		if from, bit := old.bit(n); *from&bit != 0 {
			to, _ := s.bit(n)
			*to |= bit
		}
	}
}

// The parts of an immediate, after [Swap].
const (
	// Mod is the modulus of the numbers.
	Mod = 1<<24 - 1
	// Last marks the last message of a request: the receiver is to be notified.
	Last = 1 << 31
	// Raw says that the user's immediate follows directly, as a message of its own on the same
	// queue pair. It is used only if both ends announce it, and only together with Last.
	Raw = 1 << 30

	numberMask = 1<<24 - 1
	reserved   = 0x3f << 24
)

// following returns the number after n.
func following(n uint32) uint32 {
	if n++; n == Mod {
		return 0
	}
	return n
}

// Distance returns how far n is ahead of base, from 0 to Mod-1.
func Distance(base, n uint32) uint32 {
	if n >= base {
		return n - base
	}
	return n + Mod - base
}

// Swap converts a number with its marks to an immediate of package verbs, and back: it is its own
// inverse.
func Swap(v uint32) uint32 { return bits.ReverseBytes32(v) }

// Number returns the number in an immediate of a message.
func Number(imm uint32) uint32 { return Swap(imm) & numberMask }
