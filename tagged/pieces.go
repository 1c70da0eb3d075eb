package tagged

// pieces are the buffers of a message, and a position in them.
type pieces struct {
	bufs   [][]byte          // none is empty
	spare  [maxPieces][]byte // backs bufs while it is short
	length int               // bytes in all of them together
	piece  int               // the next byte to copy is bufs[piece][offset]
	offset int
}

// size returns the length of all the pieces together, and false if it overflows an int.
func size(bufs [][]byte) (n int, ok bool) {
	for _, b := range bufs {
		if n += len(b); n < 0 {
			return 0, false
		}
	}
	return n, true
}

// set sets the buffers of cleared pieces and leaves out empty ones. It copies the slice itself,
// which may be on the caller's stack.
func (p *pieces) set(bufs [][]byte, length int) {
	if p.bufs == nil {
		p.bufs = p.spare[:0]
	}
	for _, b := range bufs {
		if len(b) != 0 {
			p.bufs = append(p.bufs, b)
		}
	}
	p.length, p.piece, p.offset = length, 0, 0
}

// clear forgets the buffers.
func (p *pieces) clear() {
	clear(p.bufs)
	p.bufs = p.bufs[:0]
	p.length, p.piece, p.offset = 0, 0, 0
}

// gather copies into dst as many of the next bytes as fit, and returns their number.
func (p *pieces) gather(dst []byte) int {
	n := 0
	for n < len(dst) && p.piece < len(p.bufs) {
		k := copy(dst[n:], p.bufs[p.piece][p.offset:])
		n += k
		p.advance(k)
	}
	return n
}

// rewind goes back to the first byte.
func (p *pieces) rewind() { p.piece, p.offset = 0, 0 }

// scatter copies src into the next bytes.
func (p *pieces) scatter(src []byte) {
	for len(src) != 0 && p.piece < len(p.bufs) {
		k := copy(p.bufs[p.piece][p.offset:], src)
		src = src[k:]
		p.advance(k)
	}
}

// advance moves n bytes on, within the buffer.
func (p *pieces) advance(n int) {
	if p.offset += n; p.offset == len(p.bufs[p.piece]) {
		p.piece, p.offset = p.piece+1, 0
	}
}
