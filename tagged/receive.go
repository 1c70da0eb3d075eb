package tagged

import (
	"context"

	"ibverbx/verbs"
)

// Recv receives the first message whose tag equals tag in the bits of mask, from any peer of the
// worker, into the pieces, one after the other. The request is done when the message is in memory,
// which may be so already when Recv returns; until then the buffers must not be touched.
// [Request.Info] describes the message.
//
// A message that is longer than the pieces together completes the request with ErrTruncated. The
// call itself fails with ErrClosed only, or with verbs.ErrInvalid for pieces that are together
// longer than an int holds.
func (w *Worker) Recv(tag, mask uint64, bufs ...[]byte) (*Request, error) {
	n, ok := size(bufs)
	if !ok {
		return nil, refuse("recv", verbs.ErrInvalid, "the pieces are longer than an int holds")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, refuse("recv", ErrClosed, "")
	}
	r := w.newRequest(tag, bufs, n)
	if in := w.unexpected.find(tag, mask); in != nil {
		in.ep.receiveKept(r, in)
		return r, nil
	}
	r.match.tag, r.match.mask, r.match.req = tag, mask, r
	w.posted.push(&r.match)
	return r, nil
}

// RecvWait is Recv that waits. When ctx ends before a message has matched, RecvWait cancels the
// receive and returns ctx's error; if one has matched already, and is still arriving, the error is
// an [*InterruptedError].
func (w *Worker) RecvWait(ctx context.Context, tag, mask uint64, bufs ...[]byte) (Info, error) {
	r, err := w.Recv(tag, mask, bufs...)
	if err != nil {
		return Info{}, err
	}
	return r.waitAndFree(ctx)
}

// Probe describes the message that Recv with the same tag and mask would take; it reports false if
// there is none yet. It makes no progress.
func (w *Worker) Probe(tag, mask uint64) (Info, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if in := w.unexpected.find(tag, mask); in != nil {
		return in.info(), true
	}
	return Info{}, false
}

// receiveKept receives a message that has arrived before its receive.
func (e *Endpoint) receiveKept(r *Request, in *inbound) {
	w := e.w
	r.bind(in.info())
	whole := !in.announced && in.got == in.length
	switch {
	case e.err != nil && !whole:
		r.complete(e.err)
		w.drop(in)
		return
	case in.announced:
		rd, id := w.newReading(), in.id
		_ = rd.memory.parse(in.count, uint64(in.length), in.head.data) // checked when it arrived
		w.drop(in)
		e.startReading(rd, r, id)
		e.kick()
		return
	case in.notify: // the first fragment's place goes back with the notice
		e.queueNotice(in.id)
		e.ledger.Free(in.fragments - 1)
	default:
		e.ledger.Free(in.fragments)
	}
	switch {
	case in.length > r.data.length:
		r.complete(ErrTruncated)
	default:
		for b := in.head; b != nil; b = b.next {
			r.data.scatter(b.data)
		}
		if whole {
			r.complete(nil)
		} else {
			e.partial.req = r
		}
	}
	w.drop(in)
	if e.canPush() {
		e.kick()
	}
}
