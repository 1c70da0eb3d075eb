package rc

import "math"

// rival is the rule by which a window competes with flows that fill every queue: that of TCP CUBIC
// (RFC 9438). The window grows with the time since the last loss, at least as fast as Reno's, and a
// loss takes a part of it, once a round trip.
//
// Ends of this package that only compete with each other, because the other flows are gone, would
// never find the queue gone. So they slow down at the same time: each when its losses have been
// repaired, since a queue that overflows drops packets of several, and when the round trip falls
// suddenly, since others have slowed down.
//
// Invariant: while it waits, the window grows from what is under way, up to window.threshold.
type rival struct {
	competes bool
	waits    bool    // until its losses are repaired, then slows down
	before   float64 // the window before the delay began to take from it
	found    int64   // the round trip that made it compete
	round    int64   // the shortest round trip of the last round

	most  float64 // the window at which the last packet was lost
	since int64   // when it began to grow after that; 0 if it has not
	back  float64 // seconds from then until the window is as large again
	reno  float64 // Reno's window in its place
}

const (
	cubicScale = 0.4 // C of RFC 9438, 5.1
	dip        = 7   // tenths of the round trip that remain when others slow down
)

// cut returns the window after a loss.
func (r *rival) cut(packets float64) float64 {
	if packets < r.most {
		packets, r.most = packets*shrink, packets*(1+shrink)/2 // leaves room for others (4.7)
	} else {
		packets, r.most = packets*shrink, packets
	}
	r.since = 0
	return packets
}

// grow returns the window after a round without a loss.
func (r *rival) grow(now int64, packets float64) float64 {
	if r.since == 0 {
		r.since, r.reno = now, packets
		r.most = max(r.most, packets)
		r.back = math.Cbrt((r.most - packets) / cubicScale)
	}
	if r.reno < r.most {
		r.reno += 3 * (1 - shrink) / (1 + shrink)
	} else {
		r.reno++
	}
	t := float64(now-r.since)/1e9 - r.back
	return max(packets, r.reno, min(cubicScale*t*t*t+r.most, 1.5*packets))
}
