package shmem

import (
	"context"
	"errors"

	"ibverbx/internal/worded"
	"ibverbx/transport"
)

// Close ends the PE: it waits until the others close, too, unless one has failed, ends the
// connections and releases the memory; blocks and their Local slices must not be used any more.
// When ctx ends before, Close ends the rest at once. It returns what has failed. It is collective,
// and no other goroutine may be in a call of the PE.
func (p *PE) Close(ctx context.Context) error {
	const op = "close"
	if err := needContext(op, ctx); err != nil {
		return err
	}
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	p.closing.Store(true)
	var err error
	if p.gone.Load() == nil {
		if err = p.quiet(ctx, op); err == nil {
			err = p.disseminate(ctx, op, p.layout.closeRounds, 1<<markBits)
		}
	}
	for i := range p.peers {
		t := &p.peers[i]
		if e := t.ep.Close(ctx); e != nil && err == nil && !errors.Is(e, transport.ErrPeerClosed) {
			err = t.opError(op, e)
		}
	}
	return worded.Join(err, p.free())
}

// free releases what the PE holds.
func (p *PE) free() error {
	var errs []error
	if p.worker != nil {
		errs = append(errs, p.worker.Close())
	}
	p.closeOrphans()
	if p.region != nil {
		errs = append(errs, p.region.Close())
	}
	return errors.Join(errs...)
}

// flushBegun sends what a program has begun that has returned. A program that wants to know whether
// it arrived calls Quiet.
func (p *PE) flushBegun(ctx context.Context) {
	_ = p.worker.Flush(ctx, transport.FlushLocal)
}
