package shmem

import "math/bits"

// blockAlign is the alignment of blocks of the heap: a cache line, so that two blocks never share
// one, and the eight bytes around a number of four bytes never reach beyond its block.
const blockAlign = 64

// layout says where things lie in every PE's registered memory: first what the package needs for
// itself, then the user's heap. It follows from the number of PEs and so is the same on all of
// them.
type layout struct {
	rounds  uint64 // words of the barrier, one a round; only ever counted up
	endings uint64 // likewise for the barrier of Close, which must work when the PEs are out of step
	stop    uint64 // a word: another PE has found that the PEs are out of step
	words   uint64 // mailStride bytes of words for each PE
	slots   uint64 // two for each PE
	slot    uint64 // bytes of a slot
	user    uint64
}

const (
	// maxRounds is how many rounds a barrier can have: enough for maxPEs.
	maxRounds = 16
	// mailboxes is how many bytes all slots may have together.
	mailboxes = 4 << 20
	// minSlot and maxSlot bound the size of a slot in bytes.
	minSlot, maxSlot = 1 << 10, 64 << 10
	// mailStride is how far apart the mailboxes' words are for two PEs.
	mailStride = blockAlign
)

func newLayout(pes int) layout {
	var l layout
	at := uint64(blockAlign) // the first block stays zero: probes read it
	place := func(n uint64) uint64 {
		off := at
		at += (n + blockAlign - 1) &^ (blockAlign - 1)
		return off
	}
	l.rounds = place(8 * maxRounds)
	l.endings = place(8 * maxRounds)
	l.stop = place(8)
	l.words = place(mailStride * uint64(pes))
	each := uint64(mailboxes / (2 * pes))
	l.slot = min(max(uint64(1)<<(bits.Len64(each)-1), minSlot), maxSlot)
	l.slots = place(2 * l.slot * uint64(pes))
	l.user = at
	return l
}

// arrived is the word that tells of a message of PE from in one of its slots.
func (l *layout) arrived(from int, slot uint64) uint64 {
	return l.words + mailStride*uint64(from) + 8*slot
}

// taken is the word in which PE from counts the messages that it has taken out of its slots.
func (l *layout) taken(from int) uint64 { return l.words + mailStride*uint64(from) + 16 }

// asks are three words in which PE from asks about the call in which it waits for this one.
func (l *layout) asks(from int) uint64 { return l.words + mailStride*uint64(from) + 24 }

// slotOf is a slot for messages of PE from.
func (l *layout) slotOf(from int, slot uint64) uint64 {
	return l.slots + (2*uint64(from)+slot)*l.slot
}
