package tagged

import (
	"errors"

	"ibverbx"
	"ibverbx/transport"
)

// noticeQueue holds the numbers of messages of which the peer waits to hear that they were matched,
// oldest first: a ring. Each of them keeps its place in the window, so there are
// Config.MaxUnexpected at most.
type noticeQueue struct {
	ids        []uint32 // a power of two
	head, tail uint32
}

func (q *noticeQueue) empty() bool { return q.head == q.tail }

func (q *noticeQueue) count() int { return int(q.tail - q.head) }

func (q *noticeQueue) front() uint32 { return q.ids[q.head&uint32(len(q.ids)-1)] }

func (q *noticeQueue) push(id uint32) {
	if n := q.tail - q.head; int(n) == len(q.ids) {
		ids := make([]uint32, max(16, 2*n))
		for i := range n {
			ids[i] = q.ids[(q.head+i)&(n-1)]
		}
		q.ids, q.head, q.tail = ids, 0, n
	}
	q.ids[q.tail&uint32(len(q.ids)-1)] = id
	q.tail++
}

// kick carries on what an endpoint has to do, and has the transport call back where resources lack.
func (e *Endpoint) kick() {
	if e.scheduled && e.err == nil { // the queue waits for something that reads may not need
		if err := e.pushReads(); err != nil && !errors.Is(err, transport.ErrNoResource) {
			e.sendFailed(err)
		}
	}
	for !e.scheduled && e.err == nil && e.push(e.tep) {
		switch err := e.tep.Pending(&e.pending); {
		case err == nil:
			e.scheduled = true
		case !errors.Is(err, transport.ErrBusy):
			e.sendFailed(err)
			return
		}
	}
}

// resume is the pending function of the endpoint: the transport has resources again.
func (e *Endpoint) resume(_ *transport.Pending, turn *transport.Endpoint) transport.Outcome {
	e.w.mu.Lock()
	outcome := transport.PendingNoResource
	if e.err != nil || !e.push(turn) {
		e.scheduled = false
		outcome = transport.PendingDone
	}
	e.w.unlockInProgress()
	return outcome
}

// push sends what can go out and reports whether something is left that only lacks resources of the
// transport. What needs none of the peer's window goes first and never waits behind sends that need
// it: that is why nothing deadlocks.
func (e *Endpoint) push(face *transport.Endpoint) (stuck bool) {
	err := e.pushNotices(face)
	if reading := e.pushReads(); err == nil || reading != nil &&
		!errors.Is(reading, transport.ErrNoResource) {
		err = reading
	}
	for err == nil && e.ledger.admits() && e.queue.head != nil {
		r := e.queue.head
		if e.batches(r) {
			err = e.pushBatch(face)
			continue
		}
		var gone bool
		if gone, err = e.pushSend(face, r); gone {
			e.queue.remove(r)
			e.sendGone(r)
		}
	}
	if err == nil && e.ledger.due() {
		err = e.sendControl(face, amWindow, &header{}, 0)
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

// sendGone takes in that all of a send has gone out.
func (e *Endpoint) sendGone(r *Request) {
	switch {
	case r.long:
		e.w.stats.announced++
	case !r.sync || r.matched:
		r.complete(nil)
	}
}

// sendFailed takes in that the transport refused to send. Where its endpoint has failed it calls
// peerFailed in progress; an endpoint that closes sends no more.
func (e *Endpoint) sendFailed(err error) {
	var failed *transport.EndpointError
	if !errors.As(err, &failed) && !errors.Is(err, ErrClosed) {
		if errors.Is(err, ibverbx.ErrNoKey) || errors.Is(err, ibverbx.ErrBounds) ||
			errors.Is(err, ibverbx.ErrLength) {
			e.violated(err) // the memory that it has announced
		} else {
			e.fail(err)
		}
	}
}

// pushNotices tells the peer which of its messages were matched, and gives their places back.
func (e *Endpoint) pushNotices(face *transport.Endpoint) error {
	for !e.notices.empty() {
		h := header{id: e.notices.front()}
		if err := e.sendControl(face, amDone, &h, 1); err != nil {
			return err
		}
		e.notices.head++
	}
	return nil
}

// sendControl sends a message that needs no window, and with which so many places become free.
func (e *Endpoint) sendControl(face *transport.Endpoint, kind transport.AMID, h *header, frees int) error {
	h.window = e.ledger.offer(frees)
	err := face.AMShort(kind, h.put(&e.w.hdr, kind), nil)
	if err == nil {
		e.ledger.consumed(frees)
		e.ledger.gave(h.window)
	}
	return err
}

// due reports whether kick would find something to do: a cheap question for hot paths.
func (e *Endpoint) due() bool {
	return e.queue.head != nil && e.ledger.admits() || !e.notices.empty() || e.ledger.due() ||
		e.readings.count != 0
}
