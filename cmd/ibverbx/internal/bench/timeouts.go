package bench

import "time"

const (
	// idlePatience is how long nothing may happen between two ends in this process.
	idlePatience = 20 * time.Second
	// lastRound is how long a round may still take once the user has asked for the end.
	lastRound = 2 * time.Second
	// slowest is the speed, in bytes a second, below which real NICs, emulated ones too,
	// count as stalled.
	slowest = 5e6
)

// patience is how long nothing may move between two ends of which at least one is in this process.
// It is generous, because a slow machine is no error: idlePatience, and what a message takes, in
// both directions, at the slowest speed.
func patience(p *Params, idle time.Duration, size int) time.Duration {
	if p.unknownSpeed() {
		return idle + transfer(2*size, slowest)
	}
	d := idle
	for _, s := range p.Speeds {
		if s > 0 {
			// The messages of a slow NIC queue up behind those of the others.
			d = max(d, idle+4*transfer(2*size*p.rails(), float64(s)))
		}
	}
	return d
}

// transfer is how long bytes take at a speed, in bytes a second.
func transfer(bytes int, speed float64) time.Duration {
	return time.Duration(float64(bytes) / speed * float64(time.Second))
}
