package transport

import "ibverbx/internal/ring"

// dispatchBudget bounds the pending functions that one round of progress runs, unless more
// endpoints than that have one.
const dispatchBudget = 256

// schedule is the endpoints that have requests pending, in the order in which dispatchPending
// serves them. Worker.mu guards it.
//
// Invariant: an endpoint is in queue if and only if its pendingQueue.scheduled is set.
type schedule struct {
	queue  ring.FIFO[*peerState]
	rounds uint64 // of dispatchPending
	// asking reports that the last round left a request which waits for something that no event
	// announces.
	asking bool
}

// waits reports whether an endpoint waits to be served.
func (s *schedule) waits() bool { return s.queue.Len() != 0 }

// asks reports whether a request has to be asked again though no event wakes a goroutine for it.
func (s *schedule) asks() bool { return s.asking && s.waits() }

// schedule puts the endpoint behind those that wait for dispatchPending.
func (p *peerState) schedule() {
	if q := &p.sending.pending; !q.scheduled {
		q.scheduled = true
		p.w.schedule.queue.Push(p)
	}
}

// dispatchPending calls one pending function of each endpoint in turn, as long as one of them finds
// resources. It is called with mu held, and releases it while a function runs. It returns how many
// calls had an effect: if calls without one counted, a goroutine that waits would never sleep.
func (w *Worker) dispatchPending() (did int) {
	defer w.die()
	ran, blocked := 0, 0 // calls, and endpoints in a row that lack resources
	queue := &w.schedule.queue
	budget, asking := max(dispatchBudget, queue.Len()), false
	w.schedule.rounds++
	for queue.Len() != 0 && blocked < queue.Len() && ran < budget {
		p := queue.Pop()
		s := &p.sending
		s.pending.scheduled = false
		if !s.pending.waits() || s.pending.running != nil {
			continue
		}
		if p.ending.reporting {
			p.schedule()
			blocked++
			continue
		}
		if req := s.pending.first(); p.ending.err == nil && p.stillBlocked(req.missing, req.asked) {
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
			blocked = 0 // when the round ends, endpoints that were served stand behind all others
		}
		if s.pending.waits() {
			asking = asking || s.pending.first().missing&needUnknown != 0
			p.schedule()
		}
	}
	if asking && !w.schedule.asking {
		w.sleep.wake() // goroutines that sleep already may sleep for too long
	}
	w.schedule.asking = asking
	return did
}

// runPending runs the function of an endpoint's first request, and keeps or removes the request as
// the outcome says. It returns the outcome that counts.
func (w *Worker) runPending(p *peerState) Outcome {
	s := &p.sending
	q := &s.pending
	req := q.list.PopFront()
	q.running, req.running = req, true
	s.fence.now = s.fence.now || req.fence && !s.idle()
	req.fence = false
	req.callAgain, req.missing = false, 0
	last := p.ending.err != nil
	w.life.call(callbackPending)
	w.mu.Unlock()
	outcome := req.Func(req, &p.views[viewHead])
	w.mu.Lock()
	w.life.returned()
	q.running, req.running = nil, false
	purge := q.purge
	q.purge = nil
	if req.callAgain {
		outcome = PendingProgress // a send on another goroutine may have met only this request itself
		if req.missing != 0 {
			outcome = PendingNoResource
		}
	}
	switch {
	case outcome == PendingDone || outcome > PendingNoResource || last || req.link.Listed():
		return PendingDone
	case purge != nil && !req.internal:
		if req != &s.readyRequest {
			w.life.call(callbackPending)
			w.mu.Unlock()
			purge(req)
			w.mu.Lock()
			w.life.returned()
		}
		return PendingDone
	case outcome == PendingNoResource && req.missing == 0:
		req.missing, req.asked = needUnknown, w.schedule.rounds // no send noted what it waits for
	}
	q.list.PushFront(&req.link, req)
	return outcome
}
