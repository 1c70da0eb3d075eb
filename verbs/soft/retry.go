package soft

import "ibverbx/verbs"

// awaitPeer holds q back because its peer does not answer. It tries again when a timer expires or
// the path changes.
func (f *Fabric) awaitPeer(q *QP) {
	q.run.wait = waitPeer
	f.engine.retryAfter(q, verbs.AckTimeout(q.core.Attr.Timeout))
}

// awaitReceive holds q back because the peer has no receive posted. It returns false if the RNR
// retries of q are used up.
func (f *Fabric) awaitReceive(q, p *QP) bool {
	r := &q.run
	if q.core.Attr.RNRRetry != verbs.RNRRetryForever {
		if r.rnrTries >= int(q.core.Attr.RNRRetry) {
			return false
		}
		r.rnrTries++
	}
	r.wait = waitRNR
	f.engine.retryAfter(q, verbs.RNRTimer(p.core.Attr.MinRNRTimer))
	return true
}

// receivesPosted resumes the peer of p if it found no receive at p. That costs the peer no retry.
func (f *Fabric) receivesPosted(p *QP) {
	q := p.partner()
	if q == nil || q.run.wait != waitRNR || q.partner() != p {
		return
	}
	q.run.rnrTries = max(q.run.rnrTries-1, 0)
	f.resume(q)
}

// pathsChanged resumes every queue pair whose peer did not answer. That costs no retry, either.
func (f *Fabric) pathsChanged() {
	for _, d := range f.devices {
		for _, q := range d.qps.All {
			if q.run.wait == waitPeer {
				f.resume(q)
			}
		}
	}
}

// readyToReceive resumes the peer of p if p did not answer it before.
func (f *Fabric) readyToReceive(p *QP) {
	if q := p.partner(); q != nil && q.run.wait == waitPeer {
		f.resume(q)
	}
}

// resume ends q's wait.
func (f *Fabric) resume(q *QP) {
	q.run.wait = waitNone
	f.engine.retryAfter(q, 0)
	f.engine.ready(q)
}

// overdue reports whether acknowledgements that q awaits may be lost: the path is down or the peer
// has failed.
func (q *QP) overdue() bool {
	return q.unacknowledged() && !q.core.SQ.At(q.core.SQ.Acked).Local &&
		(!q.linked() || q.peer == nil || q.peer.core.Closed || !q.peer.core.Receptive())
}

func (q *QP) unacknowledged() bool { return q.core.SQ.Acked != q.core.SQ.Executed }

// timeout handles an expired retry timer. The transport timer counts retries; when they are used up
// it ends the oldest unacknowledged request.
func (f *Fabric) timeout(q *QP) {
	r := &q.run
	if r.wait == waitPeer || r.wait == waitNone && q.overdue() {
		r.tries++
		if r.tries > int(q.core.Attr.RetryCount) {
			r.wait = waitNone
			f.exhausted(q)
			return
		}
	}
	f.resume(q)
}

// exhausted ends the oldest request of q with RETRY_EXC_ERR.
func (f *Fabric) exhausted(q *QP) {
	if !q.unacknowledged() {
		if q.core.SQ.Executed == q.core.SQ.Posted {
			return
		}
		f.fail(q, verbs.StatusRetryExcErr, 0)
		return
	}
	s := q.core.SQ.At(q.core.SQ.Acked)
	s.Status, s.Local, s.Mark = verbs.StatusRetryExcErr, true, 0
	q.run.failed = true
	f.engine.executed(q)
}
