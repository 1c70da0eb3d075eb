package ibverbx

import (
	"errors"
	"time"

	"ibverbx/verbs"
)

// line is the life of a virtual queue pair from RESET to RESET: its state, how far it is drained,
// and its failure. It decides what may still be posted, and why not.
//
// The line runs until it stops at a request: that request and every later one post nothing more.
// Their work on the NICs completes or is flushed; then they are reported as flushed, except the one
// that failed first, which reports its own status. Requests before the stop run to completion. The
// line is dead when nothing at all is posted any more: the rails are in ERR, destroyed, or reset.
//
// A reset makes a fresh line.
//
// Invariant: err == nil implies failedReq == 0; failedReq != 0 implies stopAt <= failedReq; closed
// implies dead.
type line struct {
	state  verbs.QPState // reached by the last Modify or Connect
	phase  drainPhase    // how far Drain, Shutdown, Close or Reset has come
	dead   bool
	closed bool // the virtual queue pair was closed

	err *FailedError // the first error; later ones follow from it
	// stopAt is the first send request that posts nothing more; never while the line runs.
	stopAt uint64
	// suspect is a rail whose receives were flushed while it had sends outstanding and nothing else
	// had failed. Its sends report the cause; if all of them succeed, the flush itself is the
	// error.
	suspect   *rail
	failedReq uint64    // the send request that failed with err; 0 for none
	failedAt  time.Time // when err was recorded
	clock     func() time.Time
	// reported says that a send was reported with its own error. Every later one is reported as
	// flushed.
	reported bool
	// schemeUnsaid says that the peer's card named no scheme: it is assumed to be this end's.
	schemeUnsaid bool
}

// never is a request number that is not reached.
const never = 1<<64 - 1

// newLine returns the line of a virtual queue pair in RESET.
func newLine(clock func() time.Time) line {
	return line{state: verbs.StateReset, stopAt: never, clock: clock}
}

// drainPhase is how far a Drain has come.
type drainPhase uint8

const (
	drainNone  drainPhase = iota
	drainSends            // posts are refused; sends run to completion
	// drainRecvs: the queue pairs are in ERR and flush their receives. Close and Reset begin here,
	// and flush sends too.
	drainRecvs
	drainDone // everything accepted has its completion
)

// canSend returns why no send can be accepted; nil if sends can.
func (l *line) canSend() error {
	if l.state == verbs.StateRTS && l.phase == drainNone && l.err == nil && !l.closed {
		return nil
	}
	if err := l.refusal(); err != nil {
		return err
	}
	return ErrNotConnected
}

// canRecv returns why no receive can be accepted; nil if receives can.
func (l *line) canRecv() error {
	if err := l.refusal(); err != nil {
		return err
	}
	if l.state == verbs.StateReset {
		return ErrNotConnected
	}
	return nil
}

// refusal returns why nothing is accepted in any state of the connection; nil if there is no such
// reason.
func (l *line) refusal() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.err != nil:
		return ErrFailed
	case l.phase != drainNone:
		return ErrDraining
	}
	return nil
}

// mayPostReceives reports whether receives and credits may still be posted.
func (l *line) mayPostReceives() bool { return !l.dead && l.phase < drainRecvs }

// shown returns the state that the user sees.
func (l *line) shown() verbs.QPState {
	switch {
	case l.err != nil:
		return verbs.StateErr
	case l.phase == drainSends:
		return verbs.StateSQD
	}
	return l.state
}

// flushAsked reports whether a status is a flush that Drain, Close or Reset has caused, which is
// not a failure.
func (l *line) flushAsked(s verbs.Status) bool {
	return s == verbs.StatusWRFlushErr && l.phase >= drainRecvs
}

// fail records the first error, and reports whether this one was. req is the send request that
// failed, 0 for none; the caller stops the line there.
func (l *line) fail(req uint64, f *FailedError) (first bool) {
	if l.err != nil {
		return false
	}
	l.err, l.failedReq, l.failedAt = f, req, l.clock()
	return true
}

// stop stops the line at request n, unless it has stopped before.
func (l *line) stop(n uint64) { l.stopAt = min(l.stopAt, n) }

// lingered reports whether the time for requests before the failed one is over.
func (l *line) lingered(patience time.Duration) bool {
	return l.clock().Sub(l.failedAt) > patience
}

// flushes reports whether send request n is reported as flushed, regardless of its work requests:
// the line stopped before it, and it is not the one that reports its own status.
func (l *line) flushes(n uint64) bool {
	return n > l.stopAt && (n != l.failedReq || l.reported)
}

// sendReported records that an unsuccessful send was reported.
func (l *line) sendReported(status verbs.Status) {
	l.reported = l.reported || status != verbs.StatusWRFlushErr
}

// ending reports whether the connection has failed, or is being flushed on purpose. Lost rails are
// then not settled.
func (l *line) ending() bool { return l.err != nil || l.phase >= drainRecvs }

// withholds reports whether the completion of a failed receive must wait: a program that sees it
// calls Err, which does not have the cause yet.
func (l *line) withholds() bool { return l.suspect != nil && l.err == nil && !l.dead }

// drain begins a drain, unless a later phase has begun.
func (l *line) drain() { l.phase = max(l.phase, drainSends) }

// flushing begins the flush of Close and Reset, unless a later phase has begun.
func (l *line) flushing() { l.phase = max(l.phase, drainRecvs) }

// sendsDrained ends the first phase of a drain.
func (l *line) sendsDrained() { l.phase, l.state = drainRecvs, verbs.StateErr }

// close ends the line for good.
func (l *line) close() { l.dead, l.closed, l.state = true, true, verbs.StateErr }

// resetFailed ends a line whose queue pairs could not be reset.
func (l *line) resetFailed() { l.dead, l.state = true, verbs.StateErr }

// forgetFlush drops an error that is only a flush, if the NIC cannot be reset: the error of the
// reset says more.
func (l *line) forgetFlush() {
	if l.err != nil && errors.Is(l.err, verbs.StatusWRFlushErr) {
		l.err, l.failedReq = nil, 0
	}
}

// check panics if the invariant does not hold.
func (l *line) check() {
	if l.err == nil && l.failedReq != 0 {
		broken("line: request %d failed without an error", l.failedReq)
	}
	if l.failedReq != 0 && l.stopAt > l.failedReq {
		broken("line: stopped at %d behind the failed request %d", l.stopAt, l.failedReq)
	}
	if l.closed && !l.dead {
		broken("line: closed and not dead")
	}
}
