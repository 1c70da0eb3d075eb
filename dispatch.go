package ibverbx

import (
	"math"

	"ibverbx/verbs"
)

// dispatch hands the data of waiting requests to the rails, in posting order, as far as the rails
// have room; then the last steps that have come due; and posts what was staged, one batch a rail.
func (q *VirtualQP) dispatch() {
	for q.next != q.send.Tail {
		if !q.dispatchData(q.next, q.send.At(q.next)) {
			break
		}
		q.next++
	}
	if q.dataDone < q.next {
		q.advanceDataDone() // a request without data, such as a SEND, is done with it at once
	}
	if q.notes != 0 && q.noted < q.dataDone {
		q.dispatchNotes()
	}
	q.postStaged()
}

// dispatchData hands out the data of request n. It reports false when some of it must wait.
func (q *VirtualQP) dispatchData(n uint64, r *sendReq) bool {
	if r.fence {
		if q.advanceDataDone(); q.dataDone != n {
			return false
		}
	}
	done := true
	switch r.plan {
	case planFragments:
		done = q.dispatchFragments(n, r)
	case planNumbered:
		done = q.dispatchNumbered(n, r)
	case planAtomic:
		done = q.dispatchAtomic(n, r)
	case planEvery:
		done = q.dispatchEvery(n, r)
	case planMessage:
		done = q.dispatchMessage(n, r)
	}
	r.dispatched = done
	return done
}

// dispatchFragments hands out the plain fragments of a request.
func (q *VirtualQP) dispatchFragments(n uint64, r *sendReq) bool {
	op := r.opcode
	if op == verbs.OpRDMAWriteWithImm {
		op = verbs.OpRDMAWrite // Spray: the notification follows by itself
	}
	for r.offset < r.length {
		rl := q.pickRail()
		if rl == nil {
			return false
		}
		q.stageFragment(rl, r, op, wrid(kindData, rl.idBits, r.fragments&wridAuxMask, n),
			uint64(q.cfg.MaxMsgSize))
		// a read leaves nothing there that a marker would have to prove
		rl.dirty = rl.dirty || op == verbs.OpRDMAWrite
	}
	return true
}

// dispatchEvery hands out one fragment to each data rail. Round robin would not do: it passes over
// a rail that is full.
func (q *VirtualQP) dispatchEvery(n uint64, r *sendReq) bool {
	for int(r.fragments) < len(q.rails) {
		rl := q.rails[r.fragments]
		if !rl.hasRoom() {
			return false
		}
		q.stageFragment(rl, r, r.opcode, wrid(kindData, rl.idBits, r.fragments, n), q.fragmentLimit(r))
		rl.dirty = rl.dirty || r.opcode == verbs.OpRDMAWrite
	}
	return true
}

// fragmentLimit is the length of a request's fragments, the last one excepted, in bytes.
func (q *VirtualQP) fragmentLimit(r *sendReq) uint64 {
	if r.plan == planEvery {
		return r.length / uint64(len(q.rails))
	}
	return uint64(q.cfg.MaxMsgSize)
}

// dispatchMessage hands out a relaxed SEND. One rail takes them all, so they stay in order.
func (q *VirtualQP) dispatchMessage(n uint64, r *sendReq) bool {
	if q.notes != 0 {
		// A last step that has come due goes first: relaxed SENDs that keep the rail full would
		// hold it up for ever.
		if q.advanceDataDone(); q.noted < q.dataDone {
			q.dispatchNotes()
		}
	}
	rl := q.sendOn
	if !rl.hasRoom() {
		return false
	}
	wr := q.stageMessage(rl, r, wrid(kindMessage, rl.idBits, 0, n))
	q.fillMessage(rl, r, wr)
	r.left++
	return true
}

// dispatchAtomic hands out an atomic: always on the first rail, since NICs keep atomics apart only
// per device, and atomics to one address must meet in one place.
func (q *VirtualQP) dispatchAtomic(n uint64, r *sendReq) bool {
	rl := q.rails[0]
	if !rl.hasRoom() {
		return false
	}
	wr := q.stageFragment(rl, r, r.opcode, wrid(kindData, rl.idBits, 0, n), 8)
	wr.CompareAdd, wr.Swap = r.ext.compareAdd, r.ext.swap
	rl.dirty = true
	return true
}

// pickRail chooses the data rail for the next fragment: first the one that just freed a slot while
// requests waited, then round robin; nil when all are full.
func (q *VirtualQP) pickRail() *rail {
	if q.free == 0 {
		return nil
	}
	if rl := q.freed; rl != nil {
		q.freed = nil
		if rl.hasRoom() {
			return rl
		}
	}
	for {
		rl := q.rails[q.turn]
		if q.turn++; q.turn == len(q.rails) {
			q.turn = 0
		}
		if rl.hasRoom() {
			return rl
		}
	}
}

// stageFragment stages the next piece of a request's data, at most limit bytes, on a rail that has
// room.
func (q *VirtualQP) stageFragment(rl *rail, r *sendReq, op verbs.Opcode, id, limit uint64) *verbs.SendWR {
	wr := q.stage(rl, r, op, id)
	size := min(limit, r.length-r.offset)
	if r.scattered || r.inline {
		size = r.gather(rl, wr, size)
	} else {
		sgl := rl.batch.setSGL(wr, 1)
		sgl[0] = verbs.SGE{Addr: r.localAddr + r.offset, Length: uint32(size),
			LKey: r.localKeys.at(rl.device)}
	}
	wr.RemoteAddr = r.remoteAddr + r.offset
	r.offset += size
	r.fragments++
	rl.stats.bytes += size
	rl.stats.fragments++
	return wr
}

// stage opens a work request of the data stage on a rail that has room.
func (q *VirtualQP) stage(rl *rail, r *sendReq, op verbs.Opcode, id uint64) *verbs.SendWR {
	rl.inUse++
	q.free--
	r.left++
	wr := q.openBatch(rl)
	wr.ID = id
	wr.Opcode = op
	wr.Flags = verbs.SendSignaled
	wr.RKey = r.remoteKeys.at(rl.peerDev)
	return wr
}

// gather gives a work request up to size bytes of a scatter list or inline payload, as far as the
// rail takes that many pieces, and returns how many bytes these were.
func (r *sendReq) gather(rl *rail, wr *verbs.SendWR, size uint64) uint64 {
	x := r.ext
	if r.inline {
		wr.Flags |= verbs.SendInline
		rl.batch.setInline(wr, x.inline[r.offset:r.offset+size])
		return size
	}
	sgl := rl.batch.setSGL(wr, rl.maxSGE)
	count, got := 0, uint64(0)
	for got < size && count < rl.maxSGE {
		p := &x.pieces[x.piece]
		n := min(size-got, p.Length-x.pieceOff, math.MaxUint32)
		if n != 0 {
			sgl[count] = verbs.SGE{Addr: p.Addr + x.pieceOff, Length: uint32(n), LKey: p.Keys.at(rl.device)}
			count++
			got += n
		}
		if x.pieceOff += n; x.pieceOff == p.Length {
			x.piece, x.pieceOff = x.piece+1, 0
		}
	}
	rl.batch.setSGL(wr, count)
	return got
}

// dispatchNotes takes the last step of requests whose data, and all earlier data, is acknowledged.
// Several may be on the way at a time: what counts is earlier data, not earlier notifications.
func (q *VirtualQP) dispatchNotes() {
	for q.noted != q.dataDone {
		r := q.send.At(q.noted)
		if r.note == noteDue && !q.stageNote(q.noted, r) {
			return
		}
		q.noted++
	}
}

// stageNote stages a request's last step. It reports false when the rail has no room.
func (q *VirtualQP) stageNote(n uint64, r *sendReq) bool {
	rl := q.noteOn
	if r.plan == planNone {
		rl = q.sendOn
	}
	if !rl.hasRoom() {
		return false
	}
	wr := q.stageMessage(rl, r, wrid(kindNotify, rl.idBits, 0, n))
	if r.plan == planNone {
		q.fillMessage(rl, r, wr)
	} else {
		wr.Opcode = verbs.OpRDMAWriteWithImm
		wr.RemoteAddr, wr.RKey = r.remoteAddr, r.remoteKeys.at(rl.peerDev)
		rl.batch.setSGL(wr, 0)
	}
	r.note = notePosted
	return true
}

// stageMessage opens a SEND or a notification of Spray on a rail that has room.
func (q *VirtualQP) stageMessage(rl *rail, r *sendReq, id uint64) *verbs.SendWR {
	rl.inUse++
	if rl != q.notify {
		q.free--
	}
	wr := q.openBatch(rl)
	wr.ID = id
	wr.Flags = verbs.SendSignaled
	if r.solicited {
		wr.Flags |= verbs.SendSolicited
	}
	wr.Imm = r.imm
	rl.stats.notifies++
	return wr
}

// fillMessage makes it a SEND and gives it its payload, which goes out whole.
func (q *VirtualQP) fillMessage(rl *rail, r *sendReq, wr *verbs.SendWR) {
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

// openBatch opens the next work request of a rail's batch, and notes that the rail has something to
// post. Looking at every rail in their place costs a cache miss each, which a program with a
// hundred virtual queue pairs feels.
func (q *VirtualQP) openBatch(rl *rail) *verbs.SendWR {
	if !rl.listed {
		rl.listed = true
		q.staged = append(q.staged, rl)
	}
	return rl.batch.add()
}

// postStaged posts the batches. What is refused for now stays listed.
func (q *VirtualQP) postStaged() {
	q.blocked = false
	left := 0
	for _, rl := range q.staged {
		if rl.batch.tail != 0 {
			q.postRail(rl)
		}
		if rl.listed = rl.batch.tail != 0; rl.listed {
			q.staged[left] = rl
			left++
		}
	}
	q.staged = q.staged[:left]
}

// postRail posts a rail's batch. What is refused for now stays staged and is tried again; any other
// refusal is an error of the rail like a failed completion.
func (q *VirtualQP) postRail(rl *rail) {
	err := rl.post()
	if err == nil {
		return
	}
	rl.stats.refused++
	if verbs.IsTransient(err) {
		q.blocked = true
		q.cq.touch(q)
		return
	}
	q.failPost(rl, err)
}
