package soft

import (
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

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
	f.consume(p, &nic.Message{Opcode: s.Opcode, Length: s.Length, Imm: s.Imm, SrcQP: q.core.Num,
		Solicited: s.Flags&verbs.SendSolicited != 0}, q.run.xfer.arrive)
}

// consume ends the next receive of p with a message, which is there when it is due.
func (f *Fabric) consume(p *QP, m *nic.Message, due int64) {
	seq, _ := p.core.RQ.Take()
	if e := f.addCompletion(p, nic.Recv, seq, m.Solicited, due); e != nil {
		p.core.Received(e, seq, m)
	}
}

// consumeFailed ends the next receive of p with an error, and takes p to ERR.
func (f *Fabric) consumeFailed(p *QP, status verbs.Status, vendorErr uint32) {
	seq, _ := p.core.RQ.Take()
	f.completeError(p, nic.Recv, seq, status, vendorErr)
	f.toError(p)
}
