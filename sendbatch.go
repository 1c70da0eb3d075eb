package ibverbx

import "ibverbx/verbs"

// postBatch is how many receives, or requests of a single queue pair, are handed to a queue pair at
// a time: as many as a caller usually posts at once.
const postBatch = 64

// sendBatch is what waits to be posted on a rail: work requests and their scatter lists, made once
// and reused. What a post refuses for now stays at the front.
//
// Invariant: 0 <= head <= tail <= len(wrs); wrs[head:tail] waits. wrs[i].SGL is empty or lies in
// sges[i*width:(i+1)*width].
type sendBatch struct {
	wrs        []verbs.SendWR
	sges       []verbs.SGE
	width      int
	head, tail int
}

func newSendBatch(size, width int) sendBatch {
	return sendBatch{wrs: make([]verbs.SendWR, size), sges: make([]verbs.SGE, size*width), width: width}
}

// add opens the next work request. Its fields are as their last user left them; setSGL or setInline
// gives it its payload.
func (b *sendBatch) add() *verbs.SendWR {
	if b.tail == len(b.wrs) {
		b.compact()
	}
	wr := &b.wrs[b.tail]
	b.tail++
	return wr
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

// list is the room for the newest work request's scatter list of n elements, to be filled before
// setSGL says how many there are.
func (b *sendBatch) list(n int) []verbs.SGE {
	i := (b.tail - 1) * b.width
	return b.sges[i : i+n]
}

// setInline gives the newest work request its payload itself.
func (b *sendBatch) setInline(wr *verbs.SendWR, p []byte) {
	wr.SGL = nil
	wr.Inline = p
}

// compact moves what waits to the front. It is needed only after a post was refused for now.
func (b *sendBatch) compact() {
	if b.head == 0 {
		return
	}
	head, tail := b.head, b.tail
	b.head, b.tail = 0, 0
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

// drop removes the waiting work requests for which lost returns true.
func (b *sendBatch) drop(lost func(id uint64) bool) {
	head, tail := b.head, b.tail
	b.head, b.tail = 0, 0
	for i := head; i < tail; i++ {
		if !lost(b.wrs[i].ID) {
			b.move(i)
		}
	}
}

// clear drops everything.
func (b *sendBatch) clear() { b.head, b.tail = 0, 0 }
