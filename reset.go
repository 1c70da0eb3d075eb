package ibverbx

import (
	"errors"
	"math/rand/v2"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Reset takes the virtual queue pair back to RESET, whatever became of it: what is outstanding
// completes as flushed, the failure is forgotten, and it can be connected again. The peer must do
// the same, and both must exchange new cards: packet sequence numbers change, so that neither takes
// the other's new life for its old one.
//
// When a NIC is gone for good its queue pairs cannot be reset. What is outstanding is reported as
// flushed all the same, the error says which rail it was, and the virtual queue pair stays failed:
// close it.
func (q *VirtualQP) Reset() error {
	return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState, nil)
}

func (q *VirtualQP) reset() error {
	before := q.failure
	q.collect()
	q.flush()
	var errs []error
	var first *rail // that cannot be reset,
	var cause error // for this reason
	note := func(r *rail, err error) {
		errs = append(errs, q.railError(r, err))
		if first == nil {
			first, cause = r, err
		}
	}
	for _, r := range q.all {
		if r.closed {
			note(r, verbs.ErrClosed)
			continue
		}
		err := r.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState)
		if err == nil {
			continue
		}
		// It keeps what it had. Destroyed it does not, and that is sure to be over.
		note(r, err)
		if err := r.qp.Close(); err != nil {
			note(r, err)
			continue // Close tries again
		}
		r.closed = true
	}
	q.endOutstanding()
	if err := errors.Join(errs...); err != nil {
		if before == nil && errors.Is(q.Err(), verbs.StatusWRFlushErr) {
			q.failure = nil // a NIC that is gone has flushed: why it cannot be reset says more
		}
		q.fail(first, noRequest(cause))
		q.killed, q.state = true, verbs.StateErr
		return err
	}
	q.restart()
	return nil
}

// flush moves every queue pair to ERR and takes in what the NICs flush at once. The rest of several
// queue pairs' work is known here and is ended without the NICs; a single queue pair's is not, so
// there flush waits for it.
func (q *VirtualQP) flush() {
	q.startFlush()
	if q.single {
		awaitFlushes([]*VirtualQP{q})
	}
}

// startFlush has the NICs flush what they hold. From here on a flushed request is no failure.
func (q *VirtualQP) startFlush() {
	q.phase = max(q.phase, drainRecvs)
	if !q.single {
		q.stopUnposted() // on a queue pair in ERR a post may be refused for good
	}
	q.toError()
	q.collect()
}

// endOutstanding reports everything that is outstanding as flushed, once no NIC holds any of it.
func (q *VirtualQP) endOutstanding() {
	q.inflight = 0
	if q.single {
		return
	}
	q.abandon()
	out := sink{}
	q.reportSends(&out)
	q.progressRecvs(&out)
	out.settle()
}

// restart gives a virtual queue pair that was reset its first state back. Requests keep counting
// on, so that completions of the former life are recognised.
func (q *VirtualQP) restart() {
	q.state = verbs.StateReset
	q.failure, q.failed, q.suspect, q.killed, q.stopAt, q.freed, q.turn = nil, 0, nil, false, never, nil, 0
	q.recv.torn, q.told, q.rawImm, q.blocked = false, false, false, false
	q.phase, q.own = drainNone, ownRequests{past: q.counters.sends - q.counters.sendsDone}
	q.free, q.peerDevs = 0, q.localDevs
	if q.cfg.Scheme == DQPLB && !q.single {
		q.numbers = newNumberSender(maxWindow, 0)
		q.arrived = numberReceiver{}
		q.recv.bank = ring.FIFO[notification]{}
	}
	for _, r := range q.all {
		r.psn, r.peerDev, r.limit, r.dirty, r.shut = newPSN(), r.device, r.slots, false, false
		if r != q.notify {
			q.free += r.limit
		}
		r.inbox = creditInbox{next: r.credited, slots: r.inbox.slots, mask: r.inbox.mask}
		clear(r.inbox.slots)
	}
}

// newPSN draws the first packet sequence number of a connection, so that packets of an earlier one
// do not fit.
func newPSN() uint32 { return rand.Uint32() & (1<<24 - 1) }
