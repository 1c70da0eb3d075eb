package sim

import (
	"ibverbx/verbs"
)

// This file has peers that break the rules. Their own connection may fail. The other end must still
// keep its promises to its program, and no other connection may be affected.

// breakRules sends forbidden messages from an end, past the library: wrong, old and far-away
// numbers, more messages than there are credits, SENDs where receives are credits. Or it alters the
// end's own messages.
func (w *world) breakRules(e *end) {
	if e.state != connected || e.single {
		return
	}
	q := e.anyWire()
	e.conn.turnHostile("an end breaks the rules")
	e.stale = true
	if w.Rng.IntN(3) == 0 {
		w.Logf("  what %v sends on %v is altered", e, q)
		flip := uint32(1) << w.Rng.IntN(32)
		match := func(wr *verbs.SendWR) bool { return wr.Opcode.HasImm() }
		if e.over && w.OneIn(2) { // a false count of what has arrived
			flip = 1 << w.Rng.IntN(16)
			match = func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSendWithImm && wr.Bytes() == 0 }
		}
		w.Alter(&e.conn.Conn, &q.QP, match, flip)
		return
	}
	for range w.Pick(1, 1, 2, 10, 40) {
		wr := verbs.SendWR{ID: w.Rng.Uint64() | 0xf<<60, Opcode: verbs.OpRDMAWriteWithImm,
			Flags: verbs.SendSignaled, Imm: w.forgedImmediate(e)}
		if w.Rng.IntN(5) == 0 {
			wr.Opcode = verbs.OpSend
		}
		n, err := q.QP.PostSend([]verbs.SendWR{wr})
		w.Logf("  %v forges on %v: %v, imm %#x: %d, %v", e, q, wr.Opcode, wr.Imm, n, err)
	}
}

func (w *world) forgedImmediate(e *end) uint32 {
	sent := uint32(e.used) + e.conn.plan.cfg[e.index%2].Testing.FirstNumber
	flags := uint32(w.Pick(0, bitLast, bitLast, bitRaw, bitLast|bitRaw, 1<<27))
	switch w.Rng.IntN(5) {
	case 0:
		return w.Rng.Uint32()
	case 1:
		return immediate(sent, flags) // the next
	case 2:
		return immediate(sent+numberModulo-1-uint32(w.Rng.IntN(3)), flags) // a used one
	case 3:
		return immediate(sent+1+uint32(w.Rng.IntN(1<<19)), flags) // a later one, or one far away
	}
	return immediate(0, flags) | 0xffffff00 // 0xffffff, on the wire
}

// replay makes completions appear that belong to no request: of an earlier session, of a queue pair
// that does not exist, or with an id that was never used. Single queue pairs are exempt, because
// they track nothing.
func (w *world) replay(e *end) {
	if e.cq.closed || e.single {
		return
	}
	t := e.cq.taps[w.Rng.IntN(len(e.cq.taps))]
	for _, q := range e.wires {
		if q.NIC == t.NIC && (e.state == closed || e.state == unconnected) {
			t.stale = append(t.stale, q.last...)
			w.Logf("  %v sees %d completions of %v again", e, len(q.last), q)
			q.last = nil
		}
	}
	e.stale = true
	t.stale = append(t.stale, verbs.WC{ID: w.Rng.Uint64(), Status: w.DrawStatus(), QPNum: 1 << 20})
	if q := w.wires[wireAt{t.NIC, e.wires[0].Num()}]; q != nil && !q.end.single {
		q.end.stale = true
		// no kind of the library's requests has this id
		t.stale = append(t.stale, verbs.WC{ID: w.Rng.Uint64() >> 4, Status: w.DrawStatus(), QPNum: q.Num(),
			Opcode: verbs.WCRecv})
	}
}
