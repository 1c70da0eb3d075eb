package tagged

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/transport"
)

// peerFailed is what the transport calls when an endpoint has failed.
func (e *Endpoint) peerFailed(_ *transport.Endpoint, err error) {
	e.w.mu.Lock()
	e.fail(err)
	e.w.unlockInProgress()
}

// fail ends an endpoint's service, for the first reason that comes, and has the program told.
func (e *Endpoint) fail(cause error) {
	if e.err != nil {
		return
	}
	w := e.w
	w.stats.failures++
	_ = e.end(fmt.Errorf("tagged: %s: %w", e.name, cause))
	if !e.ended && !e.parting {
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

// released is called in progress once nothing of an aborted endpoint is outstanding. It tells of
// failures that were noticed outside of progress.
func (e *Endpoint) released(*transport.Completion) {
	e.w.mu.Lock()
	e.w.unlockInProgress()
}

// end completes every request of the endpoint with an error. The queue pair is closed first: no NIC
// of this end serves a read of the peer's any more, so that the buffers of sends can be given back.
// Reads of this end that are under way end with their completions.
func (e *Endpoint) end(err error) (aborting error) {
	if e.err != nil {
		return nil
	}
	e.err = err
	if !e.parting {
		aborting = e.tep.Abort(&e.gone)
	}
	for r := e.queue.head; r != nil; r = e.queue.head {
		e.queue.remove(r)
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
	for e.readings.count != 0 {
		if rd := e.readings.pop(); rd.under == 0 {
			rd.end()
		}
	}
	return aborting
}

// Abort closes the endpoint at once: its requests complete with ErrCanceled, those whose memory is
// being read into in later progress. Messages of the peer that have not arrived whole are lost. An
// endpoint that has failed before is only given back.
func (e *Endpoint) Abort() error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.ended {
		return e.refuse("abort", ErrClosed, "")
	}
	e.ended = true
	err := e.end(e.refuse("abort", ErrCanceled, ""))
	if e.parting {
		// Close is saying goodbye, and gives up with that. It may have come to its end already.
		if err = e.tep.Abort(&e.gone); errors.Is(err, ErrClosed) {
			err = nil
		}
	}
	e.forget()
	return err
}

// forget drops what can never be received any more.
func (e *Endpoint) forget() {
	w := e.w
	for m := w.unexpected.all.head; m != nil; {
		next := m.listNext
		if in := m.in; in.ep == e && (in.announced || in.got < in.length) {
			w.drop(in)
		}
		m = next
	}
	for i := range w.endpoints {
		if w.endpoints[i] == e {
			w.endpoints = append(w.endpoints[:i], w.endpoints[i+1:]...)
			break
		}
	}
}

// closeInterval is how often Close looks whether requests have ended by other means than progress:
// by being cancelled.
const closeInterval = time.Millisecond

// Close ends the endpoint well: no new send is taken, those that there are complete, messages that
// are being received do, and the peer is told, whose requests complete with ErrPeerClosed from then
// on. Agree with it on the moment if it may have something to send. When ctx ends before, or the
// peer fails, the rest is aborted, and Close returns the error. An endpoint that has failed before
// is only given back. Messages that have arrived whole can be received after Close.
func (e *Endpoint) Close(ctx context.Context) error {
	w := e.w
	w.mu.Lock()
	if e.ended || e.closing {
		w.mu.Unlock()
		return e.refuse("close", ErrClosed, "")
	}
	e.closing = true
	failedBefore := e.err != nil
	w.mu.Unlock()
	var err error
	if !failedBefore {
		err = w.tw.WaitFor(ctx, closeInterval, e.idle)
	}
	w.mu.Lock()
	if e.ended { // aborted meanwhile
		w.mu.Unlock()
		return e.refuse("close", ErrCanceled, "")
	}
	if err == nil && e.err == nil {
		e.parting = true
		w.mu.Unlock()
		err = e.tep.Close(ctx)
		if errors.Is(err, ErrPeerClosed) {
			err = nil // both ends close, and this one had nothing left to send
		}
		w.mu.Lock()
		if e.ended {
			w.mu.Unlock()
			return e.refuse("close", ErrCanceled, "")
		}
	} else if err == nil && !failedBefore {
		err = e.err
	}
	e.ended = true
	sentinel := ErrClosed
	if err != nil {
		sentinel = ErrCanceled
	}
	_ = e.end(e.refuse("endpoint", sentinel, ""))
	e.forget()
	w.mu.Unlock()
	return err
}

// idle reports whether nothing of an endpoint is outstanding, or it has failed.
func (e *Endpoint) idle() bool {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	sent := e.queue.head == nil && e.waiting.count() == 0 && e.notices.empty() && !e.scheduled
	return e.err != nil || sent && e.active == 0 && e.partial.req == nil
}
