package tagged

import "ibverbx"

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
