package transport

import (
	"context"
	"errors"
)

// flushRequest waits in an endpoint's queue to begin a flush.
type flushRequest struct {
	pending Pending
	comp    *Completion
	kind    FlushKind
}

// newPools makes the pools of what blocking calls need while they wait.
func (w *Worker) newPools() {
	w.completions.New = func() any { return &Completion{} }
	w.flushRequests.New = func() any {
		r := &flushRequest{}
		r.pending.Func, r.pending.internal = r.try, true
		return r
	}
}

// try begins the flush at the head of the queue.
func (r *flushRequest) try(_ *Pending, turn *Endpoint) Outcome {
	done, err := turn.StartFlush(r.kind, r.comp)
	if errors.Is(err, ErrNoResource) {
		return PendingNoResource
	}
	comp := r.comp
	r.comp = nil
	turn.c.w.flushRequests.Put(r)
	if done || err != nil {
		comp.Done(err)
	}
	return PendingDone
}

// flush begins a flush that counts on comp in any case, by way of the queue if need be. mu is held.
func (e *Endpoint) flush(kind FlushKind, comp *Completion) {
	done, err := e.startFlush(kind, comp)
	switch {
	case errors.Is(err, ErrNoResource):
		r := e.c.w.flushRequests.Get().(*flushRequest)
		r.comp, r.kind = comp, kind
		e.c.enqueue(&r.pending)
	case done || err != nil:
		comp.Done(err)
	}
}

// Flush waits until every operation called before it has completed, requests that are pending
// included. A ctx that ends returns its error and changes nothing: the operations go on.
func (e *Endpoint) Flush(ctx context.Context, kind FlushKind) error {
	w := e.c.w
	comp := w.completions.Get().(*Completion)
	comp.Init(1, nil)
	w.mu.Lock()
	e.flush(kind, comp)
	w.mu.Unlock()
	return w.waitPooled(ctx, comp)
}

// Flush waits until every operation called on any of the worker's connected endpoints has
// completed; it returns the first error, and goes on with the other endpoints then.
func (w *Worker) Flush(ctx context.Context, kind FlushKind) error {
	comp := w.completions.Get().(*Completion)
	w.mu.Lock()
	n := 1
	for _, c := range w.endpoints {
		if c != nil && c.connected && !c.aborted {
			n++
		}
	}
	comp.Init(n, nil)
	for _, c := range w.endpoints {
		if c != nil && c.connected && !c.aborted {
			c.faces[0].flush(kind, comp)
		}
	}
	w.mu.Unlock()
	comp.Done(nil)
	return w.waitPooled(ctx, comp)
}

// waitPooled waits for a completion that nobody else sees. One whose operations go on is left to
// the garbage collector.
func (w *Worker) waitPooled(ctx context.Context, comp *Completion) error {
	err := w.Wait(ctx, comp)
	if comp.Fired() {
		w.completions.Put(comp)
	}
	return err
}
