package tagged

import (
	"errors"
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/internal/worded"
	"ibverbx/transport"
)

// peerFailed is the transport's OnError: the endpoint beneath has failed.
func (e *Endpoint) peerFailed(_ *transport.Endpoint, err error) {
	e.w.mu.Lock()
	e.fail(err)
	if guard.Checked {
		e.check()
	}
	e.w.unlockAndReport()
}

// fail ends an endpoint's service. Only the first cause counts; OnError is called with it, unless
// the program is closing the endpoint and has nothing outstanding.
func (e *Endpoint) fail(cause error) {
	if e.err != nil {
		return
	}
	w := e.w
	w.stats.failures++
	var below *transport.EndpointError
	if errors.As(cause, &below) { // names the peer
		cause = &worded.Error{Err: fmt.Errorf("tagged: %w", cause)}
	} else {
		cause = &worded.Error{Err: fmt.Errorf("tagged: %s: %w", e.name, cause)}
	}
	_ = e.end(cause)
	if e.stage < stageParting {
		w.failed = append(w.failed, e)
	}
}

// violated fails the endpoint because of what the peer has sent.
func (e *Endpoint) violated(why error) {
	if e.err == nil {
		e.w.stats.violations++
		e.fail(fmt.Errorf("%w: %w", ErrProtocol, why))
	}
}

// end completes every request of the endpoint with an error. It closes the queue pair first: after
// that no NIC of this end serves a read of the peer's, so the buffers of sends are free. Reads of
// this end that are under way end with their completions.
func (e *Endpoint) end(err error) (aborting error) {
	if e.err != nil {
		return nil
	}
	w := e.w
	e.err = err
	w.endpoints.ended(err)
	if e.stage != stageParting {
		aborting = e.tep.Abort(&e.transportEnd)
	}
	for r := e.queue.PopFront(); r != nil; r = e.queue.PopFront() {
		e.waiting.remove(r)
		r.complete(err)
	}
	for _, r := range e.waiting.slots {
		if r != nil {
			e.waiting.remove(r)
			r.complete(err)
		}
	}
	if r := e.partial.req; r != nil {
		e.partial.req = nil
		r.complete(err)
	}
	e.posted.endAll(err)
	if w.endpoints.alive == 0 && !w.closed {
		w.endAwaited(err)
	}
	for rd := e.readQueue.PopFront(); rd != nil; rd = e.readQueue.PopFront() {
		if rd.under == 0 {
			rd.end()
		}
	}
	return aborting
}

// endAll completes all receives.
func (p *posted) endAll(err error) {
	for _, m := range p.all() {
		p.remove(m)
		m.req.complete(err)
	}
}

// endAwaited completes the receives of RecvWait when no endpoint is left; err is why the last one
// ended.
func (w *Worker) endAwaited(err error) {
	p := &w.matching.posted
	for _, m := range p.all() {
		if m.req.awaited {
			p.remove(m)
			m.req.complete(noPeer(err))
		}
	}
}

// transportEnded runs in progress once nothing of an aborted transport endpoint is outstanding. It
// reports failures that were noticed outside of progress.
func (e *Endpoint) transportEnded(*transport.Completion) {
	e.w.mu.Lock()
	e.w.unlockAndReport()
}
