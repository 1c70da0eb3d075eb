package soft

import "ibverbx/verbs/internal/nic"

// smallCopy is the longest payload that is copied under the lock: some 0.3 µs here, less than two
// handovers of a contended mutex cost.
const smallCopy = 8 << 10

// copyChunk bounds one call of copy, in bytes. A copy cannot be preempted, so the garbage collector
// would wait for it. From 1 MiB Go's copy bypasses the caches, which takes 1.3 times as long for
// data that fits into them.
const copyChunk = 512 << 10

// transfer is the copy of one request's payload, from the pieces of src, in order, to those of dst.
// Their regions are held while the copy runs outside the lock.
type transfer struct {
	src, dst nic.Pieces
	at       copyCursor
	peer     *QP   // the other side of a copy outside the lock
	arrive   int64 // when the message reaches the peer, from the engine's transmit; 0 means at once
}

// copyCursor is the position of a copy: the next byte comes from offset from of piece src, and goes
// to offset to of piece dst.
type copyCursor struct{ src, from, dst, to int }

func (x *transfer) reset() {
	x.src.Reset()
	x.dst.Reset()
	x.at = copyCursor{}
	x.arrive = 0
}

// copy copies the payload.
func (x *transfer) copy() {
	src, dst := x.src.Bytes, x.dst.Bytes
	if len(src) == 1 && len(dst) == 1 && len(src[0]) <= copyChunk {
		nic.Move(dst[0], src[0])
		return
	}
	if len(src) == 1 && len(src[0]) <= maxWord || len(dst) == 1 && len(dst[0]) <= maxWord {
		x.copyWord()
		return
	}
	for !x.copySome(copyChunk) {
	}
}

// copySome copies the next bytes of the payload, at most limit, and reports whether that was all.
func (x *transfer) copySome(limit int) (all bool) {
	c := &x.at
	from, to := x.src.Bytes, x.dst.Bytes
	for c.src < len(from) && c.dst < len(to) {
		if limit == 0 {
			return false
		}
		src, dst := from[c.src], to[c.dst]
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

// maxWord is the longest payload that is copied in one access to memory, in bytes.
const maxWord = 8

// copyWord copies a payload that may be a word at one end and in pieces at the other.
func (x *transfer) copyWord() {
	var word [maxWord]byte
	n := 0
	for _, b := range x.src.Bytes {
		nic.Move(word[n:n+len(b)], b)
		n += len(b)
	}
	n = 0
	for _, b := range x.dst.Bytes {
		nic.Move(b, word[n:n+len(b)])
		n += len(b)
	}
}

// hold keeps the regions from being deregistered.
func (x *transfer) hold() {
	x.src.Hold()
	x.dst.Hold()
}

// release undoes hold, and clears the pieces.
func (x *transfer) release() {
	x.src.Release()
	x.dst.Release()
	x.peer = nil
}
