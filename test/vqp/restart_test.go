package vqp_test

import (
	"errors"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// reset moves an end back to RESET. Everything outstanding is reported, and the error is cleared.
func (e *end) reset() {
	e.tb().Helper()
	e.mayFail = true
	if err := e.Reset(); err != nil {
		e.tb().Fatalf("reset: %v", err)
	}
	e.host.pump()
	if !e.settled() {
		e.tb().Fatalf("promise 1: never reported after Reset:\n%s", e.describe())
	}
	if e.Err() != nil || e.State() != verbs.StateReset {
		e.tb().Fatalf("after Reset: %v, %v", e.State(), e.Err())
	}
	for name, post := range e.posts() {
		if n, err := post(); n != 0 || !errors.Is(err, ibverbx.ErrNotConnected) {
			e.tb().Errorf("%s in RESET: %d, %v", name, n, err)
		}
	}
	e.sends, e.recvs, e.arriving = direction{}, direction{}, [2][]*posted{}
}

// restart resets two ends, connects them, and checks that requests work in both directions.
func restart(a, b *end) {
	a.tb().Helper()
	a.reset()
	b.reset()
	reconnect(a, b)
}

// reconnect connects two ends in RESET, and checks that requests work.
func reconnect(a, b *end) {
	a.tb().Helper()
	rig := a.host.rig
	a.other, b.other = b, a
	err := vqptest.Connect(a.tb(), a.VirtualQP, b.VirtualQP)
	if err != nil && !rig.kind.strict {
		// A link that was just set up may need a moment to find the peer.
		rig.until("a connection", func() bool {
			if err = errors.Join(a.Reset(), b.Reset()); err == nil {
				err = vqptest.Connect(a.tb(), a.VirtualQP, b.VirtualQP)
			}
			return err == nil
		})
	}
	if err != nil {
		a.tb().Fatalf("connect anew: %v", err)
	}
	for _, e := range []*end{a, b} {
		// No NIC accesses memory of the earlier session any more.
		e.sends, e.recvs, e.arriving = direction{}, direction{}, [2][]*posted{}
		e.due = nil
		e.mayFail, e.earlierFailures = false, e.failures()
		e.count = wordAt(e.other.mem.buf[e.word:])
	}
	if len(rig.a.ends) == 1 { // no other end uses the memory of the hosts
		a.mem.plots, b.mem.plots = nil, nil
	}
	exchange(a, b)
}

// exchange exchanges one request of every kind in both directions.
func exchange(a, b *end) {
	a.tb().Helper()
	bothWays(a, b, func(from, _ *end) {
		from.deliver(from.write(5*fragment), from.writeImm(9*fragment+1), from.message(300),
			from.read(3*fragment), from.writeImm(1), from.fetchAdd(3), from.cmpSwap(77, true))
	})
	settle(a, b)
}
