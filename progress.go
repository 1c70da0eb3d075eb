package ibverbx

// progress continues after completions were handled: it gives more work to the rails, and reports
// finished requests to the user.
func (q *VirtualQP) progress(out *sink) {
	if q.line.closed {
		return
	}
	if q.pass != nil {
		if q.line.err != nil {
			q.stopAgain()
		}
		return
	}
	if q.line.suspect != nil {
		q.failSuspect()
	}
	dispatched := q.failover != nil && q.continueFailover()
	if q.line.err != nil {
		if q.failover != nil && q.failover.paused() {
			q.stopUnposted() // an earlier message may be lost with its rail
		}
		q.send.dispatchDue()
		q.postStaged()
	} else if q.send.busy() {
		q.dispatch()
	}
	q.send.report(&q.line, q.num, out)
	if q.recv.busy(q.cfg.Scheme) {
		q.progressRecvs(out, dispatched)
	}
	switch {
	case q.line.err == nil:
	case !q.line.dead:
		q.linger(out)
	default:
		q.stopAgain()
	}
	if q.observer != nil {
		q.observer.reported(&q.send, &q.recv)
	}
}

// continueFailover does failover's work that does not follow from a completion. It reports whether
// it has dispatched receives.
func (q *VirtualQP) continueFailover() (dispatched bool) {
	x := q.failover
	if x.idle() {
		return false
	}
	x.loseIdle()
	for _, rl := range q.send.rails.all {
		q.raise(x.continueLost(rl))
	}
	switch {
	case q.line.err != nil:
		if first := x.dropLost(); first != never {
			q.stopFrom(first)
		}
		return false
	case q.line.ending():
		return false
	}
	if next, now := x.agree(); !next.IsZero() {
		q.cq.touchAt(q, next, now) // nothing else may lead here in time
	}
	q.dispatchRecvs() // before the control messages that announce them
	if !q.line.ending() {
		q.raise(x.sendControls())
	}
	switch {
	case q.line.ending(): // a refusal has ended the connection
	case x.protocol.Waits():
		q.raise(x.overdue())
	default:
		x.repost()
		q.postStaged()
	}
	if x.finish() {
		q.cq.touch(q) // no completion may lead here again
	}
	return true
}

// stopAgain repeats the move to ERR of queue pairs that have refused it, and reports whether all
// are in ERR now. If not, the next progress tries again.
func (q *VirtualQP) stopAgain() (stopped bool) {
	if stopped = q.send.rails.stopAgain(); !stopped {
		q.cq.touch(q)
	}
	return stopped
}

// dispatch stages what can be sent, and posts it.
func (q *VirtualQP) dispatch() {
	if q.failover == nil || !q.failover.paused() {
		q.send.dispatch()
	}
	q.postStaged()
}

// postStaged posts all staged work. A permanent refusal is a failure of its request; the other
// rails' work is then posted.
func (q *VirtualQP) postStaged() {
	for {
		var rl *rail
		var err error
		if q.observer == nil {
			rl, err = q.send.post()
		} else {
			rl, err = q.send.postObserved()
		}
		if rl == nil {
			break
		}
		q.postFailed(rl, err)
	}
	if q.send.blocked {
		q.cq.touch(q)
	}
}

// dispatchRecvs posts receives as far as the queues have room, and gives banked notifications to
// receives that wait for one.
func (q *VirtualQP) dispatchRecvs() {
	if !q.line.mayPostReceives() {
		return
	}
	s := &q.recv
	// Receives that come back from a lost rail go before later ones.
	held := q.failover != nil && q.failover.protocol.Unflushed()
	if s.nextMessage != s.win.Tail && !held {
		if refused := s.postWaiting(q.send.rails.sendRail, true, &s.nextMessage); refused != nil {
			q.recvRefused(refused)
		}
	}
	switch {
	case s.nextBare == s.win.Tail:
	case q.cfg.Scheme == DQPLB:
		if s.deliverBanked() {
			q.cq.touch(q)
		}
	case !held:
		if refused := s.postWaiting(q.send.rails.finalRail, false, &s.nextBare); refused != nil {
			q.recvRefused(refused)
		}
	}
}

// progressRecvs continues with receives after completions were handled. dispatched says that
// failover has already dispatched them: a post that a queue pair refuses for now is tried once per
// poll.
func (q *VirtualQP) progressRecvs(out *sink, dispatched bool) {
	if !dispatched {
		q.dispatchRecvs()
	}
	q.postDueCredits(false)
	q.recv.report(&q.line, q.num, out)
}
