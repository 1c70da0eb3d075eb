package ibverbx

import "ibverbx/verbs"

// postBatch is how many receives, or requests of a single queue pair, are handed to a queue pair at
// a time: as many as a caller usually posts at once.
const postBatch = 64

// sendBatch holds the work requests that wait to be posted on a rail, with their scatter lists;
// both are reused. Work requests that a post refuses for now stay at the front. A batch grows with
// need, up to the slots of the rails that it has served.
//
// Invariant: 0 <= head <= tail <= len(wrs); wrs[head:tail] waits. wrs[i].SGL is empty or lies in
// sges[i*width:(i+1)*width]. seen <= tail: the observer, if there is one, has seen those before.
type sendBatch struct {
	wrs        []verbs.SendWR
	sges       []verbs.SGE
	width      int
	head, tail int
	seen       int
	next       *sendBatch // in batchPool.free
}

func newSendBatch(size, width int) sendBatch {
	return sendBatch{wrs: make([]verbs.SendWR, size), sges: make([]verbs.SGE, size*width), width: width}
}

// add opens the next work request. Its fields are as their last user left them; setSGL or setInline
// gives it its payload.
func (b *sendBatch) add() *verbs.SendWR {
	if b.tail == len(b.wrs) {
		b.makeRoom()
	}
	b.tail++
	return &b.wrs[b.tail-1]
}

// setSGL gives the newest work request a scatter list of n elements, for the caller to fill.
func (b *sendBatch) setSGL(wr *verbs.SendWR, n int) []verbs.SGE {
	if wr.Inline != nil {
		wr.Inline = nil
	}
	// The comparison saves the write barrier of a pointer store in the common case.
	if len(wr.SGL) != n {
		i := (b.tail - 1) * b.width
		wr.SGL = b.sges[i : i+n : i+b.width]
	}
	return wr.SGL
}

// list returns the room for the newest work request's scatter list, n elements. Fill it before
// setSGL sets their number.
func (b *sendBatch) list(n int) []verbs.SGE {
	i := (b.tail - 1) * b.width
	return b.sges[i : i+n]
}

// setInline gives the newest work request an inline payload.
func (b *sendBatch) setInline(wr *verbs.SendWR, p []byte) {
	wr.SGL = nil
	wr.Inline = p
}

// makeRoom makes room for another work request when there is none at the end.
//
//go:noinline
func (b *sendBatch) makeRoom() {
	if b.head != 0 {
		b.compact()
		return
	}
	old := *b
	*b = newSendBatch(2*len(old.wrs), old.width)
	b.seen = old.seen
	for i := range old.wrs {
		b.tail++
		b.wrs[i] = old.wrs[i]
		b.wrs[i].SGL = nil
		copy(b.setSGL(&b.wrs[i], len(old.wrs[i].SGL)), old.wrs[i].SGL)
		b.wrs[i].Inline = old.wrs[i].Inline
	}
}

// compact moves the waiting work requests to the front. It is needed only after a post was refused
// for now.
func (b *sendBatch) compact() {
	head, tail := b.head, b.tail
	b.head, b.tail, b.seen = 0, 0, max(b.seen-head, 0)
	for i := head; i < tail; i++ {
		b.move(i)
	}
}

// move makes wrs[i] the newest work request. Its scatter list moves along: list i belongs to
// position i.
func (b *sendBatch) move(i int) {
	to, from := &b.wrs[b.tail], &b.wrs[i]
	b.tail++
	if to == from {
		return
	}
	list := b.sges[(b.tail-1)*b.width : (b.tail-1)*b.width+len(from.SGL) : b.tail*b.width]
	copy(list, from.SGL)
	*to = *from
	to.SGL = list
	from.SGL, from.Inline = nil, nil
}

// posted removes the first n waiting work requests: a queue pair has accepted them.
func (b *sendBatch) posted(n int) {
	if b.head += n; b.head == b.tail {
		b.clear()
	}
}

// drop removes the waiting work requests for which lost returns true.
func (b *sendBatch) drop(lost func(id uint64) bool) {
	head, tail := b.head, b.tail
	b.clear()
	for i := head; i < tail; i++ {
		if !lost(b.wrs[i].ID) {
			b.move(i)
		}
	}
	b.seen = b.tail // a post, if in vain, has followed whatever staged them
}

// clear drops everything.
func (b *sendBatch) clear() { b.head, b.tail, b.seen = 0, 0, 0 }

// batchPool lends the send batches of a virtual CQ to rails of its virtual queue pairs. A rail has
// one from staging to posting, and longer only while its queue pair refuses the staged work. So
// there are only as many batches as one call uses, and their memory stays in the cache. With one
// for each rail, a thousand virtual queue pairs would have a hundred megabytes of them.
//
// Invariant: the batches that are not lent are in free, the last one back first. They are empty,
// with room for width elements per list.
type batchPool struct {
	free  *sendBatch
	width int
}

// firstBatch is how many work requests a batch holds before it grows.
const firstBatch = 16

// fit makes the batches that are lent from now on have room for width elements per list.
func (p *batchPool) fit(width int) {
	if p.width < width {
		*p = batchPool{width: width}
	}
}

// lend takes an empty batch out of the pool.
func (p *batchPool) lend() *sendBatch {
	b := p.free
	if b == nil {
		fresh := newSendBatch(firstBatch, p.width)
		return &fresh
	}
	p.free = b.next
	return b
}

// giveBack puts an empty batch back, unless its lists have become too short meanwhile.
func (p *batchPool) giveBack(b *sendBatch) {
	if b.width == p.width {
		b.next, p.free = p.free, b
	}
}

// recvBatch translates receives, and posts them in batches. A virtual CQ has one for all of its
// virtual queue pairs: nothing stays in it between calls.
//
// Invariant: list i lies in sges[i*width:(i+1)*width].
type recvBatch struct {
	wrs   []verbs.RecvWR
	sges  []verbs.SGE
	width int
}

// fit makes room for lists of so many elements.
func (b *recvBatch) fit(width int) {
	if b.width < width || b.wrs == nil {
		b.wrs, b.sges, b.width = make([]verbs.RecvWR, postBatch), make([]verbs.SGE, postBatch*width), width
	}
}

// list returns the empty list of receive i, to be appended to.
func (b *recvBatch) list(i int) []verbs.SGE {
	return b.sges[i*b.width : i*b.width : (i+1)*b.width]
}
