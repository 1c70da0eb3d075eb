package tagged

import (
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"slices"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/verbs"
)

// Use is a set of purposes that memory is registered for.
type Use uint8

// The uses.
const (
	// ForSends: peers read the memory. It may be memory that cannot be written to, such as a file
	// mapped for reading.
	ForSends Use = 1 << iota
	// ForReceives: the NICs of this end write to the memory, and no peer has any access.
	ForReceives
)

// String returns the names of the uses: "ForSends|ForReceives".
func (u Use) String() string {
	switch u {
	case ForSends:
		return "ForSends"
	case ForReceives:
		return "ForReceives"
	case ForSends | ForReceives:
		return "ForSends|ForReceives"
	}
	return fmt.Sprintf("unknown use %#x", uint8(u))
}

func (u Use) validate() error {
	if u == 0 || u&^(ForSends|ForReceives) != 0 {
		return refuse("register", verbs.ErrInvalid, "use %#x: must be ForSends, ForReceives, or both",
			uint8(u))
	}
	return nil
}

// access returns the rights with which memory for a use is registered.
func (w *Worker) access(use Use) (a verbs.AccessFlags) {
	if use&ForSends != 0 {
		a |= verbs.AccessRemoteRead
	}
	if use&ForReceives != 0 {
		a |= verbs.AccessLocalWrite
	}
	if w.cfg.RelaxedOrdering {
		a |= verbs.AccessRelaxedOrdering
	}
	return a
}

// Region is memory that is registered for long messages, which need no further registration.
type Region struct {
	_      guard.NoCopy
	w      *Worker
	use    Use
	buf    []byte  // nil for device memory
	start  uintptr // address of buf
	mr     *ibverbx.MR
	remote ibverbx.RemoteMR // made once, because making it allocates
	users  int              // pieces of requests in the region; while there are any it cannot be closed
	closed bool
}

// Register registers memory with the NICs for long messages: buffers of sends and receives inside
// it need no registration of their own. Do not free the memory until [Region.Close], or
// [Worker.Close], has returned; until then you may use it for anything. Regions must not overlap.
func (w *Worker) Register(buf []byte) (*Region, error) {
	return w.RegisterFor(ForSends|ForReceives, buf)
}

// RegisterFor is Register for sends only, or for receives only. A message that uses the memory for
// the other purpose registers it once more.
func (w *Worker) RegisterFor(use Use, buf []byte) (*Region, error) {
	if len(buf) == 0 {
		return nil, refuse("register", verbs.ErrInvalid, "no bytes")
	}
	if err := use.validate(); err != nil {
		return nil, err
	}
	mr, err := w.dom.Register(buf, w.access(use))
	if err != nil {
		return nil, err
	}
	return w.addRegion(&Region{w: w, use: use, buf: buf, start: address(buf), mr: mr, remote: mr.Remote()})
}

// Alloc makes n bytes of memory, all zero, and registers them as Register does. It is the kind of
// memory that the NICs access at the least cost: see [ibverbx.Domain.Alloc]. It stays valid after
// [Region.Close], as long as you refer to it.
func (w *Worker) Alloc(n int) (*Region, error) {
	mr, err := w.dom.Alloc(n, w.access(ForSends|ForReceives))
	if err != nil {
		return nil, err
	}
	buf := mr.Bytes()
	return w.addRegion(&Region{w: w, use: ForSends | ForReceives, buf: buf, start: address(buf), mr: mr,
		remote: mr.Remote()})
}

// addRegion adds a region to the worker's table; if it cannot, it deregisters the memory.
func (w *Worker) addRegion(r *Region) (*Region, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.Join(refuse("register", ErrClosed, ""), r.mr.Close())
	}
	if !w.regions.add(r) {
		return nil, errors.Join(refuse("register", verbs.ErrInvalid,
			"%d bytes at %#x: a region overlaps them", len(r.buf), r.start), r.mr.Close())
	}
	return r, nil
}

// MR returns the memory region, for operations of the underlying transport.
func (r *Region) MR() *ibverbx.MR { return r.mr }

// Bytes returns the memory; nil for device memory.
func (r *Region) Bytes() []byte { return r.buf }

// Close deregisters the memory. It fails with verbs.ErrBusy while requests use the memory, and the
// region stays open. After any other error the region is closed, but a NIC may still have access to
// the memory.
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
	err := r.mr.Close()
	if err != nil && r.mr.Remote() != (ibverbx.RemoteMR{}) {
		return err // operations of the transport use it: it stays open
	}
	r.closed = true
	w.regions.remove(r)
	return err
}

// address returns the address of a buffer. It only serves to find the region that contains the
// buffer: memory is accessed through slices.
func address(buf []byte) uintptr { return reflect.ValueOf(&buf[0]).Pointer() }

// regionTable holds the regions. Those that have bytes are sorted by address.
//
// Invariant: sorted is in the order of start, and no two overlap.
type regionTable struct {
	sorted []*Region
	device []*Region // regions without bytes, in the order of registration
}

// after returns the index of the first region that starts behind an address.
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

// add adds a region; it reports false, and adds nothing, if another overlaps it.
func (t *regionTable) add(r *Region) bool {
	if r.buf == nil {
		t.device = append(t.device, r)
		return true
	}
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
	list := &t.sorted
	if r.buf == nil {
		list = &t.device
	}
	if i := slices.Index(*list, r); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// find returns the region for a use that contains all of buf, and the offset of buf in it; nil if
// there is none.
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

// close deregisters all regions.
func (t *regionTable) close() error {
	var errs []error
	for _, r := range slices.Concat(t.sorted, t.device) {
		r.closed = true
		errs = append(errs, r.mr.Close())
	}
	t.sorted, t.device = nil, nil
	return errors.Join(errs...)
}

// spares are the objects that a worker keeps for reuse. Worker.mu guards them.
//
// Invariant: nothing in them is in use or refers to the program's memory.
type spares struct {
	requests requestPool
	calls    []*Request // those of collective calls, which have a function each
	inbounds inboundPool
	blocks   blockPool
	readings list.List[reading]
	chunks   *chunk
}

// init sets how much is kept.
func (s *spares) init(c *Config) {
	s.requests.most = c.MaxRequests
	s.inbounds.most = c.MaxUnexpected
	s.blocks.most, s.blocks.largest = c.MaxUnexpected*c.Transport.BufferSize, c.Transport.BufferSize
}

// block holds a copy of a fragment.
type block struct {
	data  []byte
	class uint8  // determines its capacity: see blockPool.size
	next  *block // of the same message, or in blockPool
}

// leastBlock is the size of the smallest class; each has twice the bytes of the one before.
const leastBlock = 64

// blockPool keeps blocks for reuse, by size, up to a number of bytes.
//
// Invariant: bytes is the size of all free blocks, at most most.
type blockPool struct {
	free  [32]*block // by class
	bytes int        // of free blocks
	used  int        // bytes in blocks that hold fragments
	most  int        // limit of bytes
	// largest is the length of the longest fragment, bytes: no block is larger.
	largest int
}

// size returns the size of a class's blocks, in bytes.
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

// RegisterDMABuf registers part of a dma-buf, such as memory of a GPU, for long messages: messages
// go from and into it with SendRegion and RecvRegion. The arguments are those of
// [ibverbx.Domain.RegisterDMABuf]. [Region.Bytes] is nil: the processor does not access it.
func (w *Worker) RegisterDMABuf(use Use, fd int, offset, length, iova uint64) (*Region, error) {
	if err := use.validate(); err != nil {
		return nil, err
	}
	mr, err := w.dom.RegisterDMABuf(fd, offset, length, iova, w.access(use))
	if err != nil {
		return nil, err
	}
	return w.addRegion(&Region{w: w, use: use, mr: mr, remote: mr.Remote()})
}

// SendRegion sends n bytes of a region, from offset off, as one message; it returns what Send
// returns. For a region that has bytes it does what Send does. From device memory no message is
// copied, however short: the peer reads it.
func (e *Endpoint) SendRegion(tag uint64, r *Region, off, n int) (*Request, error) {
	const op = "send region"
	w := e.w
	if err := r.refuses(op, w, ForSends, off, n); err != nil {
		return nil, err
	}
	if r.buf != nil || n == 0 {
		return e.send(op, tag, r.pieces(off, n), false)
	}
	w.mu.Lock()
	err := e.admit(op, tag)
	if err == nil && r.closed {
		err = refuse(op, ErrClosed, "the region")
	}
	if err != nil {
		w.mu.Unlock()
		return nil, err
	}
	req := w.newRequest(tag, nil, n)
	req.ep, req.kind = e, sendLong
	req.pins.addRegion(r, off, n)
	return e.enqueue(req)
}

// RecvRegion is Recv into n bytes of a region, from offset off. A message that its sender has
// copied (see Config.EagerLimit) cannot be received into device memory: the request completes with
// [ErrDeviceMemory].
func (w *Worker) RecvRegion(tag, mask uint64, r *Region, off, n int) (*Request, error) {
	return w.recvRegion(nil, tag, mask, r, off, n)
}

// RecvRegion is [Worker.RecvRegion] for messages of this peer alone, as [Endpoint.Recv] is.
func (e *Endpoint) RecvRegion(tag, mask uint64, r *Region, off, n int) (*Request, error) {
	return e.w.recvRegion(e, tag, mask, r, off, n)
}

func (w *Worker) recvRegion(from *Endpoint, tag, mask uint64, r *Region, off, n int) (*Request, error) {
	const op = "recv region"
	if err := r.refuses(op, w, ForReceives, off, n); err != nil {
		return nil, err
	}
	if r.buf != nil || n == 0 {
		return w.recv(from, false, tag, mask, r.pieces(off, n))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.mayReceive(op, from, tag, mask); err != nil {
		return nil, err
	}
	if r.closed {
		return nil, refuse(op, ErrClosed, "the region")
	}
	req := w.newRequest(tag, nil, n)
	req.pins.addRegion(r, off, n)
	return w.post(req, from, false, mask)
}

// refuses returns why a request of a worker cannot use part of the region; nil if it can.
func (r *Region) refuses(op string, w *Worker, use Use, off, n int) error {
	switch {
	case r == nil || r.w != w:
		return refuse(op, verbs.ErrInvalid, "the region is of no worker, or of another one")
	case r.use&use == 0:
		return refuse(op, verbs.ErrInvalid, "the region is not registered for this use")
	case off < 0 || n < 0 || uint64(off) > r.mr.Len() || uint64(n) > r.mr.Len()-uint64(off):
		return refuse(op, verbs.ErrInvalid, "%d bytes from offset %d: the region has %d", n, off, r.mr.Len())
	}
	return nil
}

// pieces returns part of the region as buffers; the region must have bytes.
func (r *Region) pieces(off, n int) [][]byte {
	if n == 0 {
		return nil
	}
	return [][]byte{r.buf[off : off+n]}
}

// cannotCopy returns why a message cannot be copied into the receive; nil if it can.
func (r *Request) cannotCopy(n int) error {
	switch {
	case n > r.data.length:
		return ErrTruncated
	case n != 0 && r.pins.count != 0:
		return ErrDeviceMemory
	}
	return nil
}
