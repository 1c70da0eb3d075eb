package nic

import "ibverbx/verbs"

// Pieces is the memory of a payload, in order, with the regions that contain it. To use it after
// unlocking, Hold it: MR.Close waits for Release. A Pieces that is reused allocates nothing once
// warm.
type Pieces struct {
	Bytes [][]byte
	mrs   []*MR
}

// Reset empties the list.
func (p *Pieces) Reset() { p.Bytes, p.mrs = p.Bytes[:0], p.mrs[:0] }

// Add appends memory that is in no region.
func (p *Pieces) Add(b []byte) { p.Bytes = append(p.Bytes, b) }

// add appends memory of a region, unless p is nil. With two statements each slice grows in place.
func (p *Pieces) add(m *MR, b []byte) {
	if p == nil {
		return
	}
	p.Bytes = append(p.Bytes, b)
	p.mrs = append(p.mrs, m)
}

// Hold keeps the regions from being deregistered. Call it locked.
func (p *Pieces) Hold() {
	for _, m := range p.mrs {
		m.holds++
	}
}

// Release undoes Hold, and empties the list. Call it locked, and then [Lock.WakeQuiet].
func (p *Pieces) Release() {
	for _, m := range p.mrs {
		m.holds--
	}
	clear(p.Bytes)
	clear(p.mrs)
	p.Reset()
}

// gather appends the pieces that sges name, up to limit bytes. It returns false if a key, range or
// access right does not cover a piece. Empty elements need no key.
func (p *Pieces) gather(pd *PD, sges []verbs.SGE, limit uint64, access verbs.AccessFlags) bool {
	keys := &pd.dev.Keys
	for i := range sges {
		e := &sges[i]
		n := min(uint64(e.Length), limit)
		if n == 0 {
			continue
		}
		m := keys.find(e.LKey)
		if m == nil {
			return false
		}
		// The region must cover the whole element, even the part that the message does not reach.
		b, ok := m.slice(pd, e.Addr, uint64(e.Length), access)
		if !ok {
			return false
		}
		p.add(m, b[:n])
		limit -= n
	}
	return true
}

// Local checks request seq on the requester's side, and collects the memory of its payload or, for
// a read or atomic, of the answer. A status other than success ends the request. With nil for p it
// only checks; so do Landing, Target and Accept.
func (q *QP) Local(p *Pieces, seq uint64) verbs.Status {
	s := q.SQ.At(seq)
	if s.Length > uint64(q.dev.Limits.MaxMsgSize) {
		return verbs.StatusLocLenErr
	}
	if s.Flags&verbs.SendInline != 0 {
		if p != nil && s.Length > 0 {
			p.Add(q.SQ.Inlined(seq))
		}
		return verbs.StatusSuccess
	}
	access := verbs.AccessFlags(0)
	if s.Answered() {
		if s.Opcode.IsAtomic() && s.Length != 8 {
			return verbs.StatusLocLenErr
		}
		if q.Attr.MaxRDAtomic == 0 {
			return verbs.StatusLocQPOpErr // the requester has no resources for reads and atomics
		}
		access = verbs.AccessLocalWrite
	}
	if !p.gather(q.PD, q.SQ.SGL(seq), s.Length, access) {
		return verbs.StatusLocProtErr
	}
	return verbs.StatusSuccess
}

// Landing collects the memory for the answer to request seq, when it arrives: the region may have
// been closed since Local.
func (q *QP) Landing(p *Pieces, seq uint64) verbs.Status {
	if !p.gather(q.PD, q.SQ.SGL(seq), q.SQ.At(seq).Length, verbs.AccessLocalWrite) {
		return verbs.StatusLocProtErr
	}
	return verbs.StatusSuccess
}

// Need returns the right that an operation of the peer requires.
func Need(op verbs.Opcode) verbs.AccessFlags {
	switch op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		return verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		return verbs.AccessRemoteRead
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAdd:
		return verbs.AccessRemoteAtomic
	}
	return 0
}

// Permits is the first of the responder's checks: whether the queue pair allows its peer the
// operation. All of them return the status that the requester sees. Their order (Permits, a receive
// if one is taken, then Target or Accept) is that of the kernel's rdma_rxe.
//
// What the queue pair does not allow is an invalid request; what the region does not allow is an
// access error.
func (q *QP) Permits(op verbs.Opcode) verbs.Status {
	right := Need(op)
	if q.Attr.Access&right != right {
		return verbs.StatusRemInvReqErr
	}
	if q.Attr.MaxDestRDAtomic == 0 && (op == verbs.OpRDMARead || op.IsAtomic()) {
		return verbs.StatusRemInvReqErr
	}
	return verbs.StatusSuccess
}

// Target collects the memory of this side that an RDMA operation or atomic of the peer names.
func (q *QP) Target(p *Pieces, op verbs.Opcode, rkey uint32, addr, n uint64) verbs.Status {
	if n == 0 {
		return verbs.StatusSuccess // no bytes, no key
	}
	if addr%8 != 0 && op.IsAtomic() {
		return verbs.StatusRemInvReqErr
	}
	m := q.dev.Keys.findRemote(rkey)
	if m == nil {
		return verbs.StatusRemAccessErr
	}
	b, ok := m.slice(q.PD, addr, n, Need(op))
	// The address of an atomic is aligned, but the memory must be, too: a region may be known by an
	// address that is not that of its memory.
	if !ok || op.IsAtomic() && Word64(b) == nil {
		return verbs.StatusRemAccessErr
	}
	p.add(m, b)
	return verbs.StatusSuccess
}

// Accept collects the memory of the next receive, which must exist, for a message of n bytes. It
// does not take the receive.
func (q *QP) Accept(p *Pieces, n uint64) verbs.Status {
	seq := q.RQ.Consumed
	if n > q.RQ.At(seq).Length {
		return verbs.StatusRemInvReqErr
	}
	if !p.gather(q.PD, q.RQ.SGL(seq), n, verbs.AccessLocalWrite) {
		return verbs.StatusRemOpErr
	}
	return verbs.StatusSuccess
}
