package tagged

import (
	"context"

	"ibverbx/verbs"
)

// Recv receives the first message whose tag equals tag in the bits of mask, from any peer of the
// worker, into the pieces, one after the other. The request is done when the message is in memory,
// perhaps already when Recv returns; do not touch the buffers until then. [Request.Info] describes
// the message.
//
// The request goes on when peers fail: see [Endpoint.Recv] for a receive that ends with its peer. A
// message that is longer than all the pieces together completes the request with ErrTruncated. The
// call itself fails only with ErrClosed, or with verbs.ErrInvalid if the total length of the pieces
// overflows an int.
func (w *Worker) Recv(tag, mask uint64, bufs ...[]byte) (*Request, error) {
	return w.recv(nil, false, tag, mask, bufs)
}

// RecvWait is Recv that waits. When ctx ends before a message has matched, RecvWait cancels the
// receive and returns ctx's error; if one has matched already, and is still arriving, the error is
// an [*InterruptedError]. When the worker's last endpoint has failed, or was closed or aborted, no
// message can arrive, and RecvWait fails with ErrNoPeer; a worker that has had no endpoint yet
// waits for its first one. To wait for peers that will connect later, call Recv and [Request.Wait].
func (w *Worker) RecvWait(ctx context.Context, tag, mask uint64, bufs ...[]byte) (Info, error) {
	r, err := w.recv(nil, true, tag, mask, bufs)
	if err != nil {
		return Info{}, err
	}
	return r.waitAndFree(ctx)
}

// Recv is [Worker.Recv] for messages of this peer alone. When the peer fails, or the endpoint ends,
// the request completes with the error, unless it has matched a message that has arrived
// completely. You may call it before Connect. On an endpoint that is out of service it receives
// messages that arrived completely, and otherwise returns the error at once.
func (e *Endpoint) Recv(tag, mask uint64, bufs ...[]byte) (*Request, error) {
	return e.w.recv(e, false, tag, mask, bufs)
}

// RecvWait is Recv that waits; [Worker.RecvWait] says what happens when ctx ends.
func (e *Endpoint) RecvWait(ctx context.Context, tag, mask uint64, bufs ...[]byte) (Info, error) {
	r, err := e.w.recv(e, false, tag, mask, bufs)
	if err != nil {
		return Info{}, err
	}
	return r.waitAndFree(ctx)
}

// recv is Recv for one peer, or for any if from is nil.
func (w *Worker) recv(from *Endpoint, awaited bool, tag, mask uint64, bufs [][]byte) (*Request, error) {
	n, ok := size(bufs)
	if !ok {
		return nil, refuse("recv", verbs.ErrInvalid, "the pieces are longer than an int holds")
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, refuse("recv", ErrClosed, "")
	}
	r, err := w.post(w.newRequest(tag, bufs, n), from, awaited, mask)
	w.mu.Unlock()
	return r, err
}

// post posts a receive, or gives it back if it is refused.
func (w *Worker) post(r *Request, from *Endpoint, awaited bool, mask uint64) (*Request, error) {
	tag := r.info.Tag
	queue, kept := &w.matching.posted, &w.matching.unexpected
	if from != nil {
		from.hash()
		queue, kept = &from.posted, &from.kept
	}
	if in := kept.find(tag, mask); in != nil {
		in.ep.receiveKept(r, in)
		return r, nil
	}
	switch {
	case from != nil && from.err != nil:
		r.discard()
		return nil, from.err
	case awaited && w.endpoints.allEnded():
		r.discard()
		return nil, noPeer(w.endpoints.last)
	}
	r.match.tag, r.match.mask, r.match.req = tag, mask, r
	if from != nil || awaited {
		r.from, r.awaited = from, awaited
	}
	queue.push(&r.match, w.matching.number())
	return r, nil
}

// hash makes the endpoint's tables, which only receives for its peer alone need.
func (e *Endpoint) hash() {
	if e.posted.exact.buckets == nil {
		e.posted.exact.init(e.w.matching.factor)
		e.kept.hash(e.w.matching.factor)
	}
}

// Probe describes the message that Recv with the same tag and mask would take; it reports false if
// there is none yet. It makes no progress.
func (w *Worker) Probe(tag, mask uint64) (Info, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.matching.unexpected.probe(tag, mask)
}

// Probe is [Worker.Probe] for messages of this peer alone.
func (e *Endpoint) Probe(tag, mask uint64) (Info, bool) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.kept.probe(tag, mask)
}

// probe describes the message that a receive would take.
func (u *unexpected) probe(tag, mask uint64) (Info, bool) {
	if in := u.find(tag, mask); in != nil {
		return in.info(), true
	}
	return Info{}, false
}

// receiveKept receives a message that has arrived before its receive.
func (e *Endpoint) receiveKept(r *Request, in *inbound) {
	w := e.w
	r.bind(in.info())
	switch {
	case e.err != nil && !in.whole():
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
	if err := r.cannotCopy(in.length); err != nil {
		r.complete(err)
	} else {
		for b := in.head; b != nil; b = b.next {
			r.data.scatter(b.data)
		}
		if in.whole() {
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
