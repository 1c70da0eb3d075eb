package shmem

import (
	"context"
	"errors"
	"time"

	"ibverbx/transport"
)

// isNoResource reports whether an operation could not start for want of resources.
func isNoResource(err error) bool { return err != nil && errors.Is(err, transport.ErrNoResource) }

// begin starts an operation; while that lacks resources it makes progress and tries again. The
// function stays on its caller's stack.
func (p *PE) begin(ctx context.Context, try func() error) error {
	err := try()
	if !isNoResource(err) {
		return err
	}
	p.worker.Progress()
	waited := p.worker.WaitFor(ctx, 0, func() bool {
		err = try()
		return !isNoResource(err)
	})
	if waited != nil {
		return waited
	}
	return err
}

// await makes progress until done, which looks at what other PEs write into this heap. It gives up
// when a PE has failed or closed; from is the one whose write it waits for, or nil for any.
func (p *PE) await(ctx context.Context, op string, from *peer, done func() bool) error {
	return p.watch(ctx, op, from, false, done)
}

// awaitCollective is await for collective calls: when it takes long, it checks that the PEs are in
// the same call.
func (p *PE) awaitCollective(ctx context.Context, op string, from *peer, done func() bool) error {
	return p.watch(ctx, op, from, !p.closing.Load(), done)
}

// watch is await, and compares the PEs' calls if asked to.
func (p *PE) watch(ctx context.Context, op string, from *peer, compare bool, done func() bool) error {
	if done() {
		return nil
	}
	v := watcher{p: p, from: from, step: p.cfg.Step}
	for {
		err := p.worker.WaitFor(ctx, v.step, func() bool { return done() || v.over() })
		switch {
		case done(): // also if the writer has failed or closed right afterwards
			return nil
		case err != nil:
			return opError(op, err)
		case v.err != nil:
			return opError(op, v.err)
		}
		if compare {
			if err := p.compare(ctx, op, from); err != nil {
				return err
			}
		}
		v.step = min(2*v.step, maxStep)
	}
}

// watcher decides when a PE that waits for others stops to look around.
type watcher struct {
	p      *PE
	from   *peer         // the PE whose write p waits for, or nil for any
	step   time.Duration // how long p sleeps between looks at its heap
	looks  int           // calls of over so far
	longer time.Time     // when to look around, and to sleep longer at a time
	err    error         // why p must stop waiting
}

// maxStep bounds how long a PE sleeps between looks at its heap.
const maxStep = time.Millisecond

// over reports whether to stop waiting for now: because err is set, or to compare calls and wait in
// longer steps.
func (v *watcher) over() bool {
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
	if !p.closing.Load() {
		if v.err = p.stopped(); v.err != nil {
			return true
		}
	}
	v.looks++
	if p.cfg.Transport.Idle != nil {
		return v.looks%lookRounds == 0 // with a scheduler of its own a program has its own time
	}
	return v.looks%16 == 1 && v.clock()
}

// lookRounds is how many looks at the heap there are between two comparisons where no clock may be
// used.
const lookRounds = 1000

// clock reports whether it is time to compare. Reading the time costs as much as a few looks.
func (v *watcher) clock() bool {
	now := time.Now()
	if v.longer.IsZero() {
		v.longer = now.Add(20 * v.step)
	}
	if now.After(v.longer) {
		v.longer = now.Add(20 * v.step)
		return true
	}
	return false
}
