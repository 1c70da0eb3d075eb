package tagged

import (
	"encoding/binary"
	"errors"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/transport"
)

// kick sends what it can, and queues the endpoint with the transport if resources are lacking.
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

// push sends what it can, and reports whether anything is left that lacks only resources of the
// transport. view is the transport endpoint, or the one that a pending function was given.
//
// Messages that need no place of the peer go first and never wait behind sends that need one, so
// the window cannot deadlock: see package flow.
func (e *Endpoint) push(view *transport.Endpoint) (stuck bool) {
	err := e.pushNotices(view)
	if e.relay != nil && err == nil {
		err = e.relay.push(view)
	}
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

// canPush is a cheap test of whether kick would find something to do, for hot paths. It need not
// look for routed messages: route kicks.
func (e *Endpoint) canPush() bool {
	return !e.queue.Empty() && e.ledger.Room() != 0 || e.notices.Len() != 0 || e.ledger.MustGrant() ||
		!e.readQueue.Empty()
}

// sendGone handles a send that has gone out completely.
func (e *Endpoint) sendGone(r *Request) {
	switch {
	case r.kind == sendLong:
		e.w.stats.announced++
	case r.kind == sendEager || r.matched:
		r.complete(nil)
	}
}

// sendFailed handles the transport's refusal of a send. There is nothing to do if the transport
// endpoint has failed, since it calls peerFailed in progress, nor if it is closing, since it then
// sends nothing.
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

// pushNotices sends the notices of matches, and returns the places of their messages with them.
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
// become free when it is sent.
func (e *Endpoint) sendControl(view *transport.Endpoint, kind transport.AMID, h *header, frees int) error {
	h.window = e.ledger.Grant(frees)
	err := view.AMShort(kind, h.put(&e.w.outgoing.hdr, kind), nil)
	if err == nil {
		e.ledger.Free(frees)
		e.ledger.Granted(h.window)
	}
	return err
}

// batch packs consecutive short sends that wait into one active message. A sender that is faster
// than its resources often has many; in a batch each message costs a fraction.
type batch struct {
	first *list.Link[Request] // in Endpoint.queue
	most  int                 // messages that the window has room for
	count int                 // messages that fill has packed
	pack  func([]byte) int    // fill: made once, so that no send makes a closure
}

// batchLongest is the longest message that goes into a batch, in bytes: longer ones would gain
// little.
const batchLongest = 512

// batchable reports whether a send may go into a batch.
func (r *Request) batchable() bool {
	return r.stage == requestQueued && r.kind == sendEager && r.data.length <= batchLongest
}

// batches reports whether r, the first send of the queue, goes out in a batch with others.
func (e *Endpoint) batches(r *Request) bool {
	if e.ledger.Room() < 2 || !r.batchable() {
		return false
	}
	next := r.inQueue.Next()
	if next == nil {
		return false
	}
	second := next.Owner()
	return second.batchable() &&
		2*batchEntry+r.data.length+second.data.length <= e.limits.AMBcopy-maxHeader
}

// fill is the pack function of a batch: it writes the messages that fit.
func (b *batch) fill(dst []byte) int {
	n := 0
	b.count = 0
	for l := b.first; l != nil && b.count < b.most; l = l.Next() {
		r := l.Owner()
		if !r.batchable() || len(dst)-n < batchEntry+r.data.length {
			break
		}
		binary.LittleEndian.PutUint64(dst[n:], r.info.Tag)
		binary.LittleEndian.PutUint16(dst[n+8:], uint16(r.data.length))
		n += batchEntry
		n += r.data.gather(dst[n : n+r.data.length])
		r.data.rewind() // the batch may be refused, and the message sent alone
		b.count++
	}
	return n
}

// pushBatch sends the first messages of the queue in one active message.
func (e *Endpoint) pushBatch(view *transport.Endpoint) error {
	w := e.w
	b := &w.outgoing.batch
	b.first, b.most = e.queue.Front(), e.ledger.Room()
	h := header{window: e.ledger.Grant(0)}
	_, err := view.AMBcopy(amBatch, h.put(&w.outgoing.hdr, amBatch), b.pack)
	b.first = nil
	if err != nil {
		return err
	}
	e.ledger.Sent(b.count)
	e.ledger.Granted(h.window)
	w.stats.batches++
	e.traffic.sent += uint64(b.count)
	for range b.count {
		r := e.queue.PopFront()
		e.traffic.sentBytes += uint64(r.data.length)
		r.complete(nil)
	}
	return nil
}

// arrivedBatch handles the messages of a batch, each of which takes a place of the window.
func (e *Endpoint) arrivedBatch(b []byte) error {
	for {
		tag, data, rest, err := nextInBatch(b)
		if err != nil {
			return err
		}
		if tag > MaxTag {
			if err := e.w.teams.admits(e, tag); err != nil {
				return err
			}
		}
		if !e.ledger.Arrive() {
			return beyondWindow(amBatch)
		}
		e.arrivedEager(&header{tag: tag, length: uint64(len(data))}, data)
		if len(rest) == 0 {
			return nil
		}
		b = rest
	}
}
