package shmem

import (
	"context"
	"fmt"
	"sync/atomic"
)

// PEs that are out of step would wait for each other forever. The PE that detects it writes the
// stop word of every PE, which all waits and all later collective calls read. A PE detects it at
// once if it receives data that does not fit its call. If nothing arrives, since each PE waits for
// another, they ask: a PE that has waited for some time writes which call it is in to the heap of
// the PE that it waits for, and checks the questions that others have written to its own.

// call adds a collective call to the record. All PEs must make the same one.
func (p *PE) call(op string, k kind, s shape) (tag, error) {
	if err := p.stopped(); err != nil {
		return 0, opError(op, err)
	}
	g := p.record.add(k, s)
	p.enterCall(p.record.step)
	return g, nil
}

// refuse ends a collective call whose arguments are wrong, on all PEs, so that the others do not
// wait.
func (p *PE) refuse(ctx context.Context, k kind, err error) error {
	p.stopAll(ctx, uint64(k)<<32)
	return err
}

// mismatch ends a collective call on all PEs, because PE t is in a different one.
func (p *PE) mismatch(ctx context.Context, op string, t *peer, theirs, mine tag) error {
	p.stopAll(ctx, 0)
	if (theirs^mine)&tagCall == 0 {
		return opError(op, fmt.Errorf("%w: %v and PE %d called %v, but not the same before it",
			ErrMismatch, t, p.id, mine))
	}
	return opError(op, fmt.Errorf("%w: %v called %v, PE %d %v", ErrMismatch, t, theirs, p.id, mine))
}

// stopAll writes the stop word of all PEs, its own included: this PE's number plus one in the lower
// 32 bits, and above them the kind of call that it has refused, or zero for a mismatch.
func (p *PE) stopAll(ctx context.Context, why uint64) {
	for i := range p.peers {
		// A PE that cannot be reached notices by itself that another has failed.
		_ = p.peers[i].putWord(ctx, p.layout.stop, why|uint64(p.id)+1)
	}
	_ = p.flushLocal(ctx, "")
}

// stopped returns the error that the stop word stands for; nil while it is zero.
func (p *PE) stopped() error {
	v := atomic.LoadUint64(word64(p.heap, p.layout.stop))
	if v == 0 {
		return nil
	}
	who := v&(1<<32-1) - 1
	if k := kind(v >> 32); k != 0 {
		return fmt.Errorf("%w: PE %d called %v with wrong arguments: see its error", ErrMismatch, who, k)
	}
	return fmt.Errorf("%w: PE %d found the mismatch: see its error", ErrMismatch, who)
}

// ask tells the peer, once per call, which call this PE waits for it in. The words land in any
// order: the third, a hash of the others, shows that all three belong to one question.
func (t *peer) ask(ctx context.Context) error {
	p := t.pe
	step := p.record.step
	if t.asked == step {
		return nil
	}
	t.asked = step
	g := uint64(p.record.tag())
	for i, v := range [...]uint64{step, g, mix(step, g)} {
		if err := t.putWord(ctx, p.layout.question(p.id)+8*uint64(i), v); err != nil {
			return err
		}
	}
	return nil
}

// question returns the peer's last question; ok is false if not all of it has arrived.
func (t *peer) question() (step uint64, g tag, ok bool) {
	var v [3]uint64
	for i := range v {
		v[i] = atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.question(t.id)+8*uint64(i)))
	}
	return v[0], tag(v[1]), v[2] == mix(v[0], v[1])
}

// compare asks the PE that this one waits for, and fails if a PE that has asked was, or is, in a
// different call. If from is nil, it asks all PEs for which a step waits.
func (p *PE) compare(ctx context.Context, op string, from *peer) error {
	for i := range p.peers {
		t := &p.peers[i]
		if step, theirs, ok := t.question(); ok {
			if mine, ok := p.record.at(step); ok && mine != theirs {
				return p.mismatch(ctx, op, t, theirs, mine)
			}
		}
		if t == from || from == nil && t.waits() {
			if err := t.ask(ctx); err != nil {
				return t.opError(op, err)
			}
		}
	}
	return nil
}
