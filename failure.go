package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/failover"
	"ibverbx/verbs"
)

// This file raises the failures of a virtual queue pair over several queue pairs. The code that
// finds one, in either direction or in internal/dqplb, returns it; here it is recorded, the line
// stops, and the rails are moved to ERR. passThrough.fail raises the failures of a single queue
// pair.

// sendFailed handles a failed completion of request n: the first error is kept, and the line stops.
func (q *VirtualQP) sendFailed(rl *rail, n uint64, wc *verbs.WC) {
	r := q.send.win.At(n)
	if r.status == verbs.StatusSuccess {
		r.status, r.vendorErr = wc.Status, wc.VendorErr
	}
	if !q.line.flushAsked(wc.Status) {
		f := q.send.describe(r, wc.ID, wc.Status)
		f.VendorErr = wc.VendorErr
		rl.stats.errors++
		q.fail(rl, n, f)
	}
	q.stopFrom(n)
}

// postFailed handles the permanent refusal of a rail's batch: the work staged there is never sent.
func (q *VirtualQP) postFailed(rl *rail, err error) {
	q.cq.touch(q)
	if refusalLosesRail(err) && q.failover.canLose(rl) {
		q.failover.loseRail(rl, err)
		return
	}
	refused := rl.batch.wrs[rl.batch.head].ID
	n, _ := q.send.resolve(refused)
	r := q.send.win.At(n)
	if r.status == verbs.StatusSuccess {
		r.status = refusalStatus(err)
	}
	rl.stats.errors++
	q.fail(rl, n, q.send.describe(r, refused, err))
	q.stopFrom(min(n, q.send.firstBehindImm(rl)))
}

// refusalStatus returns the status of a request whose post was refused permanently.
func refusalStatus(err error) verbs.Status {
	switch {
	case errors.Is(err, verbs.ErrState):
		return verbs.StatusWRFlushErr
	case errors.Is(err, verbs.ErrDeviceGone):
		return verbs.StatusFatalErr
	}
	return verbs.StatusLocQPOpErr
}

// fail records the first error. Later ones follow from it, or are too late to matter. req is the
// send request concerned, 0 for none; rl is nil if no rail is concerned.
func (q *VirtualQP) fail(rl *rail, req uint64, f *FailedError) {
	if q.line.schemeUnsaid && !q.send.notified() && !q.recv.notifiedYet && bySchemes(f.Err) {
		f.AssumedScheme = q.cfg.Scheme.String()
	}
	f.MixedKinds = q.send.rails.sharesRecvs(q.cfg.Scheme, rl) && f.metOtherKind()
	if q.line.err == nil && rl != nil {
		f.Failover = q.noFailover(rl, f.Err)
	}
	if q.line.err == nil && q.observer != nil {
		f.Recent = q.observer.recent()
	}
	if q.line.fail(req, f.on(q.num, rl)) && q.cfg.Events.Failed != nil {
		q.cfg.Events.Failed(f)
	}
}

// noFailover returns why nothing replaces a rail that has failed with err; empty if failover does
// not apply.
func (q *VirtualQP) noFailover(rl *rail, err error) string {
	var status verbs.Status
	losesIt := refusalLosesRail(err) || errors.As(err, &status) && failover.LosesRail(status)
	if !losesIt || q.offered == nil || q.line.ending() {
		return ""
	}
	switch lost := q.send.rails.downRails(); {
	case q.failover == nil:
		return "nothing goes on: the peer does not offer failover"
	case q.failover.canLose(rl):
		return ""
	case lost == 0:
		return "no other queue pair can go on for it"
	default:
		return fmt.Sprintf("no other queue pair can go on for it: %d of %d were lost before", lost,
			len(q.send.rails.all))
	}
}

// stopFrom stops the line at request n.
func (q *VirtualQP) stopFrom(n uint64) {
	q.line.stop(n)
	q.send.stopFrom(q.line.stopAt)
}

// stopUnposted stops the line at the first request that is not completely posted.
func (q *VirtualQP) stopUnposted() {
	if n := q.send.firstUnposted(); n < q.send.win.Tail {
		q.stopFrom(n)
	}
}

// linger waits, after a failure, for the requests before the failed one, and then makes the NICs
// flush the rest. If Config.Linger is over first, those requests are flushed, too.
func (q *VirtualQP) linger(out *sink) {
	switch {
	case q.send.win.Head >= q.line.stopAt:
	case q.line.lingered(q.cfg.Linger):
		q.stopFrom(q.send.win.Head)
	default:
		q.cq.touch(q) // no completion may lead here again
		return
	}
	q.kill()
	q.recv.report(&q.line, q.num, out)
}

// kill ends the virtual queue pair: nothing more is posted, waiting work is flushed here, and the
// NICs flush what they hold.
func (q *VirtualQP) kill() {
	if q.line.dead {
		return
	}
	q.line.dead = true
	q.recv.flushWaiting()
	q.send.rails.toError()
	q.cq.touch(q)
}

// recvEnded handles a receive of the user that has not succeeded: the NIC failed it, or the peer
// sent a message that it cannot take.
func (q *VirtualQP) recvEnded(rl *rail, wc *verbs.WC, r *recvReq) {
	if wc.Status == verbs.StatusSuccess {
		q.violation(rl, &wrongKindError{fmt.Sprintf("%v where a receive waits for %v", wc.Opcode, r.opcode)})
		return
	}
	q.recvUnsuccessful(rl, wc, describeRecv(r))
}

// recvUnsuccessful handles an unsuccessful completion of the receive direction; f names the request
// concerned, if any.
func (q *VirtualQP) recvUnsuccessful(rl *rail, wc *verbs.WC, f *FailedError) {
	f.VendorErr, f.Err = wc.VendorErr, wc.Status
	switch {
	case q.line.flushAsked(wc.Status):
	case wc.Status == verbs.StatusWRFlushErr:
		q.recvFlushed(rl, f)
	default:
		q.recvFailed(rl, f)
	}
}

// recvFlushed handles a flushed completion of the receive direction: its queue pair is in ERR, and
// the flush is a consequence. While a send of the same queue pair is outstanding, or was the first
// error, the send reports the cause, and earlier requests on the other rails may still run to
// completion.
func (q *VirtualQP) recvFlushed(rl *rail, f *FailedError) {
	switch {
	case q.line.err != nil:
	case rl.inUse == 0:
		q.recvFailed(rl, f)
	default:
		q.line.suspect = rl
	}
}

// failSuspect ends the virtual queue pair if the sends of a rail whose receives were flushed have
// all succeeded: nothing else then reports that its queue pair is in ERR.
func (q *VirtualQP) failSuspect() {
	if rl := q.line.suspect; rl.inUse == 0 && q.line.err == nil {
		q.recvFailed(rl, recvDirection(PartUnknown, verbs.StatusWRFlushErr))
	}
}

// recvFailed handles a failure of the receive direction. Its queue pair is in ERR. As on a single
// physical connection everything is then flushed, so the others go to ERR, too.
func (q *VirtualQP) recvFailed(rl *rail, f *FailedError) {
	rl.stats.errors++
	q.fail(rl, 0, f)
	q.stopUnposted()
	q.kill()
}

// recvRefused handles the refusal of a receive.
func (q *VirtualQP) recvRefused(r *recvRefusal) {
	r.rail.stats.refused++
	q.cq.touch(q)
	switch {
	case verbs.IsTransient(r.err): // the next progress tries again
	case refusalLosesRail(r.err) && q.failover.canLose(r.rail):
		q.failover.loseRail(r.rail, r.err)
	case q.line.err != nil:
		// The failed rail refuses all later receives. That is no reason to flush requests that may
		// still succeed on the others.
		r.rail.recvsRefused = true
	default:
		r.f.Err = r.err
		q.recvFailed(r.rail, r.f)
	}
}

// violation ends the virtual queue pair because the peer sent something impossible.
func (q *VirtualQP) violation(rl *rail, what error) { q.recvFailed(rl, violation(what)) }

// raise ends the virtual queue pair with a failure that failover has returned, if any.
func (q *VirtualQP) raise(failed *failedRail) {
	if failed != nil {
		q.recvFailed(failed.rail, failed.f)
	}
}

// abandon ends everything outstanding, as flushed. The rails' queue pairs have been closed or
// reset: no NIC accesses the requests' memory any more, and there will be no completions.
func (q *VirtualQP) abandon() {
	if q.pass != nil {
		q.pass.abandon()
	}
	q.send.rails.abandon()
	q.line.stop(q.send.abandon())
	q.line.suspect = nil
	q.recv.abandon()
	if q.failover != nil {
		q.failover.restart()
	}
}
