package shmem

import (
	"fmt"
	"slices"
	"sort"
)

// blocks is the allocator of the heap. Its results depend on the calls alone, so that PEs that make
// the same calls get the same results.
//
// Invariant: free is in order of address, no two of its spans touch, and free and taken together
// cover the heap once.
type blocks struct {
	start, size uint64 // of the heap, bytes
	free        []span
	taken       map[uint64]uint64 // lengths of the blocks by their offsets
	asked       map[uint64]uint64 // the bytes that were asked for, by the blocks' offsets
	used        uint64            // sum of taken
}

// span is a piece of the heap, bytes.
type span struct{ off, length uint64 }

func newBlocks(start, size uint64) *blocks {
	return &blocks{start: start, size: size, free: []span{{start, size}}, taken: map[uint64]uint64{},
		asked: map[uint64]uint64{}}
}

// alloc takes the first place that is large enough. A block has at least one byte, so that every
// block has a place of its own.
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

// full is the error of an alloc that finds no place.
func (b *blocks) full(bytes uint64) error {
	largest := uint64(0)
	for _, s := range b.free {
		largest = max(largest, s.length)
	}
	return fmt.Errorf("%w: %d bytes wanted; of %d, %d are free, %d of them in one piece: raise "+
		"Config.HeapSize",
		ErrNoMemory, bytes, b.size, b.size-b.used, largest)
}

// holds reports whether there is a block of so many bytes.
func (b *blocks) holds(off, bytes uint64) bool {
	asked, ok := b.asked[off]
	return ok && asked == bytes
}

// release gives a block back; there must be one.
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
