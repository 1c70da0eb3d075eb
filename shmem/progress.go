package shmem

import (
	"context"
	"errors"
	"time"

	"ibverbx/transport"
)

// lacking reports whether an operation could not start for now.
func lacking(err error) bool { return err != nil && errors.Is(err, transport.ErrNoResource) }

// begin starts an operation, and makes progress until it does not lack resources any more. The
// function stays on its caller's stack.
func (p *PE) begin(ctx context.Context, try func() error) error {
	err := try()
	if !lacking(err) {
		return err
	}
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

// await makes progress until done, which looks at what other PEs write into this heap. It gives up
// when a PE has gone; from is the one whose write is waited for, or nil.
func (p *PE) await(ctx context.Context, op string, from *peer, done func() bool) error {
	return p.watch(ctx, op, from, false, done)
}

// meet is await for collective calls: when it takes long, it makes sure that the PEs are in step.
func (p *PE) meet(ctx context.Context, op string, from *peer, done func() bool) error {
	return p.watch(ctx, op, from, !p.closing.Load(), done)
}

func (p *PE) watch(ctx context.Context, op string, from *peer, compare bool, done func() bool) error {
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
		if compare {
			if err := p.compare(ctx, op, from); err != nil {
				return err
			}
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
	longer time.Time // when to look around, and to sleep longer at a time
	err    error
}

// maxStep bounds how long a PE sleeps between looks at its heap.
const maxStep = time.Millisecond

// over says whether to stop waiting for now: because something has happened to the others, or to
// look around and wait in longer steps.
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
	if !p.closing.Load() {
		if v.err = p.stopped(); v.err != nil {
			return true
		}
	}
	v.rounds++
	if p.cfg.Transport.Idle != nil {
		return v.rounds%lookRounds == 0 // a program with a scheduler of its own has its own time
	}
	return v.rounds%16 == 1 && v.clock()
}

// lookRounds is how many looks in vain go by between two looks around where no clock is to be used.
const lookRounds = 1000

// clock looks at the time, which costs as much as a few rounds.
func (v *vigil) clock() bool {
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
