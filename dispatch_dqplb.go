package ibverbx

import (
	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// dispatchNumbered hands out the fragments of a WRITE_WITH_IMM in DQPLB. Each is itself a
// WRITE_WITH_IMM with a number; bit 31 marks the last one. Before the last, every other rail that
// carried plain data gets a marker, so that the receiver, who counts numbers in order, cannot take
// the request for complete before that data has arrived.
func (s *sender) dispatchNumbered(n uint64, r *sendReq) bool {
	for r.moreData() {
		if !s.numbers.Room() {
			return false
		}
		rl := s.pick(r)
		if rl == nil {
			return false
		}
		// The last fragment must know that it is the last before it gets its number. A scatter list
		// may cut it short; it then turns out not to be, and the markers before it were merely
		// early.
		if r.length-r.offset <= uint64(s.rails.maxFragment) {
			if !s.stageMarkers(n, r, rl) || !s.numbers.Room() {
				return false
			}
		}
		s.stageNumbered(rl, n, r)
	}
	return !r.immDue || s.stageRawImm(n, r)
}

// stageNumbered stages the next fragment with the next number.
func (s *sender) stageNumbered(rl *rail, n uint64, r *sendReq) {
	num := s.number(r)
	wr := s.stageFragment(rl, r, verbs.OpRDMAWriteWithImm, wrid.New(wrid.Numbered, rl.idBits, num, n),
		uint64(s.rails.maxFragment))
	imm := num
	if r.offset == r.length {
		imm |= dqplb.Last
		if r.solicited {
			wr.Flags |= verbs.SendSolicited
		}
		if s.rawImm && r.imm != 0 {
			imm |= dqplb.Raw
			r.immDue, r.immRail = true, uint8(rl.index())
		}
	}
	wr.Imm = dqplb.Swap(imm)
	rl.dirty = false
	rl.log.CountMessage() // stageFragment has logged it
}

func (s *sender) number(r *sendReq) uint32 {
	num := s.numbers.Next()
	if r.fragments == 0 && r.markers == 0 {
		r.firstNum = num
	}
	return num
}

// stageMarkers stages a zero-byte numbered message on every rail but one that carried plain data
// since its last numbered message. It reports false when a rail has no room; it goes on from there
// when called again.
func (s *sender) stageMarkers(n uint64, r *sendReq, last *rail) bool {
	for _, rl := range s.rails.data {
		if !rl.dirty || rl == last {
			continue
		}
		if !rl.hasRoom() || !s.numbers.Room() {
			return false
		}
		num := s.number(r)
		wr := s.stage(rl, r, verbs.OpRDMAWriteWithImm, wrid.New(wrid.Numbered, rl.idBits, num, n))
		wr.RemoteAddr = r.remoteAddr
		wr.Imm = dqplb.Swap(num)
		rl.batch.setSGL(wr, 0)
		rl.dirty = false
		if r.markers == 0 && r.scattered {
			r.ext.markersAt = r.fragments
		}
		r.markers++
		s.markers++
	}
	return true
}

// stageRawImm stages the user's immediate, as a message of its own right behind the last fragment:
// same queue pair, so the order is certain. It reports false when the rail has no room. Nothing
// else is staged on the data rails until it is out.
func (s *sender) stageRawImm(n uint64, r *sendReq) bool {
	rl := s.rails.data[r.immRail]
	if !rl.hasRoom() {
		return false
	}
	wr := s.stage(rl, r, verbs.OpRDMAWriteWithImm, wrid.New(wrid.Imm, rl.idBits, 0, n))
	wr.RemoteAddr = r.remoteAddr
	wr.Imm = r.imm
	rl.batch.setSGL(wr, 0)
	r.immDue = false
	return true
}
