package soft

import "ibverbx/verbs"

// respond is the responder's part in a request of q: it checks its side and collects the memory.
// ready is false when no receive is posted. The order of the checks is that of the kernel's
// rdma_rxe.
func (p *QP) respond(s *sendSlot, x *transfer) (status verbs.Status, ready bool) {
	var need verbs.AccessFlags
	switch s.opcode {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAdd:
		need = verbs.AccessRemoteAtomic
	}
	// What the queue pair does not allow is an invalid request; what the region does not allow is
	// an access error.
	if p.attr.Access&need != need {
		return verbs.StatusRemInvReqErr, true
	}
	if s.answered() && p.attr.MaxDestRDAtomic == 0 {
		return verbs.StatusRemInvReqErr, true
	}
	if s.opcode.IsSend() || s.opcode.HasImm() {
		if p.rq.consumed == p.rq.posted {
			return 0, false
		}
		if s.opcode.IsSend() {
			return p.respondSend(s, x), true
		}
	}
	if s.length == 0 {
		return verbs.StatusSuccess, true // no bytes, no key
	}
	if s.opcode.IsAtomic() && s.remoteAddr%8 != 0 {
		return verbs.StatusRemInvReqErr, true
	}
	m := p.dev.keys.findRemote(s.rkey)
	if m == nil {
		return verbs.StatusRemAccessErr, true
	}
	b, ok := m.slice(p.pd, s.remoteAddr, s.length, need)
	if !ok {
		return verbs.StatusRemAccessErr, true
	}
	x.mrs = append(x.mrs, m)
	if s.answered() {
		x.src = append(x.src, b)
	} else {
		x.dst = append(x.dst, b)
	}
	return verbs.StatusSuccess, true
}

// respondSend collects the memory of the receive that a send goes to.
func (p *QP) respondSend(s *sendSlot, x *transfer) verbs.Status {
	seq := p.rq.consumed
	if s.length > p.rq.at(seq).length {
		return verbs.StatusRemInvReqErr
	}
	var ok bool
	if x.dst, ok = x.gather(x.dst, p.pd, p.rq.sgl(seq), s.length, verbs.AccessLocalWrite); !ok {
		return verbs.StatusRemOpErr
	}
	return verbs.StatusSuccess
}

// receive consumes a receive of p for a message of q that has arrived, and raises its completion.
func (f *Fabric) receive(q, p *QP, s *sendSlot) {
	if len(f.injections) != 0 {
		if i := f.strikeReceive(q, p); i != nil {
			// The requester's status says that the peer could not complete it.
			s.status = verbs.StatusRemOpErr
			q.run.failed = true
			f.consumeFailed(p, i.fault.Status, i.fault.VendorErr)
			return
		}
	}
	seq := p.rq.consumed
	p.rq.consumed++
	e := cqe{qp: p, seq: seq, dir: dirRecv, solicited: s.flags&verbs.SendSolicited != 0,
		due: q.run.xfer.arrive}
	e.wc = verbs.WC{
		ID:      p.rq.at(seq).id,
		Opcode:  verbs.WCRecv,
		ByteLen: uint32(s.length),
		QPNum:   p.num,
		SrcQP:   q.num,
	}
	if !s.opcode.IsSend() {
		e.wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if s.opcode.HasImm() {
		e.wc.Flags = verbs.WCWithImm
		e.wc.Imm = s.imm
	}
	f.complete(&e)
}

// consumeFailed ends the next receive of p with an error, and takes p to ERR.
func (f *Fabric) consumeFailed(p *QP, status verbs.Status, vendorErr uint32) {
	seq := p.rq.consumed
	p.rq.consumed++
	f.completeError(p, dirRecv, seq, p.rq.at(seq).id, status, vendorErr)
	f.toError(p)
}
