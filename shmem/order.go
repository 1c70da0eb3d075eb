package shmem

import (
	"context"
	"errors"

	"ibverbx/transport"
	"ibverbx/verbs"
)

const writable = verbs.AccessLocalWrite

// Fence orders this PE's puts, atomics and signals, to each PE separately: what is called after it lands after what was called before. It completes
// nothing, and does not wait for anything to land.
func (p *PE) Fence() {
	for i := range p.peers {
		_ = p.peers[i].order(context.Background()) // an endpoint that fails says so to what comes next
	}
}

// order puts what comes next to this PE behind what was before. The peer's processor sees one NIC's writes in their order. Writes of several
// NICs may pass each other on the way to its memory, though they are acknowledged: there a read on every queue pair goes between.
func (t *peer) order(ctx context.Context) error {
	if t.spread {
		_, err := t.ep.StartFlush(transport.FlushRemote, nil)
		if lacking(err) {
			err = t.pe.retry(ctx, func() error {
				_, err := t.ep.StartFlush(transport.FlushRemote, nil)
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	t.ep.Fence()
	return nil
}

// Quiet waits until every put, get, atomic and signal that this PE has called, from whichever goroutine, is complete: sources are free, what was
// got is there, and what was put is visible to every PE.
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
