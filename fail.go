package ibverbx

import (
	"errors"
	"time"

	"ibverbx/verbs"
)

// sendFailed takes in a failed completion of request n: the first error is kept, and the line
// stops.
func (q *VirtualQP) sendFailed(rl *rail, n uint64, r *sendReq, wc *verbs.WC) {
	if r.status == verbs.StatusSuccess {
		r.status, r.vendorErr = wc.Status, wc.VendorErr
	}
	if !q.flushAsked(wc.Status) {
		f := q.describeSend(r, wc.ID, wc.Status)
		f.VendorErr = wc.VendorErr
		q.failSend(rl, n, f)
	}
	q.stopSends(n)
}

// failSend records that request n has failed.
func (q *VirtualQP) failSend(rl *rail, n uint64, f *FailedError) {
	rl.stats.errors++
	if q.fail(rl, f) {
		q.failed = n
	}
}

// flushAsked reports whether a status is of what Drain, Close or Reset has had flushed: that is no
// failure.
func (q *VirtualQP) flushAsked(s verbs.Status) bool {
	return s == verbs.StatusWRFlushErr && q.phase >= drainRecvs
}

// failPost takes in that a rail refused its batch for good: what was staged there will never go
// out.
func (q *VirtualQP) failPost(rl *rail, err error) {
	refused := rl.batch.wrs[rl.batch.head].ID
	n, _ := q.send.Resolve(wridNumber(refused), wridNumberMask)
	r := q.send.At(n)
	if r.status == verbs.StatusSuccess {
		r.status = refusalStatus(err)
	}
	q.failSend(rl, n, q.describeSend(r, refused, err))
	q.stopSends(n)
	q.cq.touch(q)
}

// refusalStatus is the status with which a request completes whose post was refused for good.
func refusalStatus(err error) verbs.Status {
	switch {
	case errors.Is(err, verbs.ErrState):
		return verbs.StatusWRFlushErr
	case errors.Is(err, verbs.ErrDeviceGone):
		return verbs.StatusFatalErr
	}
	return verbs.StatusLocQPOpErr
}

// fail records the first error, and reports whether this one was. Later ones follow from it, or
// come too late to matter.
func (q *VirtualQP) fail(rl *rail, f *FailedError) (first bool) {
	if q.failure != nil {
		return
	}
	f.QPNum, f.Rail = q.num, -1
	if rl != nil {
		f.Rail, f.Device, f.RailQPNum = rl.index(), rl.qp.Device().Name(), rl.qp.Num()
	}
	q.failure, q.since = f, time.Now()
	return true
}

// linger waits, after a failure, for the requests before the one that failed, and then has the NICs
// flush what is left. Where they take too long for Config.Linger, they are flushed with it.
func (q *VirtualQP) linger(out *sink) {
	switch {
	case q.send.Head >= q.stopAt:
	case time.Since(q.since) > q.cfg.Linger:
		q.stopSends(q.send.Head)
	default:
		q.cq.touch(q) // nothing may happen that would bring us here again
		return
	}
	q.kill()
	q.progressRecvs(out)
}

// stopSends stops the line at request n: n itself and what comes after it post nothing more. What
// they still have on the NICs completes or is flushed, and only then are they reported.
func (q *VirtualQP) stopSends(n uint64) {
	if n < q.stopAt {
		q.stopAt = n
	}
	// Requests are dispatched in order, so everything from next on lies behind the one that failed,
	// or is it.
	for ; q.next != q.send.Tail; q.next++ {
		r := q.send.At(q.next)
		r.dispatched, r.owesImm = true, false
		if r.status == verbs.StatusSuccess {
			r.status = verbs.StatusWRFlushErr
		}
	}
	q.unstage(q.stopAt)
	for i := max(q.stopAt, q.noted); i < q.send.Tail; i++ {
		if r := q.send.At(i); r.note == noteDue {
			// A notification that was not sent yet is never sent: its request failed, or an earlier
			// one.
			r.note = noteDone
			if r.status == verbs.StatusSuccess {
				r.status = verbs.StatusWRFlushErr
			}
		}
	}
}

// unstage takes back what was staged for request from and later ones, and has not been posted.
func (q *VirtualQP) unstage(from uint64) {
	for _, rl := range q.all {
		rl.batch.drop(func(id uint64) bool {
			n, ok := q.send.Resolve(wridNumber(id), wridNumberMask)
			if ok && n < from {
				return false
			}
			if r := q.send.At(n); ok {
				if wridKind(id) == kindNotify {
					r.note = noteDone
				} else if r.left > 0 {
					r.left--
				}
				if r.status == verbs.StatusSuccess {
					r.status = verbs.StatusWRFlushErr
				}
			}
			rl.inUse--
			if rl != q.notify {
				q.free++
			}
			return true
		})
	}
}

// progressFailed moves the cursors after a failure. Requests before the one that stopped the line
// still get what is due to them.
func (q *VirtualQP) progressFailed() {
	q.advanceDataDone()
	if q.notes != 0 && q.noted < q.dataDone {
		q.dispatchNotes()
	}
	q.postStaged()
}

// recvError takes in an unsuccessful completion of the receive direction; f says which request was
// concerned, if any.
func (q *VirtualQP) recvError(rl *rail, wc *verbs.WC, f *FailedError) {
	f.VendorErr, f.Err = wc.VendorErr, wc.Status
	switch {
	case q.flushAsked(wc.Status):
	case wc.Status == verbs.StatusWRFlushErr:
		q.recvFlushed(rl, f)
	default:
		q.recvFailed(rl, f)
	}
}

// recvFlushed takes in a flushed completion of the receive direction: the queue pair under it is in
// ERR, and this is what follows from it. While a send of the same queue pair is outstanding, or was
// the first error, the send tells the cause, and earlier requests on the other rails may still come
// to their own end.
func (q *VirtualQP) recvFlushed(rl *rail, f *FailedError) {
	switch {
	case q.failure != nil:
	case rl.inUse == 0:
		q.recvFailed(rl, f)
	default:
		q.suspect = rl
	}
}

// judgeSuspect ends the virtual queue pair when the sends of a rail whose receives were flushed
// have all ended well: then nothing else will tell that its queue pair is in ERR.
func (q *VirtualQP) judgeSuspect() {
	if rl := q.suspect; rl.inUse == 0 && q.failure == nil {
		q.recvFailed(rl, recvDirection(PartUnknown, verbs.StatusWRFlushErr))
	}
}

// recvFailed takes in a failed completion of the receive direction. The queue pair under it is in
// ERR, as it would be on one physical connection; so the others go there too, and everything is
// flushed.
func (q *VirtualQP) recvFailed(rl *rail, f *FailedError) {
	rl.stats.errors++
	q.fail(rl, f)
	q.stopUnposted()
	q.kill()
}

// stopUnposted stops the line at the first request of which something has not been posted yet.
func (q *VirtualQP) stopUnposted() {
	if stop := q.firstUnposted(); stop < q.send.Tail {
		q.stopSends(stop)
	}
}

// firstUnposted is the first request of which something has not been posted yet.
func (q *VirtualQP) firstUnposted() uint64 {
	first := q.next
	for n := q.noted; n < first; n++ {
		if q.send.At(n).note == noteDue {
			first = n
		}
	}
	for _, rl := range q.all {
		b := &rl.batch
		for i := b.head; i < b.tail; i++ { // a SEND may be staged behind data of later requests
			n, _ := q.send.Resolve(wridNumber(b.wrs[i].ID), wridNumberMask)
			first = min(first, n)
		}
	}
	return first
}

// kill ends the virtual queue pair: nothing more is posted, what waits is flushed here, and what
// the NICs hold there.
func (q *VirtualQP) kill() {
	if q.killed {
		return
	}
	q.killed = true
	q.recv.flushWaiting()
	q.toError()
	q.cq.touch(q)
}

// toError moves every rail to ERR, so that the NICs flush what they still hold. In RESET there is
// nothing to flush.
func (q *VirtualQP) toError() {
	for _, rl := range q.all {
		if s := rl.qp.State(); s != verbs.StateReset && s != verbs.StateErr && !rl.closed {
			// A rail that refuses is gone already; it holds nothing that would not end.
			_ = rl.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
		}
	}
}

// abandon ends everything that is outstanding, as flushed. The rails' queue pairs have been closed
// or reset: no NIC touches the requests' memory any more, and no completion of theirs will come.
func (q *VirtualQP) abandon() {
	if q.single {
		return
	}
	for _, rl := range q.all {
		q.owed -= rl.owed
		rl.inUse, rl.recvs, rl.owed = 0, 0, 0
		rl.batch.head, rl.batch.tail = 0, 0
	}
	for n := q.send.Head; n != q.send.Tail; n++ {
		r := q.send.At(n)
		if !r.complete() {
			q.stopAt = min(q.stopAt, n)
			if r.status == verbs.StatusSuccess {
				r.status = verbs.StatusWRFlushErr
			}
		}
		r.left, r.dispatched, r.owesImm = 0, true, false
		if r.note != noteNone {
			r.note = noteDone
		}
	}
	q.next, q.dataDone, q.noted = q.send.Tail, q.send.Tail, q.send.Tail
	q.suspect = nil
	q.recv.abandon()
}
