package shmem

import (
	"context"
	"errors"

	"ibverbx/transport"
	"ibverbx/verbs"
)

const writable = verbs.AccessLocalWrite

// Fence orders this PE's puts, atomics and signals, to each PE separately: what is called after it
// lands after what was called before. It completes nothing, waits for nothing and cannot fail: the
// next call to each PE keeps the order, and that one may wait for room and return an error. A call
// that did return an error leaves the fence in force for those that follow.
func (p *PE) Fence() { p.fences.Add(1) }

// behindFence makes sure that what comes next to this PE is behind what was called before the last
// Fence. Two goroutines may do so for the same fence; none goes ahead before one of them has done
// it.
func (t *peer) behindFence(ctx context.Context) error {
	if asked := t.pe.fences.Load(); asked > t.fenced.Load() {
		return t.fence(ctx, asked)
	}
	return nil
}

func (t *peer) fence(ctx context.Context, asked uint64) error {
	if err := t.order(ctx); err != nil {
		return err
	}
	for done := t.fenced.Load(); done < asked && !t.fenced.CompareAndSwap(done, asked); {
		done = t.fenced.Load()
	}
	return nil
}

// order puts what comes next to this PE behind what was before. The peer's processor sees one NIC's
// writes in their order. Writes of several NICs may pass each other on the way to its memory,
// though they are acknowledged: there a read on every queue pair goes between.
func (t *peer) order(ctx context.Context) error {
	if t.spread {
		err := t.pe.begin(ctx, func() error {
			_, err := t.ep.StartFlush(transport.FlushRemote, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	t.ep.Fence()
	return nil
}

// Quiet waits until every put, get, atomic and signal that this PE has called, from whichever
// goroutine, is complete: sources are free, what was got is there, and what was put is visible to
// every PE.
func (p *PE) Quiet(ctx context.Context) error { return p.quiet(ctx, "quiet") }

func (p *PE) quiet(ctx context.Context, op string) error {
	if err := p.worker.Flush(ctx, transport.FlushRemote); err != nil {
		return p.concerned(op, err)
	}
	if p.orphaned() {
		p.bury()
	}
	return nil
}

// concerned makes the error of a call that concerned all PEs.
func (p *PE) concerned(op string, err error) error {
	for i := range p.peers {
		if gone := p.peers[i].gone.Load(); gone != nil && errors.Is(err, gone.Err) {
			return fails(op, gone)
		}
	}
	return fails(op, err)
}

func (p *PE) orphaned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.orphans) != 0
}
