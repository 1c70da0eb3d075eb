package tagged

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// closeInterval is the interval at which Close checks whether the last request was cancelled:
// cancelling makes no progress that Close would notice.
const closeInterval = time.Millisecond

// Close ends the endpoint in order: it refuses new sends, waits until all sends, and all messages
// that are being received, have completed, and says goodbye to the peer, whose requests then
// complete with ErrPeerClosed. Agree with the peer on when to close if it may have something to
// send. If ctx ends earlier, or the peer fails, Close aborts the rest and returns the error. An
// endpoint that has failed already is only released. Messages that have arrived whole can be
// received after Close, until closed endpoints have left more than Config.MaxLeftover. Receives for
// this peer alone that nothing has matched complete with ErrClosed.
func (e *Endpoint) Close(ctx context.Context) error {
	if ctx == nil {
		return e.refuse("close", verbs.ErrInvalid, "no context")
	}
	w := e.w
	w.mu.Lock()
	if e.stage > stageOpen {
		w.mu.Unlock()
		return e.refuse("close", ErrClosed, "")
	}
	e.stage = stageClosing
	failedBefore := e.err != nil
	w.mu.Unlock()
	var err error
	if !failedBefore {
		err = w.tw.WaitFor(ctx, closeInterval, e.idle)
		if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
			err = e.refuse("close", errwrap.ContextErr(ctx), "messages to it, or of it, are not complete")
		}
	}
	w.mu.Lock()
	if e.stage == stageEnded { // aborted meanwhile
		w.mu.Unlock()
		return e.refuse("close", ErrCanceled, "")
	}
	if err == nil && e.err == nil {
		e.stage = stageParting
		w.mu.Unlock()
		err = e.tep.Close(ctx)
		if errors.Is(err, ErrPeerClosed) {
			err = nil // both ends close, and this one had nothing left to send
		}
		w.mu.Lock()
		if e.stage == stageEnded {
			w.mu.Unlock()
			return e.refuse("close", ErrCanceled, "")
		}
	} else if err == nil && !failedBefore && e.failedBusy {
		err = e.err
	}
	sentinel := ErrClosed
	if err != nil {
		sentinel = ErrCanceled
	}
	_ = e.end(e.refuse("endpoint", sentinel, ""))
	e.stage = stageEnded
	e.forget(true)
	w.mu.Unlock()
	return err
}

// idle reports whether the endpoint has nothing outstanding or has failed.
func (e *Endpoint) idle() bool {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err != nil || !e.busy()
}

// busy reports whether something of the endpoint is outstanding.
func (e *Endpoint) busy() bool {
	return !e.queue.Empty() || e.waiting.count() != 0 || e.notices.Len() != 0 || e.scheduled ||
		e.active != 0 || e.partial.req != nil || e.relay != nil && e.relay.queue.Len() != 0
}

// Abort closes the endpoint at once: its requests complete with ErrCanceled; requests whose memory
// is being read into complete in later progress. Unreceived messages of the peer are dropped. If
// the endpoint has failed already, Abort only releases it. Abort spends at most a millisecond on
// notifying the peer: see [transport.Endpoint.Abort].
func (e *Endpoint) Abort() error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.stage == stageEnded {
		return e.refuse("abort", ErrClosed, "")
	}
	err := e.end(e.refuse("abort", ErrCanceled, ""))
	if e.stage == stageParting {
		// Close is saying goodbye and ends with this abort, or has ended already.
		if err = e.tep.Abort(&e.transportEnd); errors.Is(err, ErrClosed) {
			err = nil
		}
	}
	e.stage = stageEnded
	e.forget(false)
	return err
}

// forget removes an endpoint that has ended from its worker. Its messages are dropped, except those
// that have arrived whole if keepWhole is set.
func (e *Endpoint) forget(keepWhole bool) {
	w := e.w
	for l := e.kept.all.Front(); l != nil; {
		in := l.Owner().in
		l = l.Next()
		switch {
		case !in.whole():
			w.drop(in)
		case keepWhole:
			w.leftovers.add(in)
		default:
			w.stats.dropped++
			w.drop(in)
		}
	}
	if !e.kept.all.Empty() {
		w.leftovers.depart(e)
		w.trimLeftovers()
	}
	w.endpoints.remove(e)
}

// trimLeftovers drops the oldest messages of closed endpoints while there are too many.
func (w *Worker) trimLeftovers() {
	for in := w.leftovers.excess(); in != nil; in = w.leftovers.excess() {
		w.stats.dropped++
		w.drop(in)
	}
}

// peerFailed is the transport's OnError: the transport endpoint has failed.
func (e *Endpoint) peerFailed(_ *transport.Endpoint, err error) {
	e.w.mu.Lock()
	e.fail(err)
	if guard.Checked {
		e.check()
	}
	e.w.unlockAndReport()
}

// fail takes an endpoint out of service. Only the first cause counts. OnError is called with it,
// unless the program is closing the endpoint and has nothing outstanding.
func (e *Endpoint) fail(cause error) {
	if e.err != nil {
		return
	}
	w := e.w
	w.stats.failures++
	var below *transport.EndpointError
	if errors.As(cause, &below) { // names the peer
		cause = &errwrap.Error{Err: fmt.Errorf("tagged: %w", cause)}
	} else {
		cause = &errwrap.Error{Err: fmt.Errorf("tagged: %s: %w", e.name, cause)}
	}
	e.failedBusy = e.stage < stageParting && e.busy()
	_ = e.end(cause)
	if e.stage < stageClosing || e.failedBusy {
		w.failed = append(w.failed, e)
	}
}

// violated fails the endpoint because the peer broke the protocol.
func (e *Endpoint) violated(why error) {
	if e.err == nil {
		e.w.stats.violations++
		e.fail(fmt.Errorf("%w: %w", ErrProtocol, why))
	}
}

// end completes every request of the endpoint with an error. It closes the queue pair first: after
// that no NIC of this end answers the peer's reads, so the buffers of sends are free. Reads that
// this end has posted end with their completions.
func (e *Endpoint) end(err error) (aborting error) {
	if e.err != nil {
		return nil
	}
	w := e.w
	e.err = err
	w.endpoints.ended(e, err)
	if e.stage != stageParting {
		aborting = e.tep.Abort(&e.transportEnd)
	}
	if e.loop != nil {
		aborting = errors.Join(aborting, e.loop.Abort(nil))
	}
	if e.relay != nil {
		e.relay.reroute()
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
		if rd.inFlight == 0 {
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

// endAwaited completes the receives of RecvWait when no endpoint is left; err says why the last one
// ended.
func (w *Worker) endAwaited(err error) {
	p := &w.matching.posted
	for _, m := range p.all() {
		if m.req.awaited {
			p.remove(m)
			m.req.complete(noPeer("recv", err))
		}
	}
}

// transportEnded runs in progress once an aborted transport endpoint has nothing outstanding. It
// reports failures that were noticed outside progress.
func (e *Endpoint) transportEnded(*transport.Completion) {
	e.w.mu.Lock()
	e.w.unlockAndReport()
}
