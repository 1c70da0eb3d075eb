package ibverbx

import (
	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// takeLog empties the log of a rail that is being lost, and returns its outstanding work with
// everything needed to post it again. Nothing is recorded for this before a loss.
func (s *sender) takeLog(rl *rail) []failover.Entry {
	entries := rl.log.Take(rl.staged())
	for i := range entries {
		if e := &entries[i]; e.State != failover.EntryDone {
			s.describeEntry(e)
		}
	}
	return entries
}

// describeEntry finds out what an outstanding work request carries, from its id and the request.
func (s *sender) describeEntry(e *failover.Entry) {
	n, _ := s.resolve(e.ID)
	r := s.win.At(n)
	switch wrid.Kind(e.ID) {
	case wrid.Data:
		e.Offset, e.Size = s.fragment(r, r.index(wrid.Aux(e.ID)))
		e.Read, e.Atomic = r.opcode == verbs.OpRDMARead, r.plan == planAtomic
	case wrid.Numbered:
		e.Imm = wrid.Aux(e.ID)
		if limit := uint64(s.rails.maxFragment); !r.isMarker(e.Imm, limit) {
			e.Offset, e.Size = s.fragment(r, uint64(r.position(e.ID, limit)))
			e.Imm |= s.marks(r, e.Offset+uint64(e.Size))
		}
	}
}

// index returns a plain fragment's index in its request, of which the work-request id has the low
// bits. Outstanding fragments are near the newest.
func (r *sendReq) index(low uint32) uint64 {
	newest := uint64(r.fragments) - 1
	return newest - (newest-uint64(low))&wrid.AuxMask
}

// fragment returns where a fragment of a request begins, and its bytes.
func (s *sender) fragment(r *sendReq, index uint64) (offset uint64, size uint32) {
	limit := s.fragmentLimit(r)
	switch width := s.rails.data[0].maxSGE; {
	case r.plan == planAtomic:
		return 0, 8
	case r.scattered && r.length != 0:
		f := FailedError{Fragment: int(index)}
		r.cut(limit, width, &f)
		return f.RemoteAddr - r.remoteAddr, uint32(f.Length)
	}
	offset = index * limit
	return offset, uint32(min(limit, r.length-offset))
}

// marks returns the marks in the immediate of a numbered fragment that ends at offset end.
func (s *sender) marks(r *sendReq, end uint64) (marks uint32) {
	if end == r.length {
		marks = dqplb.Last
		if s.rawImm && r.imm != 0 {
			marks |= dqplb.Raw
		}
	}
	return marks
}

// acknowledge ends a work request of a lost rail that has been carried out.
func (s *sender) acknowledge(id uint64) {
	n, ok := s.resolve(id)
	if !ok || wrid.Kind(id) == wrid.Control {
		return
	}
	r := s.win.At(n)
	switch wrid.Kind(id) {
	case wrid.Final:
		r.final = finalDone
		s.sprayed = s.sprayed || r.plan != planNone
	case wrid.Numbered:
		r.left--
		s.numbers.Ack(wrid.Aux(id))
	default:
		r.left--
	}
}

// failAtomic ends an atomic whose answer is lost. Whether it was carried out cannot be known, so
// the request fails; the connection goes on.
func (s *sender) failAtomic(e *failover.Entry) {
	n, _ := s.resolve(e.ID)
	r := s.win.At(n)
	r.left--
	if r.status == verbs.StatusSuccess {
		r.status = verbs.StatusWRFlushErr
		if e.State == failover.EntryReturned {
			r.status = e.Status
		}
	}
}

// finishImm stages the user's immediate that is due after a fragment on a live rail, because
// nothing may come between the two. It reports false if there is no room.
func (s *sender) finishImm() bool {
	if s.next == s.win.Tail {
		return true
	}
	r := s.win.At(s.next)
	return !r.immDue || s.stageRawImm(s.next, r)
}

// lastBefore returns the last fragment of a request, which announces the user's immediate e.
func (s *sender) lastBefore(e *failover.Entry) failover.Entry {
	n, _ := s.resolve(e.ID)
	r := s.win.At(n)
	newest := uint64(r.firstNum) + uint64(r.fragments) + uint64(r.markers) - 1
	last := failover.Entry{ID: wrid.New(wrid.Numbered, 0, uint32(newest%dqplb.Mod), n)}
	s.describeEntry(&last)
	return last
}

// immOf returns the user's immediate that was due after the last fragment on a lost rail and had
// found no room; nil if there is none. From here on it counts as staged.
func (s *sender) immOf(rl *rail) *failover.Entry {
	if s.next == s.win.Tail {
		return nil
	}
	r := s.win.At(s.next)
	if !r.immDue || int(r.immRail) != rl.index() {
		return nil
	}
	r.immDue = false
	r.left++
	return &failover.Entry{ID: wrid.New(wrid.Imm, 0, 0, s.next)}
}

// stageAgain stages a lost rail's work request on another rail, which has room.
func (s *sender) stageAgain(rl *rail, e *failover.Entry) {
	n, _ := s.resolve(e.ID)
	r := s.win.At(n)
	if s.observer != nil {
		s.observer.reposted(s, rl, n, e.ID)
	}
	if wrid.Kind(e.ID) == wrid.Final || wrid.Kind(e.ID) == wrid.Message {
		wr := s.stageMessage(rl, r, wrid.New(wrid.Kind(e.ID), rl.idBits, 0, n))
		if r.opcode.IsSend() {
			s.fillMessage(rl, r, wr)
		} else {
			s.fillNotification(rl, r, wr)
		}
		return
	}
	id := wrid.New(wrid.Kind(e.ID), rl.idBits, wrid.Aux(e.ID), n)
	s.rails.takeData(rl)
	if s.rails.abilities != nil {
		rl.ability.Add(uint64(e.Size))
	}
	if rl.batch == nil {
		s.lendBatch(rl)
	}
	wr := rl.batch.add()
	wr.ID, wr.Flags, wr.RKey = id, verbs.SendSignaled, r.remoteKeys.at(rl.peerDev)
	wr.RemoteAddr = r.remoteAddr + e.Offset
	r.payload(rl, wr, e.Offset, e.Size)
	if e.IsMessage() {
		rl.log.PushMessage(id)
	} else {
		rl.log.Push(id)
	}
	rl.stats.bytes += uint64(e.Size)
	rl.stats.fragments++
	switch wrid.Kind(e.ID) {
	case wrid.Numbered:
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, dqplb.Swap(e.Imm)
		if e.Imm&dqplb.Last != 0 && r.solicited {
			wr.Flags |= verbs.SendSolicited
		}
		rl.dirty = false
	case wrid.Imm:
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, s.imms.turn(r.imm)
		wr.RemoteAddr = r.remoteAddr
		rl.batch.setSGL(wr, 0)
	default:
		wr.Opcode = r.fragmentOpcode()
		if r.plan == planAtomic {
			wr.CompareAdd, wr.Swap = r.ext.compareAdd, r.ext.swap
			s.rails.atomicRail = rl // later atomics stay behind it
		}
		rl.dirty = rl.dirty || wr.Opcode != verbs.OpRDMARead
	}
}
