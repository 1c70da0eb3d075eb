package shmem

import (
	"context"
	"errors"

	"ibverbx/transport"
)

// Close ends the PE: it waits for the others to close too, as far as they are there, ends the
// connections and gives the memory back; blocks and their Local slices must not be used any more.
// When ctx ends before, the rest is ended at once. It returns what has not ended well. It is
// collective, and no other goroutine may be in a call of the PE.
func (p *PE) Close(ctx context.Context) error {
	const op = "close"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	p.closing.Store(true)
	p.closed.Store(true)
	var err error
	if p.gone.Load() == nil {
		if err = p.quiet(ctx, op); err == nil {
			err = p.disseminate(ctx, op, p.layout.endings, 1<<markBits)
		}
	}
	for i := range p.peers {
		t := &p.peers[i]
		if e := t.ep.Close(ctx); e != nil && err == nil && !errors.Is(e, transport.ErrPeerClosed) {
			err = t.told(op, e)
		}
	}
	return errors.Join(err, p.free())
}

// free gives back what the PE holds.
func (p *PE) free() error {
	var errs []error
	if p.worker != nil {
		errs = append(errs, p.worker.Close())
	}
	p.bury()
	if p.region != nil {
		errs = append(errs, p.region.Close())
	}
	return errors.Join(errs...)
}

// leave sends what has begun, for a program that has returned. What became of it, Quiet would have
// told.
func (p *PE) leave(ctx context.Context) {
	_ = p.worker.Flush(ctx, transport.FlushLocal)
}
