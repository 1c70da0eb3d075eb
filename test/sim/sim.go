package sim

import "ibverbx/test/internal/hunt"

// Game is the simulation as something that is searched, shrunk and played again from a seed.
var Game = hunt.Game{Test: "TestSimulation", Dir: "./test/sim",
	Events: func(seed uint64) int { return len(newPlan(seed).events) }, Play: play}

// play plays the world of a seed, with the events named or all.
func play(seed uint64, keep []int, log func(string)) *Violation {
	p := newPlan(seed)
	if keep != nil {
		for i, at := range keep { // they ascend, so nothing is overwritten before it is read
			p.events[i] = p.events[at]
		}
		p.events = p.events[:len(keep)]
	}
	return p.run(log)
}
