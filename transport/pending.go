package transport

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Outcome is the result of a pending function.
type Outcome uint8

const (
	// PendingDone removes the request.
	PendingDone Outcome = iota
	// PendingProgress keeps it: it is called again after the other endpoints had their turn.
	PendingProgress
	// PendingNoResource keeps it until resources are back, because a send met ErrNoResource. If no
	// send on this endpoint did, because the request waits for another endpoint or for something
	// else, it is called again in each round of progress; a goroutine that waits sleeps a
	// millisecond at most then.
	PendingNoResource
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case PendingDone:
		return "done"
	case PendingProgress:
		return "progress"
	case PendingNoResource:
		return "no resource"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Pending is a request to be called back when an endpoint has resources again. It may be part of a
// structure of the caller's, and be queued again once its function has returned PendingDone. It
// must not be copied.
type Pending struct {
	_ guard.NoCopy

	// Func runs inside progress when it is this request's turn. Its sends go through head, the
	// view of the endpoint from the head of its queue: on the endpoint itself they would meet
	// ErrNoResource, because nothing overtakes the queue. It may send on other endpoints, and queue
	// requests, this one included, on any. After the endpoint has failed it is called once, and its
	// sends fail.
	Func func(req *Pending, head *Endpoint) Outcome

	link    list.Link[Pending]
	running bool // the function runs, or has returned and the outcome is not handled yet
	// callAgain is for sending.readyRequest: a send on a view of NotifyReady met ErrNoResource
	// while the function ran.
	callAgain bool
	internal  bool // a flush that waits to begin; Purge leaves it, because no program queued it
	fence     bool // Fence was called between the request before and this one
	// missing is the set of resources that must come back before the function is called again; if
	// it is empty, the function is called in its turn.
	missing resources
	asked   uint64 // with needUnknown: schedule.rounds when the function returned
}

// pendingQueue is the queue of an endpoint. Its first request leaves the list while its function
// runs, and counts as pending nevertheless.
//
// Invariant: while requests are listed and none runs, the endpoint is scheduled.
type pendingQueue struct {
	list      list.List[Pending]
	running   *Pending       // the request whose function runs
	purge     func(*Pending) // set by Purge: gets the running request, if that wants to stay
	scheduled bool           // the endpoint is in Worker.schedule
}

// first returns the first listed request; nil if there is none.
func (q *pendingQueue) first() *Pending { return q.list.First() }

// waits reports whether a request is listed.
func (q *pendingQueue) waits() bool { return !q.list.Empty() }

// any reports whether a request is pending.
func (q *pendingQueue) any() bool { return !q.list.Empty() || q.running != nil }

// check returns how the invariant is broken; nil while it holds.
func (q *pendingQueue) check() error {
	if q.waits() && q.running == nil && !q.scheduled {
		return fmt.Errorf("%d requests are pending, and the endpoint is not scheduled", q.list.Len())
	}
	return nil
}

// Pending queues a request behind those that the endpoint has. If the endpoint has resources and no
// queue, it returns ErrBusy: try the send again, it may succeed now. So no wake-up is lost between
// a send that met ErrNoResource and this call.
func (e *Endpoint) Pending(req *Pending) error {
	p := e.peer
	s := &p.sending
	p.w.mu.Lock()
	defer p.unlock()
	switch {
	case req == nil:
		return p.refuse("pending", verbs.ErrInvalid, "no request")
	case req.Func == nil:
		return p.refuse("pending", verbs.ErrInvalid, "the request has no Func")
	case req.link.Listed():
		return p.refuse("pending", verbs.ErrInvalid, "the request is queued already")
	}
	if err := e.usable("pending"); err != nil {
		return err
	}
	if !s.pending.any() && !p.stillBlocked(s.missing, 0) {
		s.missing = 0 // the next attempt records it again
		return ErrBusy
	}
	p.enqueue(req)
	return nil
}

// enqueue queues a request, and schedules the endpoint.
func (p *peerState) enqueue(req *Pending) {
	s := &p.sending
	req.fence, s.fence.later = s.fence.later, false
	if req.missing = 0; !s.pending.any() {
		req.missing = s.missing
	}
	s.missing = 0
	s.pending.list.PushBack(&req.link, req)
	p.w.stats.pending++
	p.schedule()
}

// NotifyReady returns a view of the endpoint whose sends need no [Pending]: when one of them meets
// ErrNoResource, EndpointConfig.OnReady is called once resources are back. Until then nothing
// overtakes it, as with [Endpoint.Pending].
func (e *Endpoint) NotifyReady() *Endpoint {
	if e.head {
		return &e.peer.views[viewHead|viewNotify]
	}
	return &e.peer.views[viewNotify]
}

// BypassQueue returns a view of the endpoint whose sends do not wait behind pending requests, nor
// for a [Endpoint.Fence] that does. Use it for operations that need no order and fewer resources
// than the queue may be waiting for: a get needs no credit, so it need not wait behind active
// messages that do. When a send meets ErrNoResource, the first request of the queue is called again
// once resources are back; if there is none, queue one.
func (e *Endpoint) BypassQueue() *Endpoint { return &e.peer.views[viewBypass] }

// callOnReady is the function of sending.readyRequest. That request stays in the queue if a send on
// a view of NotifyReady met ErrNoResource again: see runPending.
func callOnReady(_ *Pending, head *Endpoint) Outcome {
	if f := head.peer.cfg.OnReady; f != nil {
		f(head.NotifyReady())
	}
	return PendingDone
}

// Purge empties the endpoint's queue: it passes every request to fn, once, in order, without
// running its function. A request whose function runs at that moment is passed to fn when that
// function returns, unless it returns PendingDone. fn runs during the call; it may queue requests
// anew. Purge panics if fn is nil.
func (e *Endpoint) Purge(fn func(req *Pending)) {
	if fn == nil {
		panic("transport: purge without a function")
	}
	p := e.peer
	w, s := p.w, &p.sending
	w.mu.Lock()
	q := &s.pending
	if q.running != nil {
		q.purge = fn
	}
	var purged, stay list.List[Pending]
	for req := q.list.PopFront(); req != nil; req = q.list.PopFront() {
		if req.internal {
			stay.PushBack(&req.link, req)
			continue
		}
		s.fence.later = s.fence.later || req.fence
		req.fence = false
		switch req {
		case &s.readyRequest: // no program has queued that one
		case q.running: // has queued itself again; fn gets it once
			q.purge = func(*Pending) {}
			fallthrough
		default:
			purged.PushBack(&req.link, req)
		}
	}
	q.list = stay
	for {
		req := purged.PopFront() // under the lock: until then it counts as queued
		p.unlock()
		if req == nil {
			w.sleep.wake() // a goroutine may wait for the queue to be empty
			return
		}
		fn(req)
		w.mu.Lock()
	}
}

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
	// asking reports that the last round left a request that waits for something that no event
	// announces.
	asking bool
}

// waits reports whether an endpoint waits to be served.
func (s *schedule) waits() bool { return s.queue.Len() != 0 }

// asks reports whether a request's function must be called again although no event wakes a
// goroutine for it.
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
		req.missing, req.asked = needUnknown, w.schedule.rounds // no send recorded what it waits for
	}
	q.list.PushFront(&req.link, req)
	return outcome
}
