package sendside

import (
	"errors"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// request is a pending request: an operation to send, and perhaps more after it.
type request struct {
	e      *end
	p      transport.Pending
	want   *op  // the operation to send; nil after it was accepted
	more   int  // how many more to draw after it
	own    bool // it stands for OnReady: the library queues it
	fence  bool // a fence was called before it was queued
	last   bool // the endpoint had failed before its function began
	purged bool // the queue was emptied while its function ran
	done   bool
}

// sendOrQueue tries an operation and queues a request for it after ErrNoResource.
func (e *end) sendOrQueue() {
	w := e.w
	if !e.connected {
		return
	}
	o := e.newFlush()
	if !w.OneIn(4) {
		o.drop()
		var ok bool
		if o, ok = e.newOp(); !ok {
			return
		}
	}
	err := e.sendOn(o, e.ep, plain)
	if err == nil {
		if w.OneIn(3) {
			e.checkBusy()
		}
		return
	}
	if err != transport.ErrNoResource {
		o.drop()
		return
	}
	r := &request{e: e, want: o, more: w.Pick(0, 0, 0, 1, 3)}
	r.p.Func = r.run
	if err := e.pend(r); err != nil {
		w.Broken(ruleBusy, "%v met ErrNoResource, and Pending says %v", o, err)
	}
}

// pend queues a request.
func (e *end) pend(r *request) error {
	e.w.calling++
	err := e.ep.Pending(&r.p)
	e.w.calling--
	e.w.Logf("  %v: pending: %v", e, err)
	if err == nil {
		e.enqueue(r)
	}
	return err
}

// checkBusy tries to queue a request although no operation was refused.
func (e *end) checkBusy() {
	w := e.w
	g := e.gauge()
	idle := len(e.queue) == 0 && g.Pending == 0 && e.running == nil
	r := &request{e: e}
	r.p.Func = r.run
	err := e.pend(r)
	full := g.Outstanding >= g.Limit || g.Credits == 0 || g.bounce == 0 || w.Refusing() ||
		e.turnedAway
	switch {
	case err == nil && idle && !full:
		w.Broken(ruleBusy, "%v: a request was queued, and nothing is missing: %+v", e, g)
	case err == transport.ErrBusy && (!idle || g.Outstanding >= g.Limit):
		w.Broken(ruleBusy, "%v: ErrBusy, and a send would not do: %+v, %d queued", e, g, len(e.queue))
	case err != nil && err != transport.ErrBusy:
		w.Broken(ruleBusy, "%v: pending: %v", e, err)
	}
}

// begin begins the function of a request, which must be the first of its queue.
func (r *request) begin(what string) {
	e := r.e
	w := e.w
	w.enter(e.site, what)
	if w.round && w.delivered {
		w.Broken(rulePlace, "%s after a completion in the same round", what)
	}
	if len(e.queue) == 0 || e.queue[0] != r {
		w.Broken(ruleQueue, "%s, and %d requests are before it", what, len(e.queue))
	}
	e.queue = e.queue[1:]
	e.running, r.last = r, e.ep.Err() != nil
	clear(e.skipped)
	if r.fence {
		r.fence = false
		e.fenceHere()
	}
}

// end ends the function. stays says whether the request wants to stay in the queue.
func (r *request) end(stays bool) {
	e := r.e
	e.running = nil
	switch {
	case stays && r.last: // after a failure it is called only once
		r.done = true
	case stays && r.purged:
		e.handing = r
	case stays:
		e.queue = append([]*request{r}, e.queue...)
	default:
		r.done = true
	}
	r.purged = false
	e.w.leave()
}

// run is the function of a request.
func (r *request) run(p *transport.Pending, face *transport.Endpoint) transport.Outcome {
	e := r.e
	w := e.w
	r.begin(sprintf("pending request of %v", e))
	failed := e.ep.Err() != nil
	if p != &r.p {
		w.Broken(ruleQueue, "%v: the function of a request is given another", e)
	}
	if r.want == nil && r.more == 0 {
		r.end(false)
		return transport.PendingDone
	}
	if failed && e.errors == 0 && !e.ends() {
		w.Broken(ruleNoticed, "%v has failed, and a pending function runs before OnError", e)
	}
	if !failed && !w.finishing && w.OneIn(16) { // it waits for something else
		clear(e.skipped)
		r.end(true)
		return transport.PendingNoResource
	}
	if r.want == nil {
		r.more--
		r.want, _ = e.newOp()
	}
	if r.want != nil {
		err := e.sendOn(r.want, face, fromQueue)
		switch {
		case failed && err == nil:
			w.Broken(lab.Refusal, "%v was accepted after the endpoint has failed", r.want)
		case err == transport.ErrNoResource:
			r.end(true)
			return transport.PendingNoResource
		case err != nil:
			r.want.drop()
			r.want, r.more = nil, 0
			r.end(false)
			return transport.PendingDone
		}
		e.served(r.want)
		r.want = nil
	}
	if w.OneIn(12) {
		e.purge()
	}
	switch {
	case r.more != 0 && !failed:
		r.end(true)
		return transport.PendingProgress
	case !failed && !w.finishing && w.OneIn(8):
		r.requeue()
	default:
		e.react()
	}
	r.end(false)
	return transport.PendingDone
}

// requeue queues the running request after all others, for one more operation.
func (r *request) requeue() {
	r.more = 1
	if err := r.e.pend(r); err != nil && !r.e.closing {
		r.e.w.Broken(ruleBusy, "%v: a request that runs cannot be queued again: %v", r.e, err)
	}
}

// mostSkipped is how often another endpoint may be served before one that waits only for a bounce
// buffer.
const mostSkipped = 3

// served records that a request has got a shared bounce buffer, and checks that other endpoints
// that wait for one get their turn.
func (e *end) served(took *op) {
	w := e.w
	if !took.kind.bounces() || took.ownBuffer {
		return
	}
	for _, o := range e.site.ends {
		if o == e || len(o.queue) == 0 || o.ep.Err() != nil {
			continue
		}
		r, g := o.queue[0], o.ep.Stats()
		if r.want == nil || g.Outstanding >= g.Limit || r.want.kind.am() && g.Credits == 0 {
			clear(o.skipped) // it waits for something else
			continue
		}
		if o.skipped[e]++; o.skipped[e] > mostSkipped {
			w.Broken(ruleFair, "%v waits, and %v was served %d times", o, e, o.skipped[e])
		}
	}
}

// onReady is EndpointConfig.OnReady.
func (e *end) onReady(face *transport.Endpoint) {
	w := e.w
	e.notifyReq.begin(sprintf("%v is ready", e))
	e.notifyAgain = false
	failed := e.ep.Err() != nil
	for range w.Pick(0, 1, 1, 2) {
		o, ok := e.newOp()
		if ok && w.finishing {
			o.drop()
		}
		if !ok || w.finishing {
			break
		}
		if err := e.try(o, face, fromQueue); err != nil {
			e.notifyAgain = e.notifyAgain || err == transport.ErrNoResource
			break
		}
		e.served(o)
	}
	e.notifyReq.end(e.notifyAgain && !failed && e.ep.Err() == nil)
}

// purge empties the queue. A running request is handed back afterwards if it wants to stay.
func (e *end) purge() {
	w := e.w
	if !e.connected {
		return
	}
	running := e.running
	want := e.queue
	e.queue = nil
	for _, r := range want {
		e.fenceNext = e.fenceNext || r.fence
		r.fence = false
	}
	n := 0
	w.calling++
	e.ep.Purge(func(p *transport.Pending) {
		for n < len(want) && want[n].own {
			n++ // the library does not hand back its own request
		}
		if e.handing != nil && p == &e.handing.p {
			e.handing.giveUp()
			e.handing = nil
			return
		}
		if n == len(want) || p != &want[n].p {
			w.Broken(rulePurge, "%v: request %d of %d that a purge hands back is another, or was handed "+
				"back before", e, n, len(want))
		}
		want[n].giveUp()
		n++
	})
	w.calling--
	for n < len(want) && want[n].own {
		n++
	}
	if n != len(want) {
		w.Broken(rulePurge, "%v: a purge hands back %d of %d requests", e, n, len(want))
	}
	if running != nil && !running.own {
		running.purged = true
	}
	if g := e.ep.Stats(); g.Pending != e.waitingFlushes && g.Pending > e.waitingFlushes {
		w.Broken(rulePurge, "%v: %d requests are in the queue after a purge", e, g.Pending)
	}
}

// giveUp ends a request that was handed back.
func (r *request) giveUp() {
	r.done = true
	if r.want != nil {
		r.want.drop()
		r.want = nil
	}
}

// newFlush makes a flush.
func (e *end) newFlush() *op {
	return &op{e: e, kind: flushLocal + opKind(e.w.Rng.IntN(2)), group: e.w.newGroup()}
}

// look checks counters, and queries of an endpoint.
func (e *end) look() {
	w := e.w
	s := e.site.worker.Stats()
	g := e.gauge()
	if s.BounceFree < 0 || s.BounceFree > s.BounceTotal || g.Outstanding < 0 || g.Credits < 0 {
		w.Broken(ruleBalance, "%v: %+v, %+v", e, s, g)
	}
	if g.Credits > e.peer.site.cfg.AMBuffers {
		w.Broken(ruleCredits, "%v: %d credits for %d buffers", e, g.Credits, e.peer.site.cfg.AMBuffers)
	}
	if err := e.ep.Err(); err != nil && !e.ends() && e.mayFail() == "" {
		w.Broken(lab.Isolation, "%v: %v", e, err)
	}
	if e.ep.Name() != e.name || e.ep.Value() != any(e) || e.ep.Worker() != e.site.worker {
		w.Broken(ruleBalance, "%v has another name, value or worker", e)
	}
	if e.closed {
		if err := e.ep.Abort(nil); !errors.Is(err, transport.ErrClosed) {
			w.Broken(lab.Refusal, "%v: abort after the end: %v", e, err)
		}
	}
}
