package shmem

import (
	"context"

	"ibverbx/transport"
)

// call is what an operation needs that outlives the goroutine's stack. It goes back to the pool
// only once no NIC can write to it any more.
type call struct {
	comp transport.Completion
	old  uint64    // the result of an atomic
	word [1]uint64 // the source or target of one value
}

func (p *PE) getCall() *call  { return p.calls.Get().(*call) }
func (p *PE) putCall(c *call) { p.calls.Put(c) }

// wait waits for a call's operations, and gives the call back unless they go on: then it is left to
// the garbage collector.
func (p *PE) wait(ctx context.Context, c *call) error {
	err := p.worker.Wait(ctx, &c.comp)
	if c.comp.Fired() {
		p.putCall(c)
	}
	return err
}

// fetched waits for an atomic, unless err says that it has not started. It gives the call back and
// returns the value before.
func (p *PE) fetched(ctx context.Context, c *call, err error) (uint64, error) {
	if err != nil {
		p.putCall(c)
		return 0, err
	}
	err = p.worker.Wait(ctx, &c.comp)
	old := c.old
	if c.comp.Fired() {
		p.putCall(c)
	}
	return old, err
}
