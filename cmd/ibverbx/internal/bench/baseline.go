package bench

import (
	"sync/atomic"
	"time"
)

// pair is where copy() copies to, and from.
type pair struct{ dst, src []byte }

// copies are the directions of the messages.
func copies(p *Params, m *memory) []pair {
	there, back := pair{m.ends[1].dst, m.ends[0].src}, pair{m.ends[0].dst, m.ends[1].src}
	if p.reads() {
		there, back = back, there
	}
	if p.Bidirectional {
		return []pair{there, back}
	}
	return []pair{there}
}

// copy copies the messages of a round.
func (pr *pair) copy(m *memory, round uint64, n, size int) {
	for slot := range n {
		from := m.source(round, slot, size)
		copy(pr.dst[slot*size:(slot+1)*size], pr.src[from:from+size])
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
	pairs := copies(p, m)
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
			n = min(n, int(float64(bytes/len(pairs)/size)*(target-timed).Seconds()/timed.Seconds())+1)
		}
		start := time.Now()
		for _, pr := range pairs {
			pr.copy(m, round, n, size)
		}
		lap := time.Since(start)
		if warm { // the first one warms up
			timed += lap
			bytes += n * size * len(pairs)
		}
		if p.Verify {
			for _, pr := range pairs {
				if err := m.verify(pr.dst, pr.src, round, n, size); err != nil {
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
