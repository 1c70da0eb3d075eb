package tagged

import (
	"errors"
	"reflect"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// Use is what memory is registered for: a set.
type Use uint8

// The uses.
const (
	// peers read it; it may be memory that cannot be written to, such as a file mapped for reading
	ForSends    Use = 1 << iota
	ForReceives     // the NICs of this end write to it, and no peer has any access
)

func (u Use) access() (a verbs.AccessFlags) {
	if u&ForSends != 0 {
		a |= verbs.AccessRemoteRead
	}
	if u&ForReceives != 0 {
		a |= verbs.AccessLocalWrite
	}
	return a
}

// Region is memory that was registered for long messages: they go from and into it without
// registration.
type Region struct {
	w      *Worker
	use    Use
	buf    []byte
	start  uintptr
	mr     *ibverbx.MR
	remote ibverbx.RemoteMR // describing a region anew for each message would allocate
	users  int              // requests
	closed bool
}

// Register makes memory known to the NICs for long messages: buffers of sends and receives that lie
// inside it need no registration of their own. The memory must not be freed until [Region.Close],
// or [Worker.Close], has returned; it may be used for anything meanwhile. Regions must not overlap.
func (w *Worker) Register(buf []byte) (*Region, error) {
	return w.RegisterFor(ForSends|ForReceives, buf)
}

// RegisterFor is Register for sends only, or for receives only. What the region is not for takes a
// registration of its own.
func (w *Worker) RegisterFor(use Use, buf []byte) (*Region, error) {
	switch {
	case len(buf) == 0:
		return nil, refuse("register", verbs.ErrInvalid, "no bytes")
	case use == 0 || use&^(ForSends|ForReceives) != 0:
		return nil, refuse("register", verbs.ErrInvalid, "use %#x: must be ForSends, ForReceives, or both",
			uint8(use))
	}
	mr, err := w.dom.Register(buf, use.access())
	if err != nil {
		return nil, err
	}
	r := &Region{w: w, use: use, buf: buf, start: address(buf), mr: mr, remote: mr.Remote()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.Join(refuse("register", ErrClosed, ""), mr.Close())
	}
	if !w.regions.add(r) {
		return nil, errors.Join(refuse("register", verbs.ErrInvalid,
			"%d bytes at %#x: a region overlaps them", len(buf), r.start), mr.Close())
	}
	return r, nil
}

// MR is the memory region, for operations of the transport beneath.
func (r *Region) MR() *ibverbx.MR { return r.mr }

// Bytes is the memory.
func (r *Region) Bytes() []byte { return r.buf }

// Close deregisters the memory. It is refused with verbs.ErrBusy while requests use it.
func (r *Region) Close() error {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.closed:
		return refuse("close region", ErrClosed, "")
	case r.users != 0:
		return refuse("close region", verbs.ErrBusy, "%d requests use it: wait for them first", r.users)
	}
	if err := r.mr.Close(); err != nil {
		return err
	}
	r.closed = true
	w.regions.remove(r)
	return nil
}

// address is where a buffer lies. It only tells which region the buffer is part of: memory is
// reached through slices.
func address(buf []byte) uintptr { return reflect.ValueOf(&buf[0]).Pointer() }

// regionTable holds regions by address.
type regionTable struct{ sorted []*Region }

// after is the index of the first region that starts behind an address.
func (t *regionTable) after(addr uintptr) int {
	lo, hi := 0, len(t.sorted)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.sorted[mid].start > addr {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

func (t *regionTable) add(r *Region) bool {
	i := t.after(r.start)
	if i > 0 && r.start-t.sorted[i-1].start < uintptr(len(t.sorted[i-1].buf)) {
		return false
	}
	if i < len(t.sorted) && t.sorted[i].start-r.start < uintptr(len(r.buf)) {
		return false
	}
	t.sorted = slices.Insert(t.sorted, i, r)
	return true
}

func (t *regionTable) remove(r *Region) {
	if i := slices.Index(t.sorted, r); i >= 0 {
		t.sorted = slices.Delete(t.sorted, i, i+1)
	}
}

// find returns the region for a use that all of buf lies in, and where; nil if there is none.
func (t *regionTable) find(buf []byte, use Use) (*Region, uint64) {
	addr := address(buf)
	i := t.after(addr)
	if i == 0 {
		return nil, 0
	}
	r := t.sorted[i-1]
	off := addr - r.start
	if size := uintptr(len(r.buf)); r.use&use == 0 || off >= size || uintptr(len(buf)) > size-off {
		return nil, 0
	}
	return r, uint64(off)
}

func (t *regionTable) close() error {
	var errs []error
	for _, r := range t.sorted {
		r.closed = true
		errs = append(errs, r.mr.Close())
	}
	t.sorted = nil
	return errors.Join(errs...)
}

// pin is a piece of a long message, in registered memory.
type pin struct {
	region *Region     // whose it is, or
	mr     *ibverbx.MR // what was registered for this one message
	remote ibverbx.RemoteMR
	offset uint64
	length uint64
}

// pinList is the memory of a long message.
type pinList struct {
	pins   [maxPieces]pin
	count  int
	staged []byte // in place of the pieces, where there are too many of them
}

// pin makes the pieces known to the NICs. Where there are too many, the message, of n bytes, goes
// through memory made for it.
//
// Registering takes long: a GiB of pages has to be pinned. So the worker's lock is released
// meanwhile, and what the caller knew of the worker and of the endpoint has to be looked at again.
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

func (l *pinList) add(w *Worker, buf []byte, use Use) error {
	p := pin{length: uint64(len(buf))}
	if r, off := w.regions.find(buf, use); r != nil {
		r.users++
		p.region, p.remote, p.offset = r, r.remote, off
	} else {
		w.mu.Unlock()
		mr, err := w.dom.Register(buf, use.access())
		w.mu.Lock()
		if err != nil {
			return err
		}
		w.stats.registered++
		p.mr, p.remote = mr, mr.Remote()
	}
	l.pins[l.count] = p
	l.count++
	return nil
}

// stage makes one buffer for all the pieces, filled with them for a send. The lock is released for
// that, too.
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

// release lets go of the memory. No NIC uses it any more.
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

// segment names n bytes of a piece, for reading into them.
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

func (l *pinList) describedSize() (n int) {
	for i := range l.count {
		n += l.pins[i].remote.Slice(0, 0).BinarySize()
	}
	return n
}
