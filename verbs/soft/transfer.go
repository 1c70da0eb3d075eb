package soft

import "ibverbx/verbs"

// smallCopy is the longest payload that is copied under the lock: some 0.3 µs here, less than two
// handovers of a contended mutex cost.
const smallCopy = 8 << 10

// copyChunk bounds one call of copy, in bytes. It cannot be preempted, and the garbage collector
// would wait for it; and from 1 MiB on Go's copy writes past the caches, which takes 1.3 times as
// long for what fits into them.
const copyChunk = 512 << 10

// transfer is the movement of one request's payload: from the pieces in src, in order, to those in
// dst. The regions they lie in are pinned while it is under way outside of the lock.
type transfer struct {
	src, dst [][]byte
	mrs      []*MR
	at       copyCursor
	peer     *QP   // the other side of a copy outside of the lock
	arrive   int64 // when the message is at the peer, set with the engine's transmit; 0 is at once
}

// copyCursor is how far the copy of a payload has come: what is copied next is from the byte at
// from of piece src, and goes to that at to of piece dst.
type copyCursor struct{ src, from, dst, to int }

func (x *transfer) reset() {
	x.src, x.dst, x.mrs, x.at = x.src[:0], x.dst[:0], x.mrs[:0], copyCursor{}
	x.arrive = 0
}

// gather appends the pieces that sges name, up to limit bytes, to list. It returns false when a
// key, range or access right does not cover a piece. Elements of no bytes need no key.
func (x *transfer) gather(list [][]byte, pd *PD, sges []verbs.SGE, limit uint64,
	access verbs.AccessFlags) ([][]byte, bool) {
	keys := &pd.dev.keys
	for i := range sges {
		e := &sges[i]
		n := min(uint64(e.Length), limit)
		if n == 0 {
			continue
		}
		m := keys.find(e.LKey)
		if m == nil {
			return list, false
		}
		// All of the element has to be covered, even what the message does not reach.
		b, ok := m.slice(pd, e.Addr, uint64(e.Length), access)
		if !ok {
			return list, false
		}
		list = append(list, b[:n])
		x.mrs = append(x.mrs, m)
		limit -= n
	}
	return list, true
}

// copy moves the payload.
func (x *transfer) copy() {
	src, dst := x.src, x.dst
	if len(src) == 1 && len(dst) == 1 && len(src[0]) <= copyChunk {
		move(dst[0], src[0])
		return
	}
	if len(src) == 1 && len(src[0]) <= maxWord || len(dst) == 1 && len(dst[0]) <= maxWord {
		x.copyWord()
		return
	}
	for !x.copySome(copyChunk) {
	}
}

// copySome moves the next bytes of the payload, so many at most, and reports whether that was all.
func (x *transfer) copySome(limit int) (all bool) {
	c := &x.at
	for c.src < len(x.src) && c.dst < len(x.dst) {
		if limit == 0 {
			return false
		}
		src, dst := x.src[c.src], x.dst[c.dst]
		n := copy(dst[c.to:], src[c.from:min(len(src), c.from+min(limit, copyChunk))])
		limit -= n
		c.from += n
		c.to += n
		if c.from == len(src) {
			c.src, c.from = c.src+1, 0
		}
		if c.to == len(dst) {
			c.dst, c.to = c.dst+1, 0
		}
	}
	return true
}

// maxWord is the longest payload that is one access to memory.
const maxWord = 8

// copyWord moves a payload that may be a word at one end and is in pieces at the other.
func (x *transfer) copyWord() {
	var word [maxWord]byte
	n := 0
	for _, b := range x.src {
		move(word[n:n+len(b)], b)
		n += len(b)
	}
	n = 0
	for _, b := range x.dst {
		move(b, word[n:n+len(b)])
		n += len(b)
	}
}

// pin keeps the regions from being deregistered.
func (x *transfer) pin() {
	for _, m := range x.mrs {
		m.pins++
	}
}

// unpin undoes pin, and forgets the pieces.
func (x *transfer) unpin() {
	for _, m := range x.mrs {
		m.pins--
	}
	clear(x.src)
	clear(x.dst)
	clear(x.mrs)
	x.peer = nil
}
