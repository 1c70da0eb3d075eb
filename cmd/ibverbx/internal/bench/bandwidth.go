package bench

import (
	"time"
)

// bandwidth measures a cell.
func (c *cell) bandwidth() error {
	slots := c.mem.slots(c.size)
	// The warm-up grows rings and wakes workers, and tells how fast it goes. Its messages are compared, and those that notify
	// at the moment of the notification, by when they must be there.
	rate, err := c.round(min(slots, c.left(), c.flows[0].tx), true)
	if err != nil {
		return err
	}
	target := time.Duration(c.p.Duration)
	var timed time.Duration
	for c.more(timed, target) {
		limit := min(slots, c.left())
		if target > 0 {
			// Not much longer than asked for, also on a slow link.
			limit = min(limit, max(c.flows[0].tx, int((target-timed).Seconds()*rate)+1))
		}
		before := c.result.Messages
		start := c.timed
		if _, err = c.round(limit, false); err != nil {
			break
		}
		if lap := c.timed - start; lap > 0 {
			rate = float64(c.result.Messages-before) / float64(len(c.flows)) / lap.Seconds()
		}
		timed = c.timed
	}
	c.result.Seconds = c.timed.Seconds()
	return err
}

// more says whether a further round is wanted.
func (c *cell) more(timed, target time.Duration) bool {
	if c.interrupted() {
		return false
	}
	if target > 0 {
		return timed < target
	}
	return c.left() > 0
}

// left is how many messages a direction still has to send, of a run by iterations.
func (c *cell) left() int {
	if c.p.Iterations == 0 {
		return maxSlots
	}
	return c.p.Iterations - c.result.Messages/len(c.flows)
}

// round runs and verifies one round of up to limit messages a direction, and says how many came a second. Only run is timed.
func (c *cell) round(limit int, warmup bool) (rate float64, err error) {
	for _, f := range c.flows {
		f.start(limit, &c.brake)
		f.early = warmup && c.p.Verify
		f.before = c.rig.sent
		f.faults = nil
		if !warmup && f.from == c.rig.a {
			f.faults = c.rig.faults
		}
	}
	ctx, cancel := bounded(patience(c.p, limit*c.size))
	stop := c.hurry(cancel)
	start := time.Now()
	err = c.lanes.run(ctx, c.p.Wait)
	elapsed := time.Since(start)
	stop()
	cancel()
	if !warmup {
		c.timed += elapsed
		c.rig.sent += c.flows[0].posted
	}
	if err != nil {
		return 0, err
	}
	count := 0
	for _, f := range c.flows {
		count += f.posted
		if c.p.Verify {
			if err := f.verify(); err != nil {
				return 0, err
			}
			c.result.Verified += f.posted
		}
	}
	if !warmup {
		c.result.Messages += count
		c.result.Bytes += uint64(count) * uint64(c.size)
	}
	return float64(c.flows[0].posted) / max(elapsed.Seconds(), 1e-9), nil
}
