package tagged

import "math/bits"

// block holds a copy of a fragment.
type block struct {
	data  []byte
	class uint8  // says its capacity: see blockPool.size
	next  *block // of the same message, or in blockPool
}

// leastBlock is the size of the smallest class; each has twice the bytes of the one before.
const leastBlock = 64

// blockPool keeps blocks for use again, by size, up to a number of bytes.
//
// Invariant: bytes is the size of all free blocks, at most most.
type blockPool struct {
	free  [32]*block // by class
	bytes int        // of free blocks
	used  int        // bytes of blocks that hold fragments
	most  int        // bytes of free blocks that are kept
	// largest is the length of the longest fragment, bytes: no block is larger.
	largest int
}

// size is how large the blocks of a class are, in bytes.
func (p *blockPool) size(class uint8) int { return min(leastBlock<<class, p.largest) }

// get returns a block with n bytes of data.
func (p *blockPool) get(n int) *block {
	class := uint8(0)
	if n > leastBlock {
		class = uint8(bits.Len(uint(n-1)) - bits.Len(leastBlock-1))
	}
	size := p.size(class)
	p.used += size
	b := p.free[class]
	if b == nil {
		return &block{data: make([]byte, n, size), class: class}
	}
	p.free[class], b.next = b.next, nil
	p.bytes -= size
	b.data = b.data[:n]
	return b
}

// put gives a block back.
func (p *blockPool) put(b *block) {
	size := p.size(b.class)
	p.used -= size
	b.next = nil
	if p.bytes+size > p.most {
		return
	}
	p.bytes += size
	b.next, p.free[b.class] = p.free[b.class], b
}
