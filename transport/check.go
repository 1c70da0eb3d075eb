package transport

import (
	"fmt"
	"math/bits"

	"ibverbx/internal/guard"
)

// unlock ends a call on the endpoint. Builds with the race detector check the endpoint's invariants
// first.
func (p *peerState) unlock() {
	if guard.Checked {
		p.mustHold()
	}
	p.w.mu.Unlock()
}

// unlock ends a call on the worker. Builds with the race detector check the invariants of the
// worker and of all endpoints first.
func (w *Worker) unlock() {
	if guard.Checked {
		w.mustHold()
	}
	w.mu.Unlock()
}

// mustHold panics if an invariant of the endpoint is broken.
func (p *peerState) mustHold() {
	if err := p.check(); err != nil {
		panic(fmt.Sprintf("transport: %s: invariant broken: %v", p.cfg.Name, err))
	}
}

// check returns which invariant of the endpoint is broken; nil while all hold.
func (p *peerState) check() error {
	if err := p.ending.check(p.sending.ops.Len()); err != nil {
		return err
	}
	if err := p.sending.check(); err != nil {
		return err
	}
	if err := p.credits.Check(); err != nil {
		return err
	}
	if p.ending.stage.serves() {
		return p.receiving.check(&p.credits, p.w.cfg.AMBuffers)
	}
	return nil
}

// mustHold panics if an invariant of the worker or of one of its endpoints is broken.
func (w *Worker) mustHold() {
	open, shared := 0, 0
	for p := range w.endpoints.all {
		open++
		p.mustHold()
		own := bits.OnesCount8(p.sending.ownBuffers)
		for n := p.sending.ops.Head; n != p.sending.ops.Tail; n++ {
			switch buf := p.sending.ops.At(n).buf; {
			case buf >= 0:
				shared++
			case buf <= firstOwn:
				own++
			}
		}
		if own != ownBuffers {
			panic(fmt.Sprintf("transport: %s: invariant broken: it has %d bounce buffers of its own, not %d",
				p.cfg.Name, own, ownBuffers))
		}
	}
	free := len(w.bounce.free)
	if open != w.endpoints.open || shared+free != w.cfg.BounceBuffers {
		panic(fmt.Sprintf("transport: invariant broken: %d endpoints counted as %d; %d bounce buffers of %d "+
			"free, %d held by operations", open, w.endpoints.open, free, w.cfg.BounceBuffers, shared))
	}
}
