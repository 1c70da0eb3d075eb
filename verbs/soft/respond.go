package soft

import (
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// respond is the responder's part in a request of q: it checks its side and collects the memory.
// ready is false when no receive is posted.
func (p *QP) respond(s *nic.SendSlot, x *transfer) (status verbs.Status, ready bool) {
	if status = p.core.Permits(s.Opcode); status != verbs.StatusSuccess {
		return status, true
	}
	if s.Opcode.IsSend() || s.Opcode.HasImm() {
		if p.core.RQ.Consumed == p.core.RQ.Posted {
			return 0, false
		}
		if s.Opcode.IsSend() {
			return p.core.Accept(&x.dst, s.Length), true
		}
	}
	memory := &x.dst
	if s.Answered() {
		memory = &x.src
	}
	return p.core.Target(memory, s.Opcode, s.RKey, s.RemoteAddr, s.Length), true
}

// receive consumes a receive of p for a message of q that has arrived, and raises its completion.
func (f *Fabric) receive(q, p *QP, s *nic.SendSlot) {
	if len(f.injections) != 0 {
		if i := f.strikeReceive(q, p); i != nil {
			// The requester's status says that the peer could not complete it.
			s.Status = verbs.StatusRemOpErr
			q.run.failed = true
			f.consumeFailed(p, i.fault.Status, i.fault.VendorErr)
			return
		}
	}
	seq, _ := p.core.RQ.Take()
	m := nic.Message{Opcode: s.Opcode, Length: s.Length, Imm: s.Imm, SrcQP: q.core.Num,
		Solicited: s.Flags&verbs.SendSolicited != 0}
	var e nic.Completion
	p.core.Received(&e, seq, &m)
	f.complete(p, &e, q.run.xfer.arrive)
}

// consumeFailed ends the next receive of p with an error, and takes p to ERR.
func (f *Fabric) consumeFailed(p *QP, status verbs.Status, vendorErr uint32) {
	seq, _ := p.core.RQ.Take()
	f.completeError(p, nic.Recv, seq, status, vendorErr)
	f.toError(p)
}
