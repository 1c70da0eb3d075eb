package ibverbx

import (
	"ibverbx/verbs"
)

// process takes in one physical completion of a rail. Which request it belongs to is read from its
// work-request id alone: of a failed completion nothing else is defined, the opcode least of all.
func (q *VirtualQP) process(rl *rail, wc *verbs.WC, out *sink) {
	if q.single {
		q.passCompletion(rl, wc, out)
		return
	}
	if wridRail(wc.ID) != rl.index() {
		q.counters.stale++ // of an earlier owner of the number, or invented
		return
	}
	switch wridKind(wc.ID) {
	case kindData, kindNumbered, kindImm:
		q.dataCompleted(rl, wc)
	case kindNotify:
		q.noteCompleted(rl, wc)
	case kindMessage:
		q.messageCompleted(rl, wc)
	case kindRecv:
		q.recvCompleted(rl, wc)
	case kindCredit:
		q.creditCompleted(rl, wc)
	default:
		q.counters.stale++
		return
	}
	q.cq.touch(q)
}

// dataCompleted takes in the completion of a fragment, marker, atomic or raw immediate.
func (q *VirtualQP) dataCompleted(rl *rail, wc *verbs.WC) {
	n, ok := q.send.Resolve(wridNumber(wc.ID), wridNumberMask)
	if !ok {
		q.counters.stale++
		return
	}
	r := q.send.At(n)
	if r.left == 0 || rl == q.notify || rl.inUse <= rl.staged() {
		q.counters.stale++
		return
	}
	r.left--
	rl.inUse--
	q.free++
	if q.next != q.send.Tail {
		q.freed = rl
	}
	if wc.Status != verbs.StatusSuccess {
		q.sendFailed(rl, n, r, wc)
		return
	}
	if wridKind(wc.ID) == kindNumbered {
		q.numbers.ack(wridAux(wc.ID))
	}
	if n == q.dataDone && r.left == 0 && r.dispatched {
		q.advanceDataDone()
	}
}

// noteCompleted takes in the completion of a request's last step.
func (q *VirtualQP) noteCompleted(rl *rail, wc *verbs.WC) {
	n, ok := q.send.Resolve(wridNumber(wc.ID), wridNumberMask)
	if !ok {
		q.counters.stale++
		return
	}
	r := q.send.At(n)
	carrier := q.noteOn
	if r.plan == planNone {
		carrier = q.sendOn
	}
	if r.note != notePosted || rl != carrier || rl.inUse <= rl.staged() {
		q.counters.stale++
		return
	}
	r.note = noteDone
	q.slotFreed(rl)
	if wc.Status != verbs.StatusSuccess {
		q.sendFailed(rl, n, r, wc)
	}
}

// messageCompleted takes in the completion of a relaxed SEND.
func (q *VirtualQP) messageCompleted(rl *rail, wc *verbs.WC) {
	n, ok := q.send.Resolve(wridNumber(wc.ID), wridNumberMask)
	if !ok {
		q.counters.stale++
		return
	}
	r := q.send.At(n)
	if r.plan != planMessage || r.left == 0 || rl != q.sendOn || rl.inUse <= rl.staged() {
		q.counters.stale++
		return
	}
	r.left = 0
	q.slotFreed(rl)
	if wc.Status != verbs.StatusSuccess {
		q.sendFailed(rl, n, r, wc)
		return
	}
	if n == q.dataDone {
		q.advanceDataDone()
	}
}

// slotFreed counts a SEND or a notification as ended, on whichever rail takes them.
func (q *VirtualQP) slotFreed(rl *rail) {
	rl.inUse--
	if rl == q.notify {
		return
	}
	q.free++
	if q.next != q.send.Tail {
		q.freed = rl
	}
}

// advanceDataDone moves the cursor over every request whose data is acknowledged.
func (q *VirtualQP) advanceDataDone() {
	for q.dataDone != q.next && q.send.At(q.dataDone).dataComplete() {
		q.dataDone++
	}
	if q.notes == 0 {
		q.noted = q.dataDone
	}
}

// progress carries on after completions were taken in: more work to the rails, finished requests to
// the user.
func (q *VirtualQP) progress(out *sink) {
	if q.single || q.closed {
		return
	}
	if q.suspect != nil {
		q.judgeSuspect()
	}
	if q.failure != nil {
		q.progressFailed()
	} else if q.next != q.send.Tail || q.notes != 0 || q.blocked {
		q.dispatch()
	}
	q.reportSends(out)
	q.progressRecvs(out)
	if q.failure != nil && !q.killed {
		q.linger(out)
	}
}

// reportSends reports finished requests in posting order.
func (q *VirtualQP) reportSends(out *sink) {
	for q.send.Head != q.noted {
		r := q.send.At(q.send.Head)
		if !r.complete() {
			return
		}
		if q.send.Head > q.stopAt && (q.send.Head != q.failed || q.told) {
			// The line stopped before it: whatever became of its fragments, it is reported as
			// flushed.
			r.status, r.vendorErr = verbs.StatusWRFlushErr, 0
		}
		q.told = q.told || r.status != verbs.StatusSuccess && r.status != verbs.StatusWRFlushErr
		*q.cq.slot(out) = WC{
			ID:        r.id,
			Status:    r.status,
			Opcode:    r.opcode.WCOpcode(),
			VendorErr: r.vendorErr,
			QPNum:     q.num,
			ByteLen:   r.length,
		}
		if r.note != noteNone {
			q.notes--
		}
		out.release(r)
		q.send.Head++
		q.counters.sendsDone++
	}
}
