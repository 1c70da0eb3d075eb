package shmem

import (
	"fmt"
	"math/bits"
	"slices"
	"sort"
)

// blockAlign is the alignment of blocks of the heap: a cache line, so that two blocks never share
// one, and the eight bytes around a number of four bytes never reach beyond its block.
const blockAlign = 64

// layout is the layout of every PE's registered memory, as offsets in bytes: first the package's
// own words and slots, then the user's heap. It depends only on the number of PEs, so it is the
// same on all.
type layout struct {
	rounds      uint64 // words of the barrier, one per round; they only grow
	closeRounds uint64 // the same for the barrier in Close, which must work when PEs are out of step
	stop        uint64 // the stop word: see mismatch.go
	entered     uint64 // by slots of teams: how many collective calls the PE has entered: see late.go
	words       uint64 // wordStride bytes of words for each PE
	slots       uint64 // depth for each PE
	slot        uint64 // bytes of a slot
	user        uint64 // the user's heap
}

const (
	// maxRounds is the most rounds of a barrier: enough for maxPEs.
	maxRounds = 16
	// slotsBytes is the most memory of all slots together, in bytes.
	slotsBytes = 4 << 20
	// minSlot and maxSlot bound the size of a slot in bytes.
	minSlot, maxSlot = 1 << 10, 256 << 10
	// wordStride is the distance between the words for two PEs: cache lines that no other has.
	wordStride = 2 * blockAlign
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
	l.closeRounds = place(8 * maxRounds)
	l.stop = place(8)
	l.entered = place(8 * maxTeams)
	l.words = place(wordStride * uint64(pes))
	each := uint64(slotsBytes / (depth * pes))
	l.slot = min(max(uint64(1)<<(bits.Len64(each)-1), minSlot), maxSlot)
	l.slots = place(depth * l.slot * uint64(pes))
	l.user = at
	return l
}

// The words of a PE are for each other PE, from. These are their places, in words.
const (
	wordSlots    = 0                 // which message is in each of the slots
	wordTaken    = wordSlots + depth // how many messages from has taken out of its slots
	wordQuestion = wordTaken + 1     // three, with which from asks about the call that it waits in
	wordSleeps   = wordQuestion + 3  // from asks to be woken: see await.go
	wordGaveUp   = wordSleeps + 1    // the deadline of from's collective call has passed
	wordShrink   = wordGaveUp + 1    // some, with which from says who is gone: see shrink.go
)

// word returns the offset of a word for PE from.
func (l *layout) word(from, word int) uint64 {
	return l.words + wordStride*uint64(from) + 8*uint64(word)
}

// slotWord returns the offset of the word that says which message of PE from is in one of its
// slots.
func (l *layout) slotWord(from int, slot uint64) uint64 { return l.word(from, wordSlots+int(slot)) }

func (l *layout) taken(from int) uint64    { return l.word(from, wordTaken) }
func (l *layout) question(from int) uint64 { return l.word(from, wordQuestion) }
func (l *layout) sleeps(from int) uint64   { return l.word(from, wordSleeps) }
func (l *layout) gaveUp(from int) uint64   { return l.word(from, wordGaveUp) }

// slotOf returns the offset of a slot for messages of PE from.
func (l *layout) slotOf(from int, slot uint64) uint64 {
	return l.slots + (depth*uint64(from)+slot)*l.slot
}

// blocks is the allocator of the heap. Its results depend only on the calls, so PEs that make the
// same calls get the same results.
//
// Invariant: free is in order of address, no two of its spans touch, and free and taken together
// cover the heap once.
type blocks struct {
	start, size uint64 // of the heap, bytes
	free        []span
	taken       map[uint64]uint64 // length of each block, by offset
	asked       map[uint64]uint64 // bytes asked for in each block, by offset
	used        uint64            // sum of taken
}

// span is a piece of the heap, in bytes.
type span struct{ off, length uint64 }

func newBlocks(start, size uint64) *blocks {
	return &blocks{start: start, size: size, free: []span{{start, size}}, taken: map[uint64]uint64{},
		asked: map[uint64]uint64{}}
}

// alloc takes the first free span that is large enough. A block has at least one byte, so that
// every block has its own offset.
func (b *blocks) alloc(bytes uint64) (off uint64, err error) {
	if bytes > b.size {
		return 0, b.full(bytes)
	}
	length := (max(bytes, 1) + blockAlign - 1) &^ (blockAlign - 1)
	for i := range b.free {
		s := &b.free[i]
		if s.length < length {
			continue
		}
		off = s.off
		if s.off, s.length = s.off+length, s.length-length; s.length == 0 {
			b.free = slices.Delete(b.free, i, i+1)
		}
		b.taken[off], b.asked[off] = length, bytes
		b.used += length
		return off, nil
	}
	return 0, b.full(bytes)
}

// full returns the error of an alloc that finds no room.
func (b *blocks) full(bytes uint64) error {
	largest := uint64(0)
	for _, s := range b.free {
		largest = max(largest, s.length)
	}
	return fmt.Errorf("%w: %d bytes wanted; of %d, %d are free, %d of them in one piece: raise "+
		"Config.HeapSize",
		ErrNoMemory, bytes, b.size, b.size-b.used, largest)
}

// holds reports whether there is a block of that many bytes at off.
func (b *blocks) holds(off, bytes uint64) bool {
	asked, ok := b.asked[off]
	return ok && asked == bytes
}

// release frees the block at off, which must exist.
func (b *blocks) release(off uint64) {
	s := span{off, b.taken[off]}
	delete(b.taken, off)
	delete(b.asked, off)
	b.used -= s.length
	i := sort.Search(len(b.free), func(i int) bool { return b.free[i].off > off })
	if i < len(b.free) && s.off+s.length == b.free[i].off {
		s.length += b.free[i].length
		b.free = slices.Delete(b.free, i, i+1)
	}
	if i > 0 && b.free[i-1].off+b.free[i-1].length == s.off {
		b.free[i-1].length += s.length
		return
	}
	b.free = slices.Insert(b.free, i, s)
}
