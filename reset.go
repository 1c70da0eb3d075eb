package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Reset takes the virtual queue pair back to RESET, whatever has happened to it: what is
// outstanding completes as flushed, the failure is cleared, and it can be connected again. The peer
// must do the same, and both must exchange new cards: packet sequence numbers change, so that
// neither takes a packet of the previous connection for one of the new.
//
// The queue pairs of a NIC that is gone cannot be reset. What is outstanding is reported as
// flushed all the same, the error says which rail it was, and the virtual queue pair stays failed:
// close it.
func (q *VirtualQP) Reset() error {
	return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState, nil)
}

func (q *VirtualQP) reset() error {
	failedBefore := q.line.err != nil
	q.cq.collect()
	q.flush()
	var errs []error
	var first *rail // that cannot be reset,
	var cause error // for this reason
	for _, r := range q.send.rails.all {
		if err := errors.Join(q.unflushed(r), r.reset()); err != nil {
			errs = append(errs, q.railError(r, err))
			if first == nil {
				first, cause = r, err
			}
		}
	}
	q.endOutstanding()
	if err := errors.Join(errs...); err != nil {
		if !failedBefore {
			q.line.forgetFlush()
		}
		q.fail(first, 0, noRequest(cause))
		q.line.resetFailed()
		return err
	}
	q.restart()
	return nil
}

// reset moves the queue pair to RESET. One that refuses keeps what it had, so it is destroyed,
// after which it certainly holds nothing.
func (r *rail) reset() error {
	if r.closed {
		return verbs.ErrClosed
	}
	err := r.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState)
	if err == nil {
		return nil
	}
	if closing := r.qp.Close(); closing != nil {
		return errors.Join(err, closing) // Close tries again
	}
	r.closed = true
	return err
}

// flush moves every queue pair to ERR and handles what the NICs flush at once. The rest of several
// queue pairs' work is known here and is ended without the NICs; a single queue pair's is not, so
// there flush waits for it.
func (q *VirtualQP) flush() {
	q.startFlush()
	if q.pass != nil {
		awaitFlushes([]*passThrough{q.pass})
	}
}

// unflushed is why a single queue pair may have kept requests that are not tracked and not
// reported: it refused the move to ERR to the end. It is nil with several, where all are tracked.
func (q *VirtualQP) unflushed(r *rail) error {
	if q.pass == nil || r.stopErr == nil || q.pass.nothingLeft() {
		return nil
	}
	return fmt.Errorf("it refuses to flush what is outstanding: %w", r.stopErr)
}

// startFlush has the NICs flush what they hold. From here on a flushed request is no failure.
func (q *VirtualQP) startFlush() {
	q.line.flushing()
	q.stopUnposted() // on a queue pair in ERR a post may be refused permanently
	q.send.rails.toError()
	q.cq.collect()
}

// endOutstanding reports everything that is outstanding as flushed, once no NIC holds any of it.
func (q *VirtualQP) endOutstanding() {
	q.abandon()
	out := q.cq.sink(nil)
	q.send.report(&q.line, q.num, &out)
	q.progressRecvs(&out)
	out.settle()
}

// restart puts the virtual queue pair back into RESET. line and railConn are made anew, not cleared
// field by field; each component's restart resets what else it knows of the connection.
func (q *VirtualQP) restart() {
	q.line = newLine(q.clock())
	q.send.rails.restart()
	if q.pass != nil {
		q.pass.restart()
		return
	}
	q.send.rails.assignSends(q.cfg.Scheme, false, q.cfg.Failover)
	q.failover = nil
	q.send.restart()
	q.recv.restart()
}
