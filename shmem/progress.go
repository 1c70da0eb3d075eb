package shmem

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ibverbx/transport"
)

// lacking reports whether an operation could not start for now.
func lacking(err error) bool { return err != nil && errors.Is(err, transport.ErrNoResource) }

// retry makes progress until try does not lack resources any more.
func (p *PE) retry(ctx context.Context, try func() error) (err error) {
	p.worker.Progress()
	waited := p.worker.WaitFor(ctx, 0, func() bool {
		err = try()
		return !lacking(err)
	})
	if waited != nil {
		return waited
	}
	return err
}

// await makes progress until done, which looks at what other PEs write into this heap. It gives up when a PE has gone; from is the one whose
// write is waited for, or nil.
func (p *PE) await(ctx context.Context, op string, from *peer, done func() bool) error {
	if done() {
		return nil
	}
	v := vigil{p: p, from: from, step: p.cfg.Step}
	for {
		err := p.worker.WaitFor(ctx, v.step, func() bool { return done() || v.over() })
		switch {
		case done(): // also when its writer went right afterwards
			return nil
		case err != nil:
			return fails(op, err)
		case v.err != nil:
			return fails(op, v.err)
		}
		v.step = min(2*v.step, maxStep)
	}
}

// vigil is what a PE keeps in mind while it waits for others.
type vigil struct {
	p      *PE
	from   *peer
	step   time.Duration
	rounds int
	longer time.Time // when to sleep longer at a time
	err    error
}

// maxStep bounds how long a PE sleeps between looks at its heap.
const maxStep = time.Millisecond

// over says whether to stop waiting for now: because something has happened to the others, or to wait in longer steps.
func (v *vigil) over() bool {
	p := v.p
	if gone := p.gone.Load(); gone != nil {
		v.err = gone
		return true
	}
	if v.from != nil {
		if gone := v.from.gone.Load(); gone != nil {
			v.err = gone
			return true
		}
	}
	if who := atomic.LoadUint64(word64(p.heap, p.layout.stop)); who != 0 {
		v.err = fmt.Errorf("%w: PE %d has found out, and says how", ErrMismatch, who-1)
		return true
	}
	v.rounds++
	return v.rounds%16 == 1 && v.clock()
}

// clock looks at the time, which costs as much as a few rounds.
func (v *vigil) clock() bool {
	now := time.Now()
	if v.longer.IsZero() {
		v.longer = now.Add(20 * v.step)
	}
	if v.step < maxStep && now.After(v.longer) {
		v.longer = now.Add(20 * v.step)
		return true
	}
	return false
}
