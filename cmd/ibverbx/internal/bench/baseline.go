package bench

import (
	"sync/atomic"
	"time"
)

// baseline measures copy() by one goroutine: the same messages, from and to the same places, in the same rounds, compared
// likewise. It returns GB/s.
func baseline(p *Params, m *memory, size int, brake *atomic.Bool) (float64, error) {
	type pair struct{ dst, src []byte }
	pairs := []pair{{m.ends[1].dst, m.ends[0].src}}
	if p.Op == Read {
		pairs[0] = pair{m.ends[0].dst, m.ends[1].src}
	}
	if p.Bidirectional {
		pairs = append(pairs, pair{m.ends[0].dst, m.ends[1].src})
		if p.Op == Read {
			pairs[1] = pair{m.ends[1].dst, m.ends[0].src}
		}
	}
	slots := m.slots(size)
	if p.Iterations > 0 {
		slots = min(slots, p.Iterations) // or the caches would serve one and not the other
	}
	target := p.copyTime
	switch {
	case target > 0:
	case p.Duration > 0:
		target = min(time.Duration(p.Duration)/2, time.Second/4)
	default:
		target = time.Second / 20
	}
	var timed time.Duration
	var bytes int
	for round := uint64(0); round < 1 || timed < target && !brake.Load(); round++ {
		n := slots
		if timed > 0 {
			n = min(n, int(float64(bytes/len(pairs)/size)*(target-timed).Seconds()/timed.Seconds())+1)
		}
		start := time.Now()
		for _, pr := range pairs {
			for slot := range n {
				from := m.source(round, slot, size)
				copy(pr.dst[slot*size:(slot+1)*size], pr.src[from:from+size])
			}
		}
		lap := time.Since(start)
		if round > 0 { // the first one warms up
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
