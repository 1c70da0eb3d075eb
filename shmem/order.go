package shmem

import (
	"context"

	"ibverbx/transport"
)

// Fence orders this PE's puts, atomics and signals, for each target PE separately: those called
// after it land after those called before it. It completes nothing, waits for nothing and cannot
// fail: the next call to each PE establishes the order, and may wait for room and return an error.
// If that call returns an error, the fence stays in force for later ones.
func (p *PE) Fence() { p.fences.Add(1) }

// behindFence orders what goes to this PE next after what was called before the last Fence. If two
// goroutines do this for the same fence, both wait until one of them is done.
func (t *peer) behindFence(ctx context.Context) error {
	if asked := t.pe.fences.Load(); asked > t.fenced.Load() {
		return t.fence(ctx, asked)
	}
	return nil
}

// fence puts all fences up to number asked into force.
func (t *peer) fence(ctx context.Context, asked uint64) error {
	if err := t.order(ctx); err != nil {
		return err
	}
	for done := t.fenced.Load(); done < asked && !t.fenced.CompareAndSwap(done, asked); {
		done = t.fenced.Load()
	}
	return nil
}

// order orders what goes to this PE next after everything sent so far. The peer's processor sees
// the writes of one NIC in order. Acknowledged writes of several NICs may still pass each other on
// the way to its memory: with several NICs a read on every queue pair goes in between.
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
