package shmem

import (
	"context"
	"errors"
	"sync/atomic"

	"ibverbx/transport"
)

// Barrier is Quiet and then waits until every PE has called it: what anybody did before it everybody sees after it. It is collective.
func (p *PE) Barrier(ctx context.Context) error {
	const op = "barrier"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.barrier(ctx, op)
}

// Sync waits until every PE has called it, and completes nothing. It is collective.
func (p *PE) Sync(ctx context.Context) error {
	const op = "sync"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.sync(ctx, op)
}

// enter begins a collective call.
func (p *PE) enter(op string) error {
	if !p.collective.TryLock() {
		return fails(op, ErrBusy)
	}
	if p.closed.Load() {
		p.collective.Unlock()
		return fails(op, ErrClosed)
	}
	return nil
}

// barrier is Barrier for who holds collective.
func (p *PE) barrier(ctx context.Context, op string) error {
	if err := p.quiet(ctx, op); err != nil {
		return err
	}
	return p.sync(ctx, op)
}

// sync is Sync for who holds collective.
func (p *PE) sync(ctx context.Context, op string) error {
	return p.disseminate(ctx, op, p.layout.rounds, p.syncs.Add(1))
}

// disseminate tells everybody of a number and waits until everybody has reached it: in round r each PE tells the one 2^r further on, and so of all
// that it has heard of. The words are only ever counted up, so one of a PE that is ahead serves as well.
func (p *PE) disseminate(ctx context.Context, op string, words, number uint64) error {
	n := len(p.peers)
	for d := 1; d < n; d *= 2 {
		to, from := &p.peers[(p.id+d)%n], &p.peers[(p.id-d+n)%n]
		if err := to.putWord(ctx, words, number); err != nil {
			return to.told(op, err)
		}
		word := word64(p.heap, words)
		err := p.await(ctx, op, from, func() bool { return atomic.LoadUint64(word) >= number })
		if err != nil {
			return err
		}
		words += 8
	}
	return p.sent(ctx, op)
}

// sent waits until what this PE has put is on its way for sure: who waits for it must not depend on this PE's next call.
func (p *PE) sent(ctx context.Context, op string) error {
	err := p.worker.Flush(ctx, transport.FlushLocal)
	if err == nil || p.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return nil // a PE that has closed has had all
	}
	return p.concerned(op, err)
}

// putWord writes a word of the package's own.
func (t *peer) putWord(ctx context.Context, off, v uint64) error {
	c := t.pe.take()
	c.word[0] = v
	err := t.putShort(ctx, bytesOf(c.word[:]), off)
	t.pe.give(c)
	return err
}
