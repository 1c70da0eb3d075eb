package bench

import (
	"context"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
)

// baseline takes a sample of copy(), where that is a comparison: both ends' memory
// is in this process.
func (r *runner) baseline(c *copier, copies *[]float64) error {
	if r.p.Mode.Series() || r.p.Op.Atomic() || r.peer != nil || r.interrupted() {
		return nil
	}
	bytes, err := c.sample(r.ctx, r.p, r.mem)
	if err != nil {
		return fmt.Errorf("copy(): %w", err)
	}
	if bytes > 0 {
		*copies = append(*copies, bytes/1e9)
	}
	return nil
}

// copyRound copies n messages of a round from the ends that send them, and returns how many bytes
// that were.
func (m *memory) copyRound(r layers.Round, n int) (bytes int) {
	for i := range m.ends {
		src, dst := m.ends[i].src, m.ends[1-i].dst
		if len(src) == 0 {
			continue
		}
		for slot := range n {
			from := r.Source(slot)
			bytes += copy(dst[r.Target(slot):], src[from:from+r.Size])
		}
	}
	return bytes
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
	slots := m.slots(c.size)
	if p.Iterations > 0 {
		slots = min(slots, p.Iterations) // otherwise the caches would favour one of the two
	}
	target := p.sampleTime()
	var timed time.Duration
	var bytes int
	for bytes == 0 || timed < target && ctx.Err() == nil {
		r := m.round(m.nextRound(), c.size)
		n := slots
		if c.pace > 0 {
			n = min(n, int(c.pace*(target-timed).Seconds()/float64(c.size))+1)
		}
		start := time.Now()
		copied := m.copyRound(r, n)
		lap := time.Since(start)
		if c.pace > 0 { // the first one warms up
			timed += lap
			bytes += copied
		}
		c.pace = float64(n*c.size) / max(lap.Seconds(), 1e-9)
		for i := range m.ends {
			if src := m.ends[i].src; p.Verify && len(src) > 0 {
				if err := m.verify(m.ends[1-i].dst, src, r.Number, n, c.size); err != nil {
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
