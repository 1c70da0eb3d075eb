package bench

import (
	"sync/atomic"
	"time"
)

// copying is where copy() copies to, and from.
type copying struct{ dst, src []byte }

// copies are the directions of the messages.
func copies(p *Params, m *memory) []copying {
	there, back := copying{m.ends[1].dst, m.ends[0].src}, copying{m.ends[0].dst, m.ends[1].src}
	if p.reads() {
		there, back = back, there
	}
	if p.Bidirectional {
		return []copying{there, back}
	}
	return []copying{there}
}

// copy copies the messages of a round.
func (c *copying) copy(m *memory, round uint64, n, size int) {
	for slot := range n {
		from := m.source(round, slot, size)
		copy(c.dst[slot*size:(slot+1)*size], c.src[from:from+size])
	}
}

// baselineTime is how long copy() is measured.
func (p *Params) baselineTime() time.Duration {
	switch {
	case p.copyTime > 0:
		return p.copyTime
	case p.Duration > 0:
		return min(time.Duration(p.Duration)/2, time.Second/4)
	}
	return time.Second / 20
}

// baseline measures copy() by one goroutine: the same messages, from and to the same places, in the
// same rounds, compared likewise. It returns GB/s.
func baseline(p *Params, m *memory, size int, brake *atomic.Bool) (float64, error) {
	directions := copies(p, m)
	slots := m.slots(size)
	if p.Iterations > 0 {
		slots = min(slots, p.Iterations) // or the caches would serve one and not the other
	}
	target := p.baselineTime()
	var timed time.Duration
	var bytes int
	for warm := false; !warm || timed < target && !brake.Load(); warm = true {
		round := m.nextRound()
		n := slots
		if timed > 0 {
			n = min(n, int(float64(bytes/len(directions)/size)*(target-timed).Seconds()/timed.Seconds())+1)
		}
		start := time.Now()
		for _, c := range directions {
			c.copy(m, round, n, size)
		}
		lap := time.Since(start)
		if warm { // the first one warms up
			timed += lap
			bytes += n * size * len(directions)
		}
		if p.Verify {
			for _, c := range directions {
				if err := m.verify(c.dst, c.src, round, n, size); err != nil {
					return 0, err
				}
			}
		}
	}
	if timed == 0 {
		return 0, nil
	}
	return float64(bytes) / timed.Seconds() / 1e9, nil
}
