package rc

import "math"

// rival is the rule by which a window competes with those of others that fill every queue: that of
// TCP CUBIC (RFC 9438). It grows with the time since the last loss, at least as Reno's would, and a
// loss takes a part of it, once a round trip.
//
// Ends of this package that compete with each other once the others are gone would never see the
// queue gone. So they slow down at the same time: each when what it has lost has been repaired,
// since a queue that overflows takes from several, and when the round trip falls at once, since
// others have slowed down.
//
// Invariant: while it waits, the window grows from what is under way, up to window.threshold.
type rival struct {
	competes bool
	waits    bool    // for what was lost, to slow down
	before   float64 // the window before the delay began to take from it
	found    int64   // the round trip that made it compete
	round    int64   // the shortest round trip of the last round

	most  float64 // the window at which the last packet was lost
	since int64   // when it began to grow after that; 0 is not yet
	back  float64 // seconds from then until the window is as large again
	reno  float64 // the window that Reno would have
}

const (
	cubicScale = 0.4 // C of RFC 9438, 5.1
	dip        = 7   // tenths of a round trip that others leave when they slow down
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
