package vqp_test

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// reset takes an end back to RESET, whatever it was doing: everything outstanding is reported, and
// the failure is forgotten.
func (e *end) reset() {
	e.tb().Helper()
	e.mayFail = true
	if err := e.Reset(); err != nil {
		e.tb().Fatalf("reset: %v", err)
	}
	e.host.pump()
	if !e.settled() {
		e.tb().Fatalf("promise 1: never reported after Reset:\n%s", e.story())
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

// restart resets two ends and connects them anew: traffic flows again, both ways.
func restart(a, b *end) {
	a.tb().Helper()
	a.reset()
	b.reset()
	reunite(a, b)
}

// reunite connects two ends in RESET, and sees that traffic flows.
func reunite(a, b *end) {
	a.tb().Helper()
	lab := a.host.lab
	a.other, b.other = b, a
	err := link(a, b)
	if err != nil && !lab.kind.strict {
		// A network that has just come back may need a moment to find the peer.
		lab.until("a connection", func() bool {
			if err = errors.Join(a.Reset(), b.Reset()); err == nil {
				err = link(a, b)
			}
			return err == nil
		})
	}
	if err != nil {
		a.tb().Fatalf("connect anew: %v", err)
	}
	for _, e := range []*end{a, b} {
		// No NIC touches the memory of the former life any more.
		e.sends, e.recvs, e.arriving = direction{}, direction{}, [2][]*posted{}
		e.due = nil
		e.mayFail, e.earlierTrouble = false, e.trouble()
		e.count = wordAt(e.other.mem.buf[e.word:])
	}
	if len(lab.a.ends) == 1 { // nobody else uses the hosts' memory
		a.mem.plots, b.mem.plots = nil, nil
	}
	converse(a, b)
}

// converse exchanges one request of every kind both ways.
func converse(a, b *end) {
	a.tb().Helper()
	bothWays(a, b, func(from, _ *end) {
		from.deliver(from.write(5*fragment), from.writeImm(9*fragment+1), from.message(300),
			from.read(3*fragment), from.writeImm(1), from.fetchAdd(3), from.cmpSwap(77, true))
	})
	settle(a, b)
}
