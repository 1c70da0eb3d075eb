package vqp_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Promise 7: of two virtual queue pairs on one virtual CQ, one fails while both are in use. The
// other is not affected: all its requests complete in order and with their data. The first works
// again after a reset, which does not affect the other either.
func TestFailureStaysOnItsVirtualQP(t *testing.T) {
	cfg := ibverbx.Config{FragmentSize: fragment, MaxMsgCntPerQP: 32}
	for i := range shapes {
		s := &shapes[i]
		t.Run(s.name, func(t *testing.T) {
			rig := newRig(t, s)
			a, b := rig.connect(s.config(cfg))
			other, peer := rig.connect(s.config(cfg))
			if a.CQ() != other.CQ() || b.CQ() != peer.CQ() || a.Num() == other.Num() {
				t.Fatal("the virtual queue pairs do not share their virtual CQs")
			}
			goesOn := func(what string, done func() bool) {
				t.Helper()
				busyUntil(other, peer, what, done)
			}
			a.busy()
			goesOn("traffic of both", underWay(other, peer))
			rig.until("the first one's", func() bool { return a.settled() && b.settled() })

			bad := a.write(8 * fragment)
			bad.Remote, bad.lands = raw(b.mem.mr, 0, 8*fragment, 0x5a5a00), nil
			b.recv()
			b.recv(b.mem.land(8))
			a.mayFail, b.mayFail = true, true
			a.send(bad, a.write(100), a.write(5*fragment))
			goesOn("the failure of the first", func() bool { return a.Err() != nil && b.Err() != nil })
			a.stopped(verbs.StatusRemAccessErr)
			b.stopped(refusedAtTheReceiver...)
			goesOn("traffic of the second", underWay(other, peer))
			restart(a, b)
			goesOn("traffic of the second", underWay(other, peer))
			settle(other, peer)
			settle(a, b)
		})
	}
}
