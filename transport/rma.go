package transport

import (
	"math"

	"ibverbx"
	"ibverbx/verbs"
)

// PutShort writes data into the peer's memory. The data is copied, Limits.PutShort bytes at most.
func (e *Endpoint) PutShort(data []byte, remote ibverbx.RemoteSegment) error {
	e.peer.w.mu.Lock()
	err := e.putShort(data, remote)
	e.peer.unlock()
	return err
}

func (e *Endpoint) putShort(data []byte, remote ibverbx.RemoteSegment) error {
	const name = "put short"
	p, w := e.peer, e.peer.w
	if len(data) > w.cfg.QP.MaxInline {
		if limit := p.limits().PutShort; len(data) > limit {
			return p.refuse(name, ErrTooLong, "%d bytes: at most %d; use bcopy", len(data), limit)
		}
		_, err := e.putBcopy(name, func(dst []byte) int { return copy(dst, data) }, remote)
		return err
	}
	if err := e.usable(name); err != nil || len(data) == 0 {
		return err
	}
	if err := e.tryAdmit(false, false); err != nil {
		return err
	}
	wr := &w.templates.put
	wr[0].Flags = verbs.SendSignaled | verbs.SendInline
	wr[0].Inline, wr[0].Local, wr[0].Remote = data, ibverbx.Segment{}, remote
	_, err := e.post(name, wr, opPut, noBuffer, nil)
	wr[0].Inline = nil
	if err == nil {
		p.countPut(len(data))
	}
	return err
}

// PutBcopy writes into the peer's memory what pack writes into the buffer that it gets, of
// Limits.PutBcopy bytes. The rules for pack are those of [Endpoint.AMBcopy].
func (e *Endpoint) PutBcopy(pack func(dst []byte) int, remote ibverbx.RemoteSegment) (int, error) {
	e.peer.w.mu.Lock()
	n, err := e.putBcopy("put bcopy", pack, remote)
	e.peer.unlock()
	return n, err
}

func (e *Endpoint) putBcopy(name string, pack func(dst []byte) int, remote ibverbx.RemoteSegment) (int,
	error) {
	p, w := e.peer, e.peer.w
	if err := e.usable(name); err != nil {
		return 0, err
	}
	if pack == nil {
		return 0, p.refuse(name, verbs.ErrInvalid, "no pack function")
	}
	if err := e.tryAdmit(false, true); err != nil {
		return 0, err
	}
	buf := p.takeBuffer()
	n := p.pack(pack, p.bufferBytes(buf), buf)
	switch {
	case n < 0 || n > w.cfg.BufferSize:
		p.putBuffer(buf)
		return 0, p.refusePacked(name, n, w.cfg.BufferSize)
	case n == 0:
		p.putBuffer(buf)
		return 0, nil
	}
	wr := &w.templates.put
	wr[0].Flags = verbs.SendSignaled
	wr[0].Local, wr[0].Remote = p.bufferSegment(buf, n), remote
	if _, err := e.post(name, wr, opPut, buf, nil); err != nil {
		return 0, err
	}
	p.countPut(n)
	return n, nil
}

// PutZcopy writes into the peer's memory from any number of pieces of registered memory, of any
// length (see [Limits] for a single queue pair). The memory must not be written to until comp,
// which may be nil, has fired. If there is no data, it returns done and does not touch comp.
func (e *Endpoint) PutZcopy(comp *Completion, remote ibverbx.RemoteSegment,
	local ...ibverbx.Segment) (done bool, err error) {
	e.peer.w.mu.Lock()
	done, err = e.zcopy("put zcopy", &e.peer.w.templates.put, comp, remote, local)
	e.peer.unlock()
	return done, err
}

// GetZcopy reads the peer's memory into pieces of registered memory, which belongs to the NICs
// until comp, which may be nil, has fired. If there is no data, it returns done and does not touch
// comp.
func (e *Endpoint) GetZcopy(comp *Completion, remote ibverbx.RemoteSegment,
	local ...ibverbx.Segment) (done bool, err error) {
	e.peer.w.mu.Lock()
	done, err = e.zcopy("get zcopy", &e.peer.w.templates.get, comp, remote, local)
	e.peer.unlock()
	return done, err
}

func (e *Endpoint) zcopy(name string, wr *[1]ibverbx.SendWR, comp *Completion, remote ibverbx.RemoteSegment,
	local []ibverbx.Segment) (done bool, err error) {
	p, w := e.peer, e.peer.w
	n := uint64(0)
	for i := range local {
		if n += local[i].Length; n < local[i].Length {
			n = math.MaxUint64 // the virtual queue pair refuses the post and says why
			break
		}
	}
	if err := e.usable(name); err != nil || n == 0 {
		return err == nil, err
	}
	if err := e.tryAdmit(false, false); err != nil {
		return false, err
	}
	wr[0].Flags = verbs.SendSignaled
	wr[0].Remote = remote
	if len(local) == 1 {
		wr[0].Local = local[0]
	} else {
		w.templates.sgl = append(w.templates.sgl[:0], local...)
		wr[0].Local, wr[0].SGL = ibverbx.Segment{}, w.templates.sgl
	}
	kind := opPut
	if wr[0].Opcode == verbs.OpRDMARead {
		kind = opGet
	}
	_, err = e.post(name, wr, kind, noBuffer, comp)
	wr[0].SGL = nil
	if err == nil && kind == opPut {
		p.countPut(int(n))
	} else if err == nil {
		p.countGet(int(n))
	}
	return false, err
}

// GetBcopy reads len(dst) bytes of the peer's memory, Limits.GetBcopy at most, into memory that
// need not be registered. It belongs to the worker until comp, which may be nil, has fired. If dst
// is empty, it returns done and does not touch comp.
func (e *Endpoint) GetBcopy(
	comp *Completion, dst []byte, remote ibverbx.RemoteSegment,
) (done bool, err error) {
	e.peer.w.mu.Lock()
	done, err = e.getBcopy(comp, dst, remote)
	e.peer.unlock()
	return done, err
}

func (e *Endpoint) getBcopy(comp *Completion, dst []byte, remote ibverbx.RemoteSegment) (done bool,
	err error) {
	const name = "get bcopy"
	p, w := e.peer, e.peer.w
	if len(dst) > w.cfg.BufferSize {
		return false, p.refuse(name, ErrTooLong, "%d bytes: at most %d; use zcopy", len(dst),
			w.cfg.BufferSize)
	}
	if err := e.usable(name); err != nil || len(dst) == 0 {
		return err == nil, err
	}
	if err := e.tryAdmit(false, true); err != nil {
		return false, err
	}
	buf := p.takeBuffer()
	wr := &w.templates.get
	wr[0].Flags = verbs.SendSignaled
	wr[0].Local, wr[0].Remote = p.bufferSegment(buf, len(dst)), remote
	o, err := e.post(name, wr, opUnpack, buf, comp)
	if err != nil {
		return false, err
	}
	o.dst = dst
	p.countGet(len(dst))
	return false, nil
}

// FetchAdd adds to an eight-byte number in the peer's memory, at an address that is a multiple of
// eight. The old value is in *old once comp has fired; both may be nil.
func (e *Endpoint) FetchAdd(comp *Completion, old *uint64, remote ibverbx.RemoteSegment,
	add uint64) error {
	e.peer.w.mu.Lock()
	err := e.atomicOp("fetch add", verbs.OpAtomicFetchAdd, comp, old, remote, add, 0)
	e.peer.unlock()
	return err
}

// CompareSwap stores swap in an eight-byte number of the peer's memory if that equals compare. The
// old value is in *old once comp has fired; both may be nil. Atomics that go through the same NIC
// of the peer are atomic to each other, and all endpoints use the same one. They need not be atomic
// to the peer's processor.
func (e *Endpoint) CompareSwap(
	comp *Completion, old *uint64, remote ibverbx.RemoteSegment, compare, swap uint64,
) error {
	e.peer.w.mu.Lock()
	err := e.atomicOp("compare swap", verbs.OpAtomicCmpAndSwp, comp, old, remote, compare, swap)
	e.peer.unlock()
	return err
}

func (e *Endpoint) atomicOp(name string, opcode verbs.Opcode, comp *Completion, old *uint64,
	remote ibverbx.RemoteSegment, compareAdd, swap uint64) error {
	p, w := e.peer, e.peer.w
	if err := e.usable(name); err != nil {
		return err
	}
	if err := e.tryAdmit(false, false); err != nil {
		return err
	}
	wr := &w.templates.atomic
	wr[0].Opcode, wr[0].Flags = opcode, verbs.SendSignaled
	wr[0].Local, wr[0].Remote = p.mem.cell(p.sending.ops.Tail), remote
	wr[0].CompareAdd, wr[0].Swap = compareAdd, swap
	kind := opFetchAdd
	if opcode == verbs.OpAtomicCmpAndSwp {
		kind = opCompareSwap
	}
	o, err := e.post(name, wr, kind, noBuffer, comp)
	if err != nil {
		return err
	}
	o.result = old
	p.sending.dirty = true
	w.stats.atomics++
	t := &p.sending.traffic
	t.sent, t.received = t.sent+8, t.received+8
	return nil
}
