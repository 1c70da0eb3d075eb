package ibverbx

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/internal/errwrap"
	"ibverbx/verbs"
)

// Close ends the virtual queue pair and its physical ones. Requests that had completed in order are
// reported as they completed; all other outstanding requests are reported as flushed. You can still
// poll both from the virtual CQ, even after that is closed. When Close returns nil, no NIC accesses
// memory on the virtual queue pair's behalf any more; an error says that a NIC did not confirm it.
// A request that had completed while an earlier one had not counts as outstanding, because
// completions keep their order.
//
// A virtual queue pair with a single queue pair tracks nothing, so the NIC must report what it
// flushes. Close waits for that, at most a second; if the queue is full of unsignaled requests, so
// that the end cannot be detected, until 10 ms after the last flushed one. [VirtualCQ.Close] waits
// for all its queue pairs together. If the NIC refuses to flush for that time, the requests that it
// held are not reported, and Close returns its error.
func (q *VirtualQP) Close() error {
	q.enter()
	err := q.close()
	q.exit()
	return err
}

func (q *VirtualQP) close() error {
	if q.line.closed {
		return fmt.Errorf("ibverbx: close virtual qp %d: %w", q.num, ErrClosed)
	}
	q.cq.collect()
	var err error
	if q.pass != nil && q.line.state != verbs.StateReset {
		q.flush()
		if err = q.unflushed(q.pass.rail); err != nil {
			err = q.railError(q.pass.rail, err)
		}
	}
	err = errors.Join(err, q.closeRails())
	q.endOutstanding()
	q.line.close()
	q.cq.detach(q)
	if q.dom != nil {
		q.dom.release()
	}
	if q.ownsCQ {
		err = errors.Join(err, q.cq.close())
	}
	if q.ownsDomain {
		// The program may have closed it already; it is then freed now.
		if closing := q.dom.Close(); !errors.Is(closing, ErrClosed) {
			err = errors.Join(err, closing)
		}
	}
	return err
}

// closeRails destroys the physical queue pairs that are still open.
func (q *VirtualQP) closeRails() error {
	var errs []error
	for _, r := range q.send.rails.all {
		if r.closed {
			continue
		}
		if err := r.qp.Close(); err != nil {
			errs = append(errs, q.railError(r, err))
			continue
		}
		r.closed = true
	}
	q.line.dead = true
	return errors.Join(errs...)
}

// Reset takes the virtual queue pair back to RESET, whatever has happened to it: outstanding
// requests complete as flushed, the failure is cleared, and you can connect it again. The peer must
// do the same, and both must exchange new cards: packet sequence numbers change, so that neither
// takes a packet of the previous connection for one of the new.
//
// The queue pairs of a NIC that is gone cannot be reset. Outstanding requests are still reported as
// flushed, the error names the rail, and the virtual queue pair stays failed: close it.
func (q *VirtualQP) Reset() error {
	return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState, nil)
}

func (q *VirtualQP) reset() error {
	failedBefore := q.line.err != nil
	q.cq.collect()
	q.flush()
	var errs []error
	var first *rail // the first rail that cannot be reset
	var cause error // why it cannot
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

// reset moves the queue pair to RESET. If it refuses it may still hold requests, so it is
// destroyed.
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

// flush moves every queue pair to ERR and handles what the NICs flush at once. With several queue
// pairs the rest of the work is known here and is ended without the NICs; with a single one it is
// not, so flush waits for it.
func (q *VirtualQP) flush() {
	q.startFlush()
	if q.pass != nil {
		awaitFlushes([]*passThrough{q.pass})
	}
}

// unflushed returns why a single queue pair may hold requests that are never reported: it refused
// to go to ERR until the end. It is nil with several queue pairs, whose requests are all tracked.
func (q *VirtualQP) unflushed(r *rail) error {
	if q.pass == nil || r.stopErr == nil || q.pass.nothingLeft() {
		return nil
	}
	return fmt.Errorf("it refuses to flush what is outstanding: %w", r.stopErr)
}

// startFlush makes the NICs flush what they hold. From here on a flushed request is not a failure.
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
	q.recv.report(&q.line, q.num, &out)
	if q.observer != nil {
		q.observer.reported(&q.send, &q.recv)
	}
	out.settle()
}

// restart puts the virtual queue pair back into RESET. line and railConn are made anew, not cleared
// field by field; each component's restart resets the rest of its state of the connection.
func (q *VirtualQP) restart() {
	q.line = newLine(q.cfg.clock())
	q.send.rails.restart()
	if q.observer != nil {
		q.observer.restart()
	}
	if q.pass != nil {
		q.pass.restart()
		return
	}
	q.send.rails.assignSends(q.cfg.Scheme, false, q.cfg.Failover)
	q.failover = nil
	q.send.restart()
	q.recv.restart()
}

// Drain ends the service of a virtual queue pair in order. From the call on posts are refused with
// [ErrDraining]. Every accepted send runs to completion, and messages that the peer sends meanwhile
// still find their receives; when the last send has ended, the queue pairs go to ERR, and the
// remaining receives are flushed. Drain returns nil when everything that was ever accepted has its
// completion. Poll the completions from the virtual CQ, in order: Drain takes none away. Then
// [VirtualQP.Reset] and Connect, or [VirtualQP.Close].
//
// [VirtualQP.State] is SQD while sends are awaited and ERR from the flush on; [VirtualQP.Err] stays
// nil unless something failed. If something did, before or during the drain, Drain still completes
// everything and returns the [*FailedError] of Err.
//
// If ctx ends first, the error wraps ctx's and says how much is outstanding. Nothing is lost: posts
// stay refused, requests go on, memory stays with the NICs, and you may call Drain again, or Reset,
// Close or [VirtualQP.Shutdown]. Drain looks at the virtual CQ before it looks at ctx: with a ctx
// that has ended, each call is one step that does not wait.
//
// The peer must still be there, or sends fail: if both ends drain, let the one that only receives
// do it last, after the other has reported that it is done. In RESET there is nothing to drain:
// Drain returns nil and changes nothing. In INIT and RTR it flushes the receives. If the virtual
// queue pair was closed, Drain returns [ErrClosed].
//
// Drain polls, and sleeps if the physical CQs have a common CompChannel, as [VirtualCQ.Wait] does;
// other virtual queue pairs of the CQ go on meanwhile. Without a channel it polls every 100 µs. It
// is not for programs that call [VirtualCQ.ProcessCompletions].
//
// A single queue pair tracks nothing, and unsignaled requests that succeed have no completion. So
// Drain posts an empty write after them and waits for its completion, since a queue completes in
// order. The peer's queue pair must allow remote writes, and the queue must have a free slot: a
// queue full of unsignaled requests never has one, since only a later signaled request frees their
// slots. If the write fails, or the NIC refuses it permanently, that is a failure like any other:
// whether the earlier sends have succeeded is then unknown.
//
// In ERR one more request on either queue shows when everything was flushed. If that is impossible,
// because the NIC refuses it or the queue is full of unsignaled requests, Drain waits until no
// flushed request has arrived for 10 ms and takes the queue pair to RESET, or destroys it if RESET
// is refused: after that it holds nothing. Requests that were not reported by then are never
// reported.
func (q *VirtualQP) Drain(ctx context.Context) error {
	q.enter()
	err := q.drainWithin(ctx)
	q.exit()
	return err
}

// Shutdown drains the virtual queue pair for as long as ctx allows, and then closes it in any case:
// Close with a deadline. It returns nil when everything ran to completion, and nothing failed;
// otherwise the errors of [VirtualQP.Drain] and [VirtualQP.Close], joined. With a ctx that has
// ended it is little more than Close. What it completes can be polled from the virtual CQ, even
// after that is closed. Like Drain it polls, and is not for programs that call
// [VirtualCQ.ProcessCompletions].
func (q *VirtualQP) Shutdown(ctx context.Context) error {
	q.enter()
	defer q.exit()
	if q.line.closed {
		return fmt.Errorf("ibverbx: shut down virtual qp %d: %w", q.num, ErrClosed)
	}
	if ctx == nil {
		return fmt.Errorf("ibverbx: shut down virtual qp %d: %w: no context", q.num, verbs.ErrInvalid)
	}
	return errors.Join(q.drainWithin(ctx), q.close())
}

func (q *VirtualQP) drainWithin(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("ibverbx: drain virtual qp %d: %w: no context", q.num, verbs.ErrInvalid)
	}
	if q.line.closed {
		return fmt.Errorf("ibverbx: drain virtual qp %d: %w", q.num, ErrClosed)
	}
	if q.line.state == verbs.StateReset {
		return nil
	}
	q.line.drain()
	for {
		// Arm, look once more, sleep: in any other order a completion that arrives in between wakes
		// nobody.
		if q.drainStep() {
			return q.Err()
		}
		if ctx.Err() != nil {
			return q.undrained(errwrap.ContextErr(ctx))
		}
		armed := q.cq.channel != nil && q.cq.arm("drain", false) == nil
		if armed && q.drainStep() {
			return q.Err()
		}
		q.cq.sleepOrPoll(ctx, armed && (q.pass == nil || !q.pass.mustRetry()))
	}
}

// undrained returns the error of a Drain whose context has ended.
func (q *VirtualQP) undrained(cause error) error {
	what := fmt.Sprintf("sends still outstanding: %d, which the peer's NIC has not answered",
		q.send.win.Len())
	switch {
	case q.pass != nil:
		// Successful unsignaled requests are never subtracted from the count, but there are at most
		// as many as the queues hold.
		rl := q.pass.rail
		what = fmt.Sprintf("at most %d sends and receives are still outstanding",
			min(q.pass.outstanding(), rl.slots+rl.recvLimit))
	case q.send.win.Len() == 0:
		what = fmt.Sprintf("no send is outstanding, %d receives are still to be flushed", q.recv.win.Len())
	}
	err := fmt.Errorf("ibverbx: drain virtual qp %d: %s: %w", q.num, what, cause)
	if q.line.err != nil {
		err = fmt.Errorf("%w; and %w", err, q.line.err)
	}
	return err
}

// drainStep does everything that needs no waiting, and reports whether all requests have their
// completions.
func (q *VirtualQP) drainStep() bool {
	l := &q.line
	q.cq.touch(q)
	q.cq.collect()
	if l.phase == drainSends && q.finishSends() {
		l.sendsDrained()
		q.send.rails.toError()
		q.cq.touch(q)
		q.cq.collect()
	}
	if l.phase == drainRecvs && q.stopAgain() && q.finishRecvs() {
		l.phase = drainDone
	}
	return l.phase == drainDone
}

// finishSends reports whether every send has its completion. A single queue pair must be probed.
func (q *VirtualQP) finishSends() bool {
	if q.pass != nil {
		return q.pass.finishSends()
	}
	return q.send.win.Len() == 0
}

// finishRecvs flushes the receives that nothing can match, since the queue pairs are in ERR, and
// reports whether every receive has its completion.
func (q *VirtualQP) finishRecvs() bool {
	if q.pass != nil {
		return q.pass.finishRecvs()
	}
	if q.line.err == nil && !q.line.dead {
		// Messages that have arrived may still be in the CQs, and will complete receives.
		for _, rl := range q.send.rails.all {
			if rl.recvs != 0 {
				return false
			}
		}
		q.line.dead = true
		q.recv.flushWaiting()
		q.cq.touch(q)
		q.cq.collect()
	}
	return q.recv.win.Len() == 0
}
