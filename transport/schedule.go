package transport

// dispatchBudget bounds the pending functions that one round of progress runs.
const dispatchBudget = 256

// schedule puts the endpoint behind those that wait to be served.
func (p *peerState) schedule() {
	if q := &p.sending.pending; !q.scheduled {
		q.scheduled = true
		p.w.scheduled.Push(p)
	}
}

// dispatchPending serves endpoints in turn, one request each, as long as there is anything that
// they can use. It is called with mu held, and releases it while a function runs. It returns how
// many requests were served; one that could not go at all does not count, since a caller would poll
// for it.
func (w *Worker) dispatchPending() (did int) {
	ran, blocked := 0, 0 // functions, and endpoints in a row that could not go
	for w.scheduled.Len() != 0 && blocked < w.scheduled.Len() && ran < dispatchBudget {
		p := w.scheduled.Pop()
		s := &p.sending
		s.pending.scheduled = false
		if !s.pending.waits() || s.pending.running != nil {
			continue
		}
		if req := s.pending.first(); p.ending.err == nil && p.stillBlocked(req.missing, req.seen) {
			p.schedule()
			blocked++
			continue
		}
		ran++
		tail := s.ops.Tail
		if w.runPending(p) == PendingNoResource && s.ops.Tail == tail {
			blocked++
		} else {
			did++
			blocked = 0 // who was served stands behind all who were not when the round ends
		}
		if s.pending.waits() {
			p.schedule()
		}
	}
	return did
}

// runPending runs the function of an endpoint's first request and does what it answers.
func (w *Worker) runPending(p *peerState) Outcome {
	s := &p.sending
	q := &s.pending
	req := q.list.PopFront()
	q.running, req.running = req, true
	s.fence.now = s.fence.now || req.fence && !s.idle()
	req.fence = false
	req.callAgain, req.missing = false, 0
	last := p.ending.err != nil
	w.mu.Unlock()
	outcome := req.Func(req, &p.views[viewHead])
	w.mu.Lock()
	q.running, req.running = nil, false
	purge := q.purge
	q.purge = nil
	if req.callAgain {
		outcome = PendingProgress // what another goroutine's send met may have been nothing but this request
		if req.missing != 0 {
			outcome = PendingNoResource
		}
	}
	switch {
	case outcome == PendingDone || outcome > PendingNoResource || last || req.link.Listed():
		return PendingDone
	case purge != nil && !req.internal:
		if req != &s.readyRequest {
			w.mu.Unlock()
			purge(req)
			w.mu.Lock()
		}
		return PendingDone
	case outcome == PendingNoResource && req.missing == 0:
		// It met no refusal that says what it waits for: any completion may change its mind.
		req.missing, req.seen = needUnknown, w.completions
	}
	q.list.PushFront(&req.link, req)
	return outcome
}
