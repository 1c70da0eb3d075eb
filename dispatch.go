package ibverbx

import (
	"slices"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// dispatch stages the data of waiting requests on the rails, in posting order, as far as the rails
// have room, and then the final messages that have come due. post hands over the staged work.
func (s *sender) dispatch() {
	for s.next != s.win.Tail {
		r := s.win.At(s.next)
		if !s.dispatchData(s.next, r) {
			break
		}
		s.next++
	}
	if s.finals != 0 { // the data stage of those without data, such as SENDs, is over at once
		s.dispatchDue()
	}
}

// dispatchDue stages only the final messages that have come due: after a failure, the requests
// before the one that stopped the line still get theirs.
func (s *sender) dispatchDue() {
	s.advanceDataDone()
	if s.finals != 0 && s.finalsPosted < s.dataDone {
		s.dispatchFinals()
	}
}

// dispatchData hands out the data of request n. It reports false when some of it must wait.
func (s *sender) dispatchData(n uint64, r *sendReq) bool {
	if r.fence {
		if s.advanceDataDone(); s.dataDone != n {
			return false
		}
	}
	done := true
	switch r.plan {
	case planFragments:
		done = s.dispatchFragments(n, r)
	case planNumbered:
		done = s.dispatchNumbered(n, r)
	case planAtomic:
		done = s.dispatchAtomic(n, r)
	case planEvery:
		done = s.dispatchEvery(n, r)
	case planMessage:
		done = s.dispatchMessage(n, r)
	}
	r.dispatched = done
	return done
}

// dispatchFragments hands out the plain fragments of a request.
func (s *sender) dispatchFragments(n uint64, r *sendReq) bool {
	op := r.fragmentOpcode()
	if op != r.opcode && r.length == 0 {
		return true // it has only the notification
	}
	for {
		if s.logs && r.fragments&(fragmentSpan-1) == 0 && r.left != 0 {
			return false // their ids would be ambiguous: see sendReq.index
		}
		var rl *rail // pick, without the call (16 fragments: 3 %)
		if s.rails.abilities == nil {
			rl = s.rails.pick()
		} else {
			rl = s.rails.pickAble(min(uint64(s.rails.maxFragment), r.length-r.offset))
		}
		if rl == nil {
			return false
		}
		s.stageFragment(rl, r, op, wrid.New(wrid.Data, rl.idBits, r.fragments&wrid.AuxMask, n),
			uint64(s.rails.maxFragment))
		if r.offset == r.length {
			return true
		}
	}
}

// fragmentSpan is how far apart the outstanding fragments of a request may be while failover is in
// force: less than the 2^24 that a work-request id distinguishes. It is a power of two.
const fragmentSpan = 1 << 23

// pick chooses the rail for the next fragment of a request.
func (s *sender) pick(r *sendReq) *rail {
	if s.rails.abilities == nil {
		return s.rails.pick()
	}
	return s.rails.pickAble(min(uint64(s.rails.maxFragment), r.length-r.offset))
}

// dispatchEvery hands out one fragment to each data rail. It does not use round robin, which skips
// full rails.
func (s *sender) dispatchEvery(n uint64, r *sendReq) bool {
	for int(r.fragments) < len(s.rails.data) {
		rl := s.rails.data[r.fragments]
		if rl.down {
			rl = s.rails.firstLive(failover.Data)
		}
		if !rl.hasRoom() {
			return false
		}
		s.stageFragment(rl, r, r.opcode, wrid.New(wrid.Data, rl.idBits, r.fragments, n), s.fragmentLimit(r))
	}
	return true
}

// fragmentLimit returns the length in bytes of a request's fragments, except the last.
func (s *sender) fragmentLimit(r *sendReq) uint64 {
	if r.plan == planEvery {
		return r.length / uint64(len(s.rails.data))
	}
	return uint64(s.rails.maxFragment)
}

// dispatchMessage hands out a relaxed SEND. One rail takes them all, so they stay in order.
func (s *sender) dispatchMessage(n uint64, r *sendReq) bool {
	if s.finals != 0 {
		// A final message that has come due goes first: relaxed SENDs that keep the rail full would
		// hold it up forever.
		if s.advanceDataDone(); s.finalsPosted < s.dataDone {
			s.dispatchFinals()
		}
	}
	rl := s.rails.sendRail
	if !rl.hasRoom() {
		return false
	}
	wr := s.stageMessage(rl, r, wrid.New(wrid.Message, rl.idBits, 0, n))
	s.fillMessage(rl, r, wr)
	r.left++
	return true
}

// dispatchAtomic hands out an atomic, always on the first rail: NICs guarantee atomicity only per
// device, so atomics on one address must use one device.
func (s *sender) dispatchAtomic(n uint64, r *sendReq) bool {
	rl := s.rails.atomicRail
	if rl.down {
		rl = s.rails.nextForAtomics()
		s.rails.atomicRail = rl // for good: atomics are outstanding there when the other returns
	}
	if !rl.hasRoom() {
		return false
	}
	wr := s.stageFragment(rl, r, r.opcode, wrid.New(wrid.Data, rl.idBits, 0, n), 8)
	wr.CompareAdd, wr.Swap = r.ext.compareAdd, r.ext.swap
	return true
}

// stageFragment stages the next piece of a request's data, at most limit bytes, on a rail that has
// room.
func (s *sender) stageFragment(rl *rail, r *sendReq, op verbs.Opcode, id, limit uint64) *verbs.SendWR {
	s.rails.takeData(rl)
	r.left++
	if op != verbs.OpRDMARead { // a read leaves no data there that needs a marker
		rl.dirty = true
	}
	if rl.batch == nil {
		s.lendBatch(rl)
	}
	b := rl.batch
	wr := b.add() // stage, without the call
	wr.ID, wr.Opcode, wr.Flags, wr.RKey = id, op, verbs.SendSignaled, r.remoteKeys.at(rl.peerDev)
	size := min(limit, r.length-r.offset)
	switch {
	case r.scattered || r.inline:
		size = r.gather(rl, wr, size)
	case size == 0:
		b.setSGL(wr, 0)
	default:
		sgl := b.setSGL(wr, 1)
		sgl[0] = verbs.SGE{Addr: r.localAddr + r.offset, Length: uint32(size),
			LKey: r.localKeys.at(rl.device)}
	}
	wr.RemoteAddr = r.remoteAddr + r.offset
	if s.logs {
		rl.log.Push(id)
	}
	r.offset += size
	r.fragments++
	rl.stats.bytes += size
	rl.stats.fragments++
	if s.rails.abilities != nil {
		rl.ability.Add(size)
	}
	return wr
}

// stage opens a work request of the data stage, still without data, on a rail that has room.
func (s *sender) stage(rl *rail, r *sendReq, op verbs.Opcode, id uint64) *verbs.SendWR {
	s.rails.take(rl)
	r.left++
	if rl.batch == nil {
		s.lendBatch(rl)
	}
	wr := rl.batch.add()
	wr.ID = id
	wr.Opcode = op
	wr.Flags = verbs.SendSignaled
	wr.RKey = r.remoteKeys.at(rl.peerDev)
	if s.logs {
		rl.log.PushMessage(id)
	}
	return wr
}

// dispatchFinals stages the final messages of requests whose data, and all earlier data, is
// acknowledged. Several may be on the way at a time: each waits for earlier data, not for earlier
// notifications.
func (s *sender) dispatchFinals() {
	for s.finalsPosted != s.dataDone {
		r := s.win.At(s.finalsPosted)
		if r.final == finalDue && !s.stageFinal(s.finalsPosted, r) {
			return
		}
		s.finalsPosted++
	}
}

// stageFinal stages a request's final message. It reports false when the rail has no room.
func (s *sender) stageFinal(n uint64, r *sendReq) bool {
	rl := s.carrier(r)
	if !rl.hasRoom() {
		return false
	}
	wr := s.stageMessage(rl, r, wrid.New(wrid.Final, rl.idBits, 0, n))
	if r.plan == planNone {
		s.fillMessage(rl, r, wr)
	} else {
		s.fillNotification(rl, r, wr)
	}
	r.final = finalPosted
	return true
}

// fillNotification turns a work request that stageMessage has opened into Spray's notification of
// r.
func (s *sender) fillNotification(rl *rail, r *sendReq, wr *verbs.SendWR) {
	wr.Opcode = verbs.OpRDMAWriteWithImm
	wr.RemoteAddr, wr.RKey = r.remoteAddr, r.remoteKeys.at(rl.peerDev)
	rl.batch.setSGL(wr, 0)
}

// carrier returns the rail that carries a request's final message.
func (s *sender) carrier(r *sendReq) *rail {
	if r.plan == planNone {
		return s.rails.sendRail
	}
	return s.rails.finalRail
}

// stageMessage opens a SEND or a notification of Spray on a rail that has room.
func (s *sender) stageMessage(rl *rail, r *sendReq, id uint64) *verbs.SendWR {
	s.rails.take(rl)
	if rl.batch == nil {
		s.lendBatch(rl)
	}
	wr := rl.batch.add()
	wr.ID = id
	wr.Flags = verbs.SendSignaled
	if r.solicited {
		wr.Flags |= verbs.SendSolicited
	}
	wr.Imm = s.imms.turn(r.imm)
	rl.stats.messages++
	if s.logs {
		rl.log.PushMessage(id)
	}
	return wr
}

// fillMessage turns a work request that stageMessage has opened into a SEND with the whole payload
// of r.
func (s *sender) fillMessage(rl *rail, r *sendReq, wr *verbs.SendWR) {
	wr.Opcode, wr.RemoteAddr, wr.RKey = r.opcode, 0, 0
	switch {
	case r.length == 0:
		rl.batch.setSGL(wr, 0)
	case r.scattered || r.inline:
		r.gather(rl, wr, r.length)
	default:
		sgl := rl.batch.setSGL(wr, 1)
		sgl[0] = verbs.SGE{Addr: r.localAddr, Length: uint32(r.length), LKey: r.localKeys.at(rl.device)}
	}
	rl.stats.bytes += r.length
}

// lendBatch gives a batch to a rail that has nothing staged, and lists the rail for post. Checking
// every rail instead would cost a cache miss each, which matters with a hundred virtual queue
// pairs.
//
//go:noinline
func (s *sender) lendBatch(rl *rail) {
	rl.batch = s.batches.lend()
	s.staged = append(s.staged, rl)
}

// post posts the batches. Batches that are refused for now stay listed, and blocked is set. It
// stops at a refusal for any other reason, which ends the first request of that rail's batch.
func (s *sender) post() (refused *rail, err error) {
	s.blocked = false
	for _, rl := range s.staged {
		b := rl.batch
		if b.tail != 0 {
			n, err := rl.qp.PostSend(b.wrs[b.head:b.tail])
			b.posted(n)
			if err != nil || b.tail != 0 {
				rl.stats.refused++
				if err != nil && !verbs.IsTransient(err) {
					s.unlistPosted()
					return rl, err
				}
				s.blocked = true
				continue
			}
		}
		s.batches.giveBack(b)
		rl.batch = nil
	}
	if s.blocked {
		s.unlistPosted()
	} else {
		s.staged = s.staged[:0]
	}
	return nil, nil
}

// postObserved is post with an observer. It sees what was posted by what is gone from the batches,
// so that post itself need not ask whether there is one (a request at a time: 4 ns).
func (s *sender) postObserved() (refused *rail, err error) {
	s.observer.staged(s)
	refused, err = s.post()
	s.observer.posted(s)
	return refused, err
}

// unlistPosted removes rails that have given their batches back from staged.
func (s *sender) unlistPosted() {
	s.staged = slices.DeleteFunc(s.staged, func(rl *rail) bool { return rl.batch == nil })
}

// dispatchNumbered hands out the fragments of a WRITE_WITH_IMM in DQPLB. Each is itself a
// WRITE_WITH_IMM with a number; bit 31 marks the last one. Before the last, every other rail that
// carried plain data gets a marker, so that the receiver, which counts numbers in order, cannot
// consider the request complete before that data has arrived.
func (s *sender) dispatchNumbered(n uint64, r *sendReq) bool {
	for r.moreData() {
		if !s.numbers.Room() {
			return false
		}
		rl := s.pick(r)
		if rl == nil {
			return false
		}
		// Whether a fragment is the last must be known before it gets its number. If a scatter list
		// cuts it short, it is not the last after all, and the markers before it were merely early.
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
// since its last numbered message. It reports false when a rail has no room; the next call
// continues there.
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

// stageRawImm stages the user's immediate, as a separate message directly behind the last fragment,
// on the same queue pair, so the order is certain. It reports false when the rail has no room.
// Nothing else is staged on the data rails until the immediate is.
func (s *sender) stageRawImm(n uint64, r *sendReq) bool {
	rl := s.rails.data[r.immRail]
	if !rl.hasRoom() {
		return false
	}
	wr := s.stage(rl, r, verbs.OpRDMAWriteWithImm, wrid.New(wrid.Imm, rl.idBits, 0, n))
	wr.RemoteAddr = r.remoteAddr
	wr.Imm = s.imms.turn(r.imm)
	rl.batch.setSGL(wr, 0)
	r.immDue = false
	return true
}
