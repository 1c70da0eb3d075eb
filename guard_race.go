//go:build race

package ibverbx

import "sync/atomic"

// ownerGuard detects that two goroutines use a virtual CQ or its virtual queue pairs at once.
type ownerGuard struct{ busy atomic.Bool }

func (g *ownerGuard) enter() {
	if g.busy.Swap(true) {
		panic("ibverbx: concurrent use of a VirtualCQ or its VirtualQPs: one goroutine at a time may own " +
			"them")
	}
}

func (g *ownerGuard) exit() { g.busy.Store(false) }
