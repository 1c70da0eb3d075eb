//go:build race || invariants

package ibverbx

import "sync/atomic"

// In builds with the race detector, or with the tag invariants, every public method of a VirtualCQ
// and its VirtualQPs detects that two goroutines use them at once, and checks the invariants when
// it has ended.

// ownerGuard is set while a goroutine is inside.
type ownerGuard struct{ busy atomic.Bool }

func (c *VirtualCQ) enter() {
	if c.guard.busy.Swap(true) {
		panic("ibverbx: concurrent use of a VirtualCQ or its VirtualQPs: one goroutine at a time may own " +
			"them")
	}
}

func (c *VirtualCQ) exit() {
	for i, q := range c.vqps {
		if i == checkedQPs {
			break
		}
		q.checkInvariants()
	}
	c.guard.busy.Store(false)
}

func (q *VirtualQP) enter() { q.cq.enter() }

func (q *VirtualQP) exit() {
	q.checkInvariants()
	q.cq.guard.busy.Store(false)
}

// checkedQPs is how many virtual queue pairs a call on their CQ checks.
const checkedQPs = 16
