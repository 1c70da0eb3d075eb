package soft

import (
	"slices"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// This file simulates delays in a network and a host: messages that arrive after their sender saw
// them fail, and data that reaches memory only after its acknowledgement.

// late holds what has yet to reach a queue pair as the responder. Both lists are in the order of
// sending.
type late struct {
	stragglers []straggler
	placements []placement
}

// straggler is a message still in flight to a queue pair after its sender has given up on it.
type straggler struct {
	id     uint64 // ID of the work request, for the reader of a trace
	msg    nic.Message
	data   []byte // payload of a SEND or write
	rkey   uint32
	addr   uint64
	change [2]uint64 // atomic: the value to add or compare with, and the value to swap in
	psn    uint32
	due    int64
}

// placement is the data of a write that was acknowledged but is not in memory yet. The regions of
// that memory are held.
type placement struct {
	id   uint64
	to   nic.Pieces
	data []byte
	due  int64
}

// strand fails the head request of q, and sends it to the peer late, together with the requests
// after it that the fault also matches.
func (f *Fabric) strand(q *QP, i *Injection) {
	p := q.reach()
	due := f.engine.after(i.fault.Delay)
	for seq := q.core.SQ.Executed; p != nil && seq != q.core.SQ.Posted && i.matches(q, seq); seq++ {
		s := q.core.SQ.At(seq)
		m := straggler{id: s.ID, rkey: s.RKey, addr: s.RemoteAddr, change: [2]uint64{s.CompareAdd, s.Swap},
			msg: nic.Message{Opcode: s.Opcode, Length: s.Length, Imm: s.Imm, SrcQP: q.core.Num,
				Solicited: s.Flags&verbs.SendSolicited != 0},
			psn: (q.sendPSN + uint32(seq-q.core.SQ.Executed)) & nic.PSNMask, due: due}
		var from nic.Pieces
		if q.core.Local(&from, seq) != verbs.StatusSuccess {
			break
		}
		if !s.Answered() {
			m.data = slices.Concat(from.Bytes...)
		}
		p.late.stragglers = append(p.late.stragglers, m)
	}
	f.fail(q, i.fault.Status, i.fault.VendorErr)
	if p != nil {
		f.engine.awaitLate(p)
	}
}

// arriveLate lets p's first straggler arrive. If p cannot take it, it is lost, and so are all later
// ones: their packet sequence numbers no longer fit, and they are not sent again.
func (f *Fabric) arriveLate(p *QP) {
	m := p.late.stragglers[0]
	p.late.stragglers = p.late.stragglers[1:]
	status := p.core.Permits(m.msg.Opcode)
	takes := m.msg.Opcode.IsSend() || m.msg.Opcode.HasImm()
	if !p.dev.up() || m.psn != p.recvPSN || status == verbs.StatusSuccess && takes && p.core.RQ.Empty() {
		return
	}
	var to nic.Pieces
	switch {
	case status != verbs.StatusSuccess:
	case m.msg.Opcode.IsSend():
		status = p.core.Accept(&to, m.msg.Length)
	default:
		status = p.core.Target(&to, m.msg.Opcode, m.rkey, m.addr, m.msg.Length)
	}
	if status != verbs.StatusSuccess {
		f.refused(p, m.msg.Opcode, status)
		return
	}
	p.recvPSN = (p.recvPSN + 1) & nic.PSNMask
	f.placeAll(p)
	switch {
	case m.msg.Opcode.IsAtomic():
		nic.FetchAndChange(m.msg.Opcode, m.change[0], m.change[1], to.Bytes[0])
	default: // a read has no data
		spread(&to, m.data)
	}
	if takes {
		f.consume(p, &m.msg, 0)
	}
}

// postpone delays the payload of q's head request, a write that p has checked, on its way into p's
// memory: because of a fault, or because it must not overtake earlier writes that are delayed.
func (f *Fabric) postpone(q, p *QP, s *nic.SendSlot) {
	d := placement{id: s.ID, data: slices.Concat(q.run.xfer.src.Bytes...)}
	if i := q.run.fault; i != nil && i.fault.Kind == PlaceLate {
		d.due = f.engine.after(i.fault.Delay)
	} // otherwise it is due with the earlier ones
	_ = p.core.Target(&d.to, s.Opcode, s.RKey, s.RemoteAddr, s.Length) // cannot fail: it was checked before
	d.to.Hold()
	p.late.placements = append(p.late.placements, d)
	f.engine.awaitLate(p)
}

// placeNext places the first write of p that is not in memory yet.
func (f *Fabric) placeNext(p *QP) {
	d := &p.late.placements[0]
	spread(&d.to, d.data)
	d.to.Release()
	if p.late.placements = p.late.placements[1:]; len(p.late.placements) == 0 {
		p.late.placements = nil
	}
}

// placeAll places all writes of p that are not in memory yet, so that later messages from the peer,
// and the flush of p, find them there (IBTA o9-20).
func (f *Fabric) placeAll(p *QP) {
	if len(p.late.placements) == 0 {
		return
	}
	for len(p.late.placements) > 0 {
		f.placeNext(p)
	}
	f.mu.WakeQuiet() // regions are released
}

// placeEverything places all late writes of a NIC, before one of its regions is deregistered.
func (f *Fabric) placeEverything(d *Device) {
	for _, q := range d.qps.All {
		f.placeAll(q)
	}
}

// spread copies a payload into its pieces of memory.
func spread(to *nic.Pieces, data []byte) {
	var x transfer
	x.src.Add(data)
	x.dst.Bytes = to.Bytes
	x.copy()
}
