package tagged

import (
	"errors"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/transport"
)

// kick sends what can go out, and queues the endpoint with the transport where resources lack.
func (e *Endpoint) kick() {
	if e.scheduled && e.err == nil { // the queue waits for a resource that reads may not need
		if err := e.pushReads(); err != nil && !errors.Is(err, transport.ErrNoResource) {
			e.sendFailed(err)
		}
	}
	for !e.scheduled && e.err == nil && e.push(e.tep) {
		switch err := e.tep.Pending(&e.pending); {
		case err == nil:
			e.scheduled = true
		case !errors.Is(err, transport.ErrBusy): // ErrBusy: resources are back, so push again
			e.sendFailed(err)
			return
		}
	}
}

// resume is the pending function of the endpoint: the transport has resources again.
func (e *Endpoint) resume(_ *transport.Pending, headView *transport.Endpoint) transport.Outcome {
	e.w.mu.Lock()
	outcome := transport.PendingNoResource
	if e.err != nil || !e.push(headView) {
		e.scheduled = false
		outcome = transport.PendingDone
	}
	if guard.Checked {
		e.check()
	}
	e.w.unlockAndReport()
	return outcome
}

// push sends what can go out and reports whether something is left that lacks nothing but resources
// of the transport. view is the transport endpoint, or what a pending function was given in its
// place.
//
// What needs no place of the peer goes first and never waits behind sends that need one: by this
// the window cannot deadlock, see package flow.
func (e *Endpoint) push(view *transport.Endpoint) (stuck bool) {
	err := e.pushNotices(view)
	if readErr := e.pushReads(); err == nil || readErr != nil &&
		!errors.Is(readErr, transport.ErrNoResource) {
		err = readErr
	}
	for err == nil && e.ledger.Room() != 0 && !e.queue.Empty() {
		r := e.queue.First()
		if e.batches(r) {
			err = e.pushBatch(view)
			continue
		}
		var gone bool
		if gone, err = e.pushSend(view, r); gone {
			e.queue.Remove(&r.inQueue)
			e.sendGone(r)
		}
	}
	if err == nil && e.ledger.MustGrant() {
		err = e.sendControl(view, amWindow, &header{}, 0)
	}
	if err == nil || e.err != nil {
		return false
	}
	if errors.Is(err, transport.ErrNoResource) {
		return true
	}
	e.sendFailed(err)
	return false
}

// canPush reports whether kick would find something to do: a cheap test for hot paths.
func (e *Endpoint) canPush() bool {
	return !e.queue.Empty() && e.ledger.Room() != 0 || e.notices.Len() != 0 || e.ledger.MustGrant() ||
		!e.readQueue.Empty()
}

// sendGone handles a send of which all has gone out.
func (e *Endpoint) sendGone(r *Request) {
	switch {
	case r.kind == sendLong:
		e.w.stats.announced++
	case r.kind == sendEager || r.matched:
		r.complete(nil)
	}
}

// sendFailed handles that the transport refused to send. A transport endpoint that has failed calls
// peerFailed in progress, and one that closes sends no more: then there is nothing to do.
func (e *Endpoint) sendFailed(err error) {
	var failed *transport.EndpointError
	if errors.As(err, &failed) || errors.Is(err, ErrClosed) {
		return
	}
	if errors.Is(err, ibverbx.ErrNoKey) || errors.Is(err, ibverbx.ErrBounds) ||
		errors.Is(err, ibverbx.ErrLength) {
		e.violated(err) // the peer has announced memory that it does not have
		return
	}
	e.fail(err)
}

// pushNotices sends the notices of matches, and gives the places of their messages back with them.
func (e *Endpoint) pushNotices(view *transport.Endpoint) error {
	for e.notices.Len() != 0 {
		h := header{id: *e.notices.Front()}
		if err := e.sendControl(view, amDone, &h, 1); err != nil {
			return err
		}
		e.notices.Pop()
	}
	return nil
}

// sendControl sends a message that takes no place of the peer. frees is how many places of this end
// become free with it.
func (e *Endpoint) sendControl(view *transport.Endpoint, kind transport.AMID, h *header, frees int) error {
	h.window = e.ledger.Grant(frees)
	err := view.AMShort(kind, h.put(&e.w.outgoing.hdr, kind), nil)
	if err == nil {
		e.ledger.Free(frees)
		e.ledger.Granted(h.window)
	}
	return err
}
