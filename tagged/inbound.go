package tagged

import "math/bits"

// inbound is a message that waits for a receive: eager, in blocks, or announced, with the
// description of its memory in a block.
type inbound struct {
	ep        *Endpoint
	match     entry
	length    int
	id        uint32 // of the sender, who waits to hear of the match
	notify    bool   // it does
	announced bool
	count     int // pieces of memory of an announced message
	got       int // bytes of an eager message that have arrived
	fragments int
	head      *block
	tail      *block
	next      *inbound
}

// info tells of the message.
func (in *inbound) info() Info { return Info{Tag: in.match.tag, Length: in.length, Source: in.ep} }

// keep copies a fragment.
func (in *inbound) keep(p *blockPool, data []byte) {
	b := p.get(len(data))
	copy(b.data, data)
	if in.tail == nil {
		in.head = b
	} else {
		in.tail.next = b
	}
	in.tail = b
	in.got += len(data)
	in.fragments++
}

// inboundPool keeps inbounds for use again.
type inboundPool struct {
	free  *inbound
	count int // free
	most  int
}

func (p *inboundPool) get() *inbound {
	in := p.free
	if in == nil {
		return &inbound{}
	}
	p.free, in.next = in.next, nil
	p.count--
	return in
}

// newInbound keeps a message that no receive has matched.
func (e *Endpoint) newInbound(tag uint64, length int) *inbound {
	w := e.w
	in := w.inbounds.get()
	in.ep, in.length = e, length
	in.match.tag, in.match.mask, in.match.in = tag, Exact, in
	w.unexpected.push(&in.match)
	w.stats.unexpected++
	return in
}

// drop takes a message out, and frees its memory.
func (w *Worker) drop(in *inbound) {
	w.unexpected.remove(&in.match)
	if a := &in.ep.partial; a.in == in {
		a.in = nil
	}
	for b := in.head; b != nil; {
		next := b.next
		w.blocks.put(b)
		b = next
	}
	*in = inbound{}
	if p := &w.inbounds; p.count < p.most {
		in.next, p.free = p.free, in
		p.count++
	}
}

// block is a copy of a fragment.
type block struct {
	data  []byte
	class uint8
	next  *block
}

// leastBlock is the size of the smallest class; each has twice the bytes of the one before.
const leastBlock = 64

// blockPool keeps blocks for use again, by size, up to a number of bytes.
type blockPool struct {
	free  [32]*block
	bytes int // free
	used  int // bytes in use
	most  int
}

// get returns a block with n bytes of data.
func (p *blockPool) get(n int) *block {
	class := uint8(0)
	if n > leastBlock {
		class = uint8(bits.Len(uint(n-1)) - bits.Len(leastBlock-1))
	}
	size := leastBlock << class
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

func (p *blockPool) put(b *block) {
	size := leastBlock << b.class
	p.used -= size
	b.next = nil
	if p.bytes+size > p.most {
		return
	}
	p.bytes += size
	b.next, p.free[b.class] = p.free[b.class], b
}
