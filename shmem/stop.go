package shmem

import (
	"context"
	"fmt"
	"sync/atomic"
)

// PEs that are out of step would wait for each other for ever. Whoever finds out writes the stop
// word of every PE, which all waits look at and all later collective calls. One that gets what does
// not fit its call finds out at once. Where nothing comes, since each waits for another, they ask:
// who has waited for some time writes into the heap of whom it waits for what call it is in, and
// compares what others have asked.

// call begins a collective call that all PEs must make alike.
func (p *PE) call(op string, k kind, s shape) (tag, error) {
	if err := p.stopped(); err != nil {
		return 0, fails(op, err)
	}
	return p.record.add(k, s), nil
}

// refuse ends a collective call whose arguments are wrong: the others need not wait.
func (p *PE) refuse(ctx context.Context, k kind, err error) error {
	p.tell(ctx, uint64(k)<<32)
	return err
}

// mismatch ends a collective call in which another PE is in another one.
func (p *PE) mismatch(ctx context.Context, op string, t *peer, theirs, mine tag) error {
	p.tell(ctx, 0)
	if (theirs^mine)&tagCall == 0 {
		return fails(op, fmt.Errorf("%w: %v and PE %d called %v, but not the same before it", ErrMismatch, t,
			p.id, mine))
	}
	return fails(op, fmt.Errorf("%w: %v called %v, PE %d %v", ErrMismatch, t, theirs, p.id, mine))
}

// tell writes the stop word of all PEs, this one's too: its number, and the kind of call that it
// has refused, if so.
func (p *PE) tell(ctx context.Context, why uint64) {
	for i := range p.peers {
		_ = p.peers[i].putWord(ctx, p.layout.stop, why|uint64(p.id)+1) // as far as they can be reached
	}
	_ = p.sent(ctx, "")
}

// stopped says what the stop word says.
func (p *PE) stopped() error {
	v := atomic.LoadUint64(word64(p.heap, p.layout.stop))
	if v == 0 {
		return nil
	}
	who := v&(1<<32-1) - 1
	if k := kind(v >> 32); k != 0 {
		return fmt.Errorf("%w: PE %d called %v with wrong arguments, and its error says which", ErrMismatch,
			who, k)
	}
	return fmt.Errorf("%w: PE %d has found out, and its error says how", ErrMismatch, who)
}

// ask tells the other PE in which call this one waits for it, once a call. Words land in any order:
// the third says that all three are of one question.
func (t *peer) ask(ctx context.Context) error {
	p := t.pe
	step := p.record.step
	if t.asked == step {
		return nil
	}
	t.asked = step
	g := uint64(p.record.tag())
	for i, v := range [...]uint64{step, g, mix(step, g)} {
		if err := t.putWord(ctx, p.layout.asks(p.id)+8*uint64(i), v); err != nil {
			return err
		}
	}
	return nil
}

// asks is what the other PE has asked last.
func (t *peer) asks() (step uint64, g tag, ok bool) {
	var v [3]uint64
	for i := range v {
		v[i] = atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.asks(t.id)+8*uint64(i)))
	}
	return v[0], tag(v[1]), v[2] == mix(v[0], v[1])
}

// compare asks whom this PE waits for, and makes sure that those who ask were, or are, in the same
// call. from nil is everybody who is not done with the trade.
func (p *PE) compare(ctx context.Context, op string, from *peer) error {
	for i := range p.peers {
		t := &p.peers[i]
		if step, theirs, ok := t.asks(); ok {
			if mine, ok := p.record.at(step); ok && mine != theirs {
				return p.mismatch(ctx, op, t, theirs, mine)
			}
		}
		if t == from || from == nil && t.out+t.in != 0 {
			if err := t.ask(ctx); err != nil {
				return t.told(op, err)
			}
		}
	}
	return nil
}
