package bench

import (
	"context"
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

// copier measures copy() of messages of a size.
type copier struct {
	size int
	pace float64 // bytes a second of a direction; 0 before it has warmed up
}

// sampleTime is how long a sample of copy() takes.
func (p *Params) sampleTime() time.Duration {
	d := time.Second / 20
	switch {
	case p.copyTime > 0:
		d = p.copyTime
	case p.Duration > 0:
		d = min(time.Duration(p.Duration), time.Second/2)
	}
	return d / time.Duration(p.Samples)
}

// sample measures copy() by one goroutine: the same messages, from and to the same places, in the
// same rounds, compared likewise. It returns bytes a second.
func (c *copier) sample(ctx context.Context, p *Params, m *memory) (float64, error) {
	directions := copies(p, m)
	slots := m.slots(c.size)
	if p.Iterations > 0 {
		slots = min(slots, p.Iterations) // otherwise the caches would favour one of the two
	}
	target := p.sampleTime()
	var timed time.Duration
	var bytes int
	for bytes == 0 || timed < target && ctx.Err() == nil {
		round := m.nextRound()
		n := slots
		if c.pace > 0 {
			n = min(n, int(c.pace*(target-timed).Seconds()/float64(c.size))+1)
		}
		start := time.Now()
		for _, d := range directions {
			d.copy(m, round, n, c.size)
		}
		lap := time.Since(start)
		if c.pace > 0 { // the first one warms up
			timed += lap
			bytes += n * c.size * len(directions)
		}
		c.pace = float64(n*c.size) / max(lap.Seconds(), 1e-9)
		if p.Verify {
			for _, d := range directions {
				if err := m.verify(d.dst, d.src, round, n, c.size); err != nil {
					return 0, err
				}
			}
		}
	}
	if timed == 0 {
		return 0, nil
	}
	return float64(bytes) / timed.Seconds(), nil
}
