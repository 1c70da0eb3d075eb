package ibverbx

import (
	"ibverbx/verbs"
)

// dispatchNumbered hands out the fragments of a WRITE_WITH_IMM in DQPLB. Each is itself a
// WRITE_WITH_IMM with a number; bit 31 marks the last one. Before the last, every other rail that
// carried plain data gets a marker, so that the receiver, who counts numbers in order, cannot take
// the request for complete before that data has arrived.
func (q *VirtualQP) dispatchNumbered(n uint64, r *sendReq) bool {
	for r.offset < r.length {
		if !q.numbers.room() {
			return false
		}
		rl := q.pickRail()
		if rl == nil {
			return false
		}
		// The last fragment must know that it is the last before it gets its number. A scatter list
		// may cut it short; it then turns out not to be, and the markers before it were merely
		// early.
		if r.length-r.offset <= uint64(q.cfg.MaxMsgSize) {
			if !q.stageMarkers(n, r, rl) || !q.numbers.room() {
				return false
			}
		}
		q.stageNumbered(rl, n, r)
	}
	return !r.owesImm || q.stageRawImm(n, r)
}

// stageNumbered stages the next fragment with the next number.
func (q *VirtualQP) stageNumbered(rl *rail, n uint64, r *sendReq) {
	num := q.number(r)
	wr := q.stageFragment(rl, r, verbs.OpRDMAWriteWithImm, wrid(kindNumbered, rl.idBits, num, n),
		uint64(q.cfg.MaxMsgSize))
	imm := num
	if r.offset == r.length {
		imm |= immLast
		if r.solicited {
			wr.Flags |= verbs.SendSolicited
		}
		if q.rawImm && r.imm != 0 {
			imm |= immRaw
			r.owesImm, r.immRail = true, uint8(rl.index())
		}
	}
	wr.Imm = seqImm(imm)
	rl.dirty = false
}

func (q *VirtualQP) number(r *sendReq) uint32 {
	num := q.numbers.next()
	if r.fragments == 0 && r.markers == 0 {
		r.firstNum = num
	}
	return num
}

// stageMarkers stages a zero-byte numbered message on every rail but one that carried plain data
// since its last numbered message. It reports false when a rail has no room; it goes on from there
// when called again.
func (q *VirtualQP) stageMarkers(n uint64, r *sendReq, last *rail) bool {
	for _, rl := range q.rails {
		if !rl.dirty || rl == last {
			continue
		}
		if !rl.hasRoom() || !q.numbers.room() {
			return false
		}
		num := q.number(r)
		wr := q.stage(rl, r, verbs.OpRDMAWriteWithImm, wrid(kindNumbered, rl.idBits, num, n))
		wr.RemoteAddr = r.remoteAddr
		wr.Imm = seqImm(num)
		rl.batch.setSGL(wr, 0)
		rl.dirty = false
		if r.markers == 0 && r.scattered {
			r.ext.markersAt = r.fragments
		}
		r.markers++
		q.counters.markers++
	}
	return true
}

// stageRawImm stages the user's immediate, as a message of its own right behind the last fragment:
// same queue pair, so the order is certain. It reports false when the rail has no room. Nothing
// else is staged on the data rails until it is out.
func (q *VirtualQP) stageRawImm(n uint64, r *sendReq) bool {
	rl := q.rails[r.immRail]
	if !rl.hasRoom() {
		return false
	}
	wr := q.stage(rl, r, verbs.OpRDMAWriteWithImm, wrid(kindImm, rl.idBits, 0, n))
	wr.RemoteAddr = r.remoteAddr
	wr.Imm = r.imm
	rl.batch.setSGL(wr, 0)
	r.owesImm = false
	return true
}
