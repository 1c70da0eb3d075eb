package transport

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Fence orders every later call on the endpoint behind every earlier one: no byte of a later put
// lands, and no later active message arrives, before the earlier ones have. It completes nothing,
// and costs nothing if nothing is outstanding.
//
// "Have landed" means that the peer's NIC has acknowledged. If PCIe writes of several NICs may
// overtake each other on the peer's host, only a remote flush gives an order on which the peer's
// processor can rely; see [ibverbx.Spray].
func (e *Endpoint) Fence() {
	p := e.peer
	p.w.mu.Lock()
	if s := &p.sending; s.pending.any() && !e.head {
		s.fence.later = true
	} else if !s.idle() {
		s.fence.now = true
	}
	p.unlock()
}

// FlushKind is what a flush waits for.
type FlushKind uint8

const (
	// FlushLocal waits until every earlier operation has completed: sources can be reused, and the
	// data of gets is there.
	FlushLocal FlushKind = iota
	// FlushRemote also waits until every earlier put and atomic is in the peer's memory, visible
	// to its processor: a read on every queue pair has followed them (IBTA o9-20).
	FlushRemote
)

// String returns the kind's name.
func (k FlushKind) String() string {
	switch k {
	case FlushLocal:
		return "local"
	case FlushRemote:
		return "remote"
	}
	return fmt.Sprintf("flush kind %d", uint8(k))
}

// StartFlush begins a flush: comp counts it when every operation called before it has completed and
// its completion has fired. Like a send it can meet ErrNoResource, for one while requests are
// pending. done means that there was nothing to wait for; comp is not touched then.
func (e *Endpoint) StartFlush(kind FlushKind, comp *Completion) (done bool, err error) {
	e.peer.w.mu.Lock()
	defer e.peer.unlock()
	return e.startFlush(kind, comp)
}

func (e *Endpoint) startFlush(kind FlushKind, comp *Completion) (done bool, err error) {
	const name = "flush"
	p := e.peer
	w, s := p.w, &p.sending
	if err := e.usable(name); err != nil {
		return false, err
	}
	if kind > FlushRemote {
		return false, p.refuse(name, verbs.ErrInvalid, "%v: have local (%d) and remote (%d)", kind,
			FlushLocal, FlushRemote)
	}
	if err := e.tryAdmit(false, false); err != nil {
		return false, err
	}
	if kind == FlushRemote && s.dirty {
		return false, e.flushRemote(name, comp)
	}
	if s.idle() {
		if s.lostAtomic != nil && comp != nil {
			return false, s.takeLostAtomic()
		}
		if s.unreportedRound >= w.round.number { // what it waits for has ended; the callback may not have run
			if comp != nil {
				s.unreportedRound = w.round.number + 1
				w.round.reportLater(event{kind: eventComplete, comp: comp})
			}
			return false, nil
		}
		return true, nil
	}
	*s.ops.Push() = op{kind: opFlush, buf: noBuffer, comp: comp}
	return false, nil
}

// flushRemote reads a word on every queue pair, behind all earlier operations.
func (e *Endpoint) flushRemote(name string, comp *Completion) error {
	p := e.peer
	s := &p.sending
	fence, rails := s.fence, p.conn.qp.DataRails()
	n := uint64(8 * rails)
	// A single queue pair reads behind its writes and atomics anyway. A fence is harmful there: the
	// kernel's rdma_rxe never repeats a lost fenced read, so one to a dead peer neither completes
	// nor fails.
	s.fence.now = rails > 1
	if rails == 1 {
		s.fence.later = false
	}
	wr := &p.w.templates.get
	wr[0].Flags, wr[0].EveryRail = verbs.SendSignaled, true
	wr[0].Local = p.mem.scratch(n)
	wr[0].Remote = p.conn.flush.Slice(0, n)
	_, err := e.post(name, wr, opFlushRead, noBuffer, comp)
	wr[0].EveryRail = false
	if err != nil || rails == 1 {
		s.fence = fence
	}
	if err == nil {
		s.dirty = false
	}
	return err
}

// flushRequest waits in an endpoint's queue to begin a flush.
type flushRequest struct {
	pending Pending
	comp    *Completion
	kind    FlushKind
}

// newPools makes the pools of the objects that a blocking flush needs while it waits.
func (w *Worker) newPools() {
	w.completionPool.New = func() any { return &Completion{} }
	w.flushPool.New = func() any {
		r := &flushRequest{}
		r.pending.Func, r.pending.internal = r.try, true
		return r
	}
}

// try begins the flush at the head of the queue.
func (r *flushRequest) try(_ *Pending, head *Endpoint) Outcome {
	done, err := head.StartFlush(r.kind, r.comp)
	if errors.Is(err, ErrNoResource) {
		return PendingNoResource
	}
	comp := r.comp
	r.comp = nil
	head.peer.w.flushPool.Put(r)
	if done || err != nil {
		comp.Done(err)
	}
	return PendingDone
}

// flush begins a flush, by way of the queue if need be. comp counts it in any case. mu is held.
func (e *Endpoint) flush(kind FlushKind, comp *Completion) {
	done, err := e.startFlush(kind, comp)
	switch {
	case err == nil && !done:
	case errors.Is(err, ErrNoResource):
		r := e.peer.w.flushPool.Get().(*flushRequest)
		r.comp, r.kind = comp, kind
		e.peer.enqueue(&r.pending)
	default:
		comp.Done(err)
	}
}

// Flush waits until every operation called before it has completed, requests that are pending
// included. A ctx that ends returns its error, with the names of the peers that have not answered,
// and changes nothing: the operations go on.
func (e *Endpoint) Flush(ctx context.Context, kind FlushKind) error {
	if err := needContext("flush", ctx); err != nil {
		return err
	}
	w := e.peer.w
	comp := w.completionPool.Get().(*Completion)
	comp.Init(1, nil)
	w.mu.Lock()
	e.flush(kind, comp)
	e.peer.unlock()
	return w.waitPooled(ctx, comp)
}

// Flush waits until every operation called on any of the worker's connected endpoints has
// completed. It returns the first error, after it has waited for the other endpoints.
func (w *Worker) Flush(ctx context.Context, kind FlushKind) error {
	if err := needContext("flush", ctx); err != nil {
		return err
	}
	comp := w.completionPool.Get().(*Completion)
	w.mu.Lock()
	n := 1
	for p := range w.endpoints.all {
		if p.flushable() {
			n++
		}
	}
	comp.Init(n, nil)
	for p := range w.endpoints.all {
		if p.flushable() {
			p.views[0].flush(kind, comp)
		}
	}
	w.unlock()
	comp.Done(nil)
	return w.waitPooled(ctx, comp)
}

// waitPooled waits for a completion of the pool, and gives it back. One that has not fired, because
// ctx has ended, is left to the garbage collector.
func (w *Worker) waitPooled(ctx context.Context, comp *Completion) error {
	err := w.Wait(ctx, comp)
	if comp.Fired() {
		w.completionPool.Put(comp)
	}
	return err
}
