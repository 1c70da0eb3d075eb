package tagged

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
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
	return w.recvWait(ctx, nil, tag, mask, bufs)
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
	return e.w.recvWait(ctx, e, tag, mask, bufs)
}

func (w *Worker) recvWait(ctx context.Context, from *Endpoint, tag, mask uint64, bufs [][]byte) (Info,
	error) {
	if ctx == nil {
		return Info{}, refuse("recv", verbs.ErrInvalid, "no context")
	}
	r, err := w.recv(from, from == nil, tag, mask, bufs)
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
	if err := w.mayReceive("recv", from, tag, mask); err != nil {
		w.mu.Unlock()
		return nil, err
	}
	r, err := w.post(w.newRequest(tag, bufs, n), from, awaited, mask)
	w.mu.Unlock()
	w.teams.drive()
	return r, err
}

// mayReceive refuses to look for messages of a closed worker or team, or of collective calls.
func (w *Worker) mayReceive(op string, from *Endpoint, tag, mask uint64) error {
	switch {
	case w.closed:
		return refuse(op, ErrClosed, "")
	case tag > MaxTag:
		return w.teams.refuses(op, from, tag, mask)
	}
	return nil
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
		return nil, noPeer("recv", w.endpoints.last)
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
func (w *Worker) Probe(tag, mask uint64) (Info, bool) { return w.probe(nil, tag, mask) }

// Probe is [Worker.Probe] for messages of this peer alone.
func (e *Endpoint) Probe(tag, mask uint64) (Info, bool) { return e.w.probe(e, tag, mask) }

// ProbeWait is Probe that waits until there is a message. Another goroutine may receive it first:
// [Worker.ClaimWait] does not let it. It ends as RecvWait does when no message can arrive.
func (w *Worker) ProbeWait(ctx context.Context, tag, mask uint64) (Info, error) {
	return w.probeWait(ctx, nil, tag, mask)
}

// ProbeWait is [Worker.ProbeWait] for messages of this peer alone.
func (e *Endpoint) ProbeWait(ctx context.Context, tag, mask uint64) (Info, error) {
	return e.w.probeWait(ctx, e, tag, mask)
}

// find returns the first message of the program that a receive of one peer, or of any if from is
// nil, takes; nil if there is none.
func (w *Worker) find(from *Endpoint, tag, mask uint64) *inbound {
	switch {
	case tag > MaxTag && w.teams.refuses("probe", from, tag, mask) != nil:
		return nil
	case from != nil:
		return from.kept.find(tag, mask)
	}
	return w.matching.unexpected.find(tag, mask)
}

func (w *Worker) probe(from *Endpoint, tag, mask uint64) (Info, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if in := w.find(from, tag, mask); in != nil {
		return in.info(), true
	}
	return Info{}, false
}

func (w *Worker) probeWait(ctx context.Context, from *Endpoint, tag, mask uint64) (info Info, err error) {
	err = w.awaitMessage(ctx, "probe", from, tag, mask, func() (found bool) {
		info, found = w.probe(from, tag, mask)
		return found
	})
	return info, err
}

// lookInterval is how often a sleeping wait looks for what happens outside of progress: the program
// closes an endpoint, or cancels a request.
const lookInterval = 10 * time.Millisecond

// awaitMessage makes progress until found reports true, no message can arrive any more, or ctx
// ends.
func (w *Worker) awaitMessage(ctx context.Context, op string, from *Endpoint, tag, mask uint64,
	found func() bool) error {
	if ctx == nil {
		return refuse(op, verbs.ErrInvalid, "no context")
	}
	var ended error
	err := w.tw.WaitFor(ctx, lookInterval, func() bool {
		// Before the look: a message may arrive, and then its peer end.
		none := w.cannotArrive(op, from, tag, mask)
		if found() {
			return true
		}
		ended = none
		return none != nil
	})
	if err == nil {
		return ended
	}
	if over := ctx.Err(); from != nil && over != nil && errors.Is(err, over) {
		return fmt.Errorf("%w: %s has sent no such message", errwrap.ContextErr(ctx), from.name)
	}
	return err
}

// cannotArrive returns why no message can arrive from a peer, or from any; nil if one can.
func (w *Worker) cannotArrive(op string, from *Endpoint, tag, mask uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	refused := w.mayReceive(op, from, tag, mask)
	switch {
	case refused != nil:
		return refused
	case from != nil:
		return from.err
	case w.endpoints.allEnded():
		return noPeer(op, w.endpoints.last)
	}
	return nil
}

// Message is a message that the program has claimed: no other call receives it. Its memory, and its
// place among those of Config.MaxUnexpected, are free when it is received. Recv without memory
// drops it, and completes with ErrTruncated.
type Message struct {
	w    *Worker
	in   *inbound // nil once it is received
	info Info
}

// Info describes the message.
func (m *Message) Info() Info { return m.info }

// Recv receives the message as [Worker.Recv] would have. It can be called once.
func (m *Message) Recv(bufs ...[]byte) (*Request, error) {
	w := m.w
	n, ok := size(bufs)
	if !ok {
		return nil, refuse("recv", verbs.ErrInvalid, "the pieces are longer than an int holds")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, refuse("recv", ErrClosed, "")
	case m.in == nil:
		return nil, refuse("recv", verbs.ErrInvalid, "the message was received before")
	}
	r, in := w.newRequest(m.info.Tag, bufs, n), m.in
	m.in = nil
	in.ep.receiveKept(r, in)
	return r, nil
}

// Claim takes the message that Recv with the same tag and mask would take, and lets the program
// receive it once it has memory of the right length. It reports false if there is none yet. It
// makes no progress.
func (w *Worker) Claim(tag, mask uint64) (*Message, bool) {
	m := w.claim(nil, tag, mask)
	return m, m != nil
}

// Claim is [Worker.Claim] for messages of this peer alone.
func (e *Endpoint) Claim(tag, mask uint64) (*Message, bool) {
	m := e.w.claim(e, tag, mask)
	return m, m != nil
}

// ClaimWait is Claim that waits until there is a message. It ends as RecvWait does when no message
// can arrive.
func (w *Worker) ClaimWait(ctx context.Context, tag, mask uint64) (*Message, error) {
	return w.claimWait(ctx, "claim", nil, tag, mask)
}

// ClaimWait is [Worker.ClaimWait] for messages of this peer alone.
func (e *Endpoint) ClaimWait(ctx context.Context, tag, mask uint64) (*Message, error) {
	return e.w.claimWait(ctx, "claim", e, tag, mask)
}

func (w *Worker) claim(from *Endpoint, tag, mask uint64) *Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.find(from, tag, mask)
	if in == nil {
		return nil
	}
	w.unlist(in)
	in.claimed = true
	w.matching.claimed.PushBack(&in.match.inList, &in.match)
	return &Message{w: w, in: in, info: in.info()}
}

func (w *Worker) claimWait(ctx context.Context, op string, from *Endpoint, tag, mask uint64) (m *Message,
	err error) {
	err = w.awaitMessage(ctx, op, from, tag, mask, func() bool {
		m = w.claim(from, tag, mask)
		return m != nil
	})
	return m, err
}

// RecvAlloc is RecvWait of a message of unknown length, into memory that it allocates. It allocates
// at most so many bytes: a longer message ends with ErrTruncated, and is gone. If ctx ends while
// the message arrives, the error is an [*InterruptedError], and the bytes are those that its
// request fills.
func (w *Worker) RecvAlloc(ctx context.Context, tag, mask uint64, most int) ([]byte, Info, error) {
	return w.recvAlloc(ctx, nil, tag, mask, most)
}

// RecvAlloc is [Worker.RecvAlloc] for messages of this peer alone.
func (e *Endpoint) RecvAlloc(ctx context.Context, tag, mask uint64, most int) ([]byte, Info, error) {
	return e.w.recvAlloc(ctx, e, tag, mask, most)
}

func (w *Worker) recvAlloc(ctx context.Context, from *Endpoint, tag, mask uint64, most int) ([]byte, Info,
	error) {
	if most < 0 {
		return nil, Info{}, refuse("recv", verbs.ErrInvalid, "most is %d", most)
	}
	m, err := w.claimWait(ctx, "recv", from, tag, mask)
	if err != nil {
		return nil, Info{}, err
	}
	var buf []byte
	if m.info.Length <= most {
		buf = make([]byte, m.info.Length)
	}
	r, err := m.Recv(buf)
	if err != nil {
		return nil, m.info, err
	}
	if _, err = r.waitAndFree(ctx); err != nil && !errors.As(err, new(*InterruptedError)) {
		buf = nil
	}
	return buf, m.info, err
}

// SendRecv sends one message to the peer and receives another, from a peer or, if from is nil, from
// any: it posts the receive first, so peers that all do so at once do not wait for each other. The
// two buffers must not share memory. It is SendWait and RecvWait when ctx ends; if both go on, the
// error wraps an [*InterruptedError] of each. If only the send fails, Info describes what has been
// received all the same; its Source is nil if nothing was.
func (e *Endpoint) SendRecv(ctx context.Context, tag uint64, out []byte, from *Endpoint, recvTag uint64,
	in []byte) (Info, error) {
	if err := e.mayWait(ctx, "send"); err != nil {
		return Info{}, err
	}
	if collective.Overlap(out, in) {
		return Info{}, refuse("send and recv", verbs.ErrInvalid, "out and in share memory: pass two buffers")
	}
	w := e.w
	if from != nil {
		w = from.w
	}
	r, err := w.recv(from, from == nil, recvTag, Exact, [][]byte{in})
	if err != nil {
		return Info{}, err
	}
	if err := e.SendWait(ctx, tag, out); err != nil {
		if !r.Cancel() && !r.Done() {
			return Info{}, errors.Join(err, &InterruptedError{Req: r, Err: err})
		}
		var got Info
		if r.Err() == nil {
			got = r.Info()
		}
		r.Free()
		return got, err
	}
	return r.waitAndFree(ctx)
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
