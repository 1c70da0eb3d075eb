package tagged

import "ibverbx"

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

// pin is a piece of a long message, in registered memory.
//
// Invariant: exactly one of region and mr is set.
type pin struct {
	region *Region     // the program's region that contains the piece
	mr     *ibverbx.MR // registered for this one message
	remote ibverbx.RemoteMR
	offset uint64 // where the piece begins in the registered memory, in bytes
	length uint64 // of the piece, in bytes
}

// pinList is the registered memory of a long message.
type pinList struct {
	pins   [maxPieces]pin
	count  int    // of pins
	staged []byte // replaces the pieces if there are more than maxPieces
}

// pin registers the pieces, unless they are in regions. If there are too many, the message of n
// bytes goes through a buffer made for it.
//
// Registering takes long, since it pins the pages. So pin releases the worker's lock meanwhile, and
// the caller must check again what it knew about the worker and the endpoint.
func (l *pinList) pin(w *Worker, p *pieces, n int, use Use) error {
	if len(p.bufs) > maxPieces {
		return l.stage(w, p, n, use)
	}
	for _, buf := range p.bufs {
		if err := l.add(w, buf, use); err != nil {
			return err
		}
	}
	return nil
}

// add adds a piece.
func (l *pinList) add(w *Worker, buf []byte, use Use) error {
	if r, off := w.regions.find(buf, use); r != nil {
		l.addRegion(r, int(off), len(buf))
		return nil
	}
	w.mu.Unlock()
	mr, err := w.dom.Register(buf, w.access(use))
	w.mu.Lock()
	if err != nil {
		return err
	}
	w.stats.registered++
	l.pins[l.count] = pin{mr: mr, remote: mr.Remote(), length: uint64(len(buf))}
	l.count++
	return nil
}

// addRegion adds part of a region.
func (l *pinList) addRegion(r *Region, off, n int) {
	r.users++
	l.pins[l.count] = pin{region: r, remote: r.remote, offset: uint64(off), length: uint64(n)}
	l.count++
}

// stage makes one buffer for all the pieces and, for a send, copies them into it. It releases the
// lock, too.
func (l *pinList) stage(w *Worker, p *pieces, n int, use Use) error {
	w.mu.Unlock()
	staged := make([]byte, n)
	if use == ForSends {
		p.gather(staged)
		p.rewind()
	}
	w.mu.Lock()
	l.staged = staged
	w.stats.staged++
	return l.add(w, staged, use)
}

// release undoes the registrations. Call it when no NIC uses the memory any more.
func (l *pinList) release(w *Worker) {
	for i := range l.count {
		p := &l.pins[i]
		if p.region != nil {
			p.region.users--
		} else if err := p.mr.Close(); err != nil {
			w.stats.leaked++
		}
		*p = pin{}
	}
	l.count, l.staged = 0, nil
}

// segment returns n bytes of a piece, for a read into them.
func (p *pin) segment(off, n uint64) ibverbx.Segment {
	mr := p.mr
	if p.region != nil {
		mr = p.region.mr
	}
	return mr.Slice(p.offset+off, n)
}

// describe appends what the peer needs to read the pieces.
func (l *pinList) describe(b []byte) []byte {
	for i := range l.count {
		p := &l.pins[i]
		b = p.remote.Slice(p.offset, p.length).AppendBinary(b)
	}
	return b
}

// describedSize returns the length of a description in bytes.
func (l *pinList) describedSize() (n int) {
	for i := range l.count {
		n += l.pins[i].remote.Slice(0, 0).BinarySize()
	}
	return n
}
