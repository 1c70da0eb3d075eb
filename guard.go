package ibverbx

import "ibverbx/internal/guard"

// Every public method of a VirtualCQ and its VirtualQPs detects that two goroutines use them at
// once. In builds with the race detector, or with the tag invariants, it also checks the invariants
// before it returns. In other builds enter and exit together cost 0.6 to 1.3 ns (BenchmarkNull...).

const concurrentUse = "ibverbx: concurrent use of a VirtualCQ or its VirtualQPs: " +
	"one goroutine at a time may own them, and none after a panic in a call"

// checkedQPs is how many virtual queue pairs a call on their CQ checks.
const checkedQPs = 16

func (c *VirtualCQ) enter() {
	c.guard.Enter(concurrentUse)
}

func (c *VirtualCQ) exit() {
	if guard.Checked {
		c.checkInvariants()
	}
	c.guard.Exit()
}

func (q *VirtualQP) enter() {
	q.cq.guard.Enter(concurrentUse)
}

func (q *VirtualQP) exit() {
	if guard.Checked {
		q.checkInvariants()
	}
	q.cq.guard.Exit()
}

// checkInvariants checks the first virtual queue pairs of the CQ.
func (c *VirtualCQ) checkInvariants() {
	for _, q := range c.vqps[:min(len(c.vqps), checkedQPs)] {
		q.checkInvariants()
	}
}
