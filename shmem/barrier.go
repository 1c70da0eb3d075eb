package shmem

import (
	"context"
	"errors"
	"sync/atomic"

	"ibverbx/transport"
)

// Barrier calls Quiet and then waits until every PE has called it: what any PE did before it is
// visible to all PEs after it. It is collective.
func (p *PE) Barrier(ctx context.Context) error {
	const op = "barrier"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.barrier(ctx, op)
}

// Sync waits until every PE has called it. Unlike Barrier it completes no operation. It is
// collective.
func (p *PE) Sync(ctx context.Context) error {
	const op = "sync"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.sync(ctx, op)
}

// enter begins a collective call: it takes collective, which the call releases.
func (p *PE) enter(op string) error {
	if !p.collective.TryLock() {
		return opError(op, ErrBusy)
	}
	if p.closing.Load() {
		p.collective.Unlock()
		return opError(op, ErrClosed)
	}
	return nil
}

// barrier is Barrier with collective held.
func (p *PE) barrier(ctx context.Context, op string) error {
	if err := p.quiet(ctx, op); err != nil {
		return err
	}
	return p.sync(ctx, op)
}

// sync is Sync with collective held.
func (p *PE) sync(ctx context.Context, op string) error {
	if _, err := p.call(op, kindBarrier, shape{size: 1}); err != nil {
		return err
	}
	return p.disseminate(ctx, op, p.layout.rounds, p.record.mark(p.syncs.Add(1)))
}

// disseminate sends a mark to all PEs and waits until all have reached it: in round r each PE
// writes to the PE that is 2^r further on, and so passes on all that it has received. The words
// only grow, so the word of a PE that is ahead serves as well. A PE that receives a mark of calls
// other than its own passes nothing on. Each PE receives from every other on some path, and on a
// path between two PEs whose calls differ some PE detects it: if PEs are out of step, none
// completes the barrier.
func (p *PE) disseminate(ctx context.Context, op string, words, mark uint64) error {
	n := len(p.peers)
	for d := 1; d < n; d *= 2 {
		to, from := &p.peers[(p.id+d)%n], &p.peers[(p.id-d+n)%n]
		if err := to.putWord(ctx, words, mark); err != nil {
			return to.opError(op, err)
		}
		word := word64(p.heap, words)
		err := p.awaitCollective(ctx, op, from,
			func() bool { return atomic.LoadUint64(word)>>markBits >= mark>>markBits })
		if err != nil {
			return err
		}
		if got := atomic.LoadUint64(word); got != mark && got>>markBits == mark>>markBits {
			return p.mismatch(ctx, op, from, p.record.tag(), p.record.tag())
		}
		words += 8
	}
	return p.flushLocal(ctx, op)
}

// flushLocal waits until everything that this PE has put has been sent: PEs that wait for it must
// not depend on this PE's next call.
func (p *PE) flushLocal(ctx context.Context, op string) error {
	err := p.worker.Flush(ctx, transport.FlushLocal)
	if err == nil || p.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return nil // a PE that has closed has received everything
	}
	return p.opError(op, err)
}
