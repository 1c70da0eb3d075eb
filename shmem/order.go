package shmem

import (
	"context"

	"ibverbx/transport"
)

// Fence orders this PE's puts, atomics and signals, for each target PE separately: what is called
// after it lands after what was called before. It completes nothing, waits for nothing and cannot
// fail: the next call to each PE establishes the order, and may wait for room and return an error.
// A call that returns an error leaves the fence in force for those that follow.
func (p *PE) Fence() { p.fences.Add(1) }

// behindFence orders what goes to this PE next behind what was called before the last Fence. Two
// goroutines may do so for the same fence; both wait until one of them has done it.
func (t *peer) behindFence(ctx context.Context) error {
	if asked := t.pe.fences.Load(); asked > t.fenced.Load() {
		return t.fence(ctx, asked)
	}
	return nil
}

// fence puts the first asked fences into force.
func (t *peer) fence(ctx context.Context, asked uint64) error {
	if err := t.order(ctx); err != nil {
		return err
	}
	for done := t.fenced.Load(); done < asked && !t.fenced.CompareAndSwap(done, asked); {
		done = t.fenced.Load()
	}
	return nil
}

// order orders what goes to this PE next behind what went before. The peer's processor sees the
// writes of one NIC in their order. Writes of several NICs may pass each other on the way to its
// memory, although they are acknowledged: there a read on every queue pair goes between.
func (t *peer) order(ctx context.Context) error {
	if t.multiNIC {
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

// Quiet waits until every put, get, atomic and signal that any goroutine of this PE has called is
// complete: sources are free, the data of gets has arrived, and that of puts is visible to every
// PE.
func (p *PE) Quiet(ctx context.Context) error { return p.quiet(ctx, "quiet") }

func (p *PE) quiet(ctx context.Context, op string) error {
	orphans := p.takeOrphans()
	if err := p.worker.Flush(ctx, transport.FlushRemote); err != nil {
		p.keepOrphans(orphans...)
		return p.opError(op, err)
	}
	if orphans != nil {
		p.closeOrphans(orphans)
	}
	return nil
}
