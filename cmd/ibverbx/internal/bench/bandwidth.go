package bench

import (
	"fmt"
	"slices"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// bandwidth measures a cell.
func (c *cell) bandwidth() error { return c.rounds(c.mem.longest(c.p, c.size), c.flows[0].tx, c.try) }

// try is a round that may fail where a fault has asked for it: then it counts for nothing, and the
// next one is in place of it.
func (c *cell) try(limit int, warmup bool) (rate float64, err error) {
	rate, err = c.round(limit, warmup)
	return rate, c.survive(err)
}

// round runs and verifies one round of up to limit messages a direction, and says how many came a
// second. Only run is timed.
func (c *cell) round(limit int, warmup bool) (rate float64, err error) {
	number := c.mem.nextRound()
	for i, f := range c.flows {
		f.start(number, limit, &c.brake)
		f.early = warmup && c.p.Verify && c.p.Mode == Bandwidth && f.compares()
		f.before = c.rig.sent
		f.faults = nil
		if !warmup && i == 0 {
			f.faults = c.rig.faults
		}
	}
	if err := c.begin(limit, warmup); err != nil {
		return 0, err
	}
	ctx, watch, cancel := c.deadline(limit)
	defer cancel()
	start := time.Now()
	err = c.lanes.run(ctx, c.p.Wait, watch)
	elapsed := c.lanes.took(start)
	if !warmup {
		c.rig.sent += c.flows[0].posted
	}
	if err != nil {
		return 0, err
	}
	count, verified := 0, 0
	for _, f := range c.flows {
		count += f.posted
		if c.p.Verify && f.compares() {
			if err := f.verify(); err != nil {
				return 0, err
			}
			c.result.Verified += f.posted
			verified += f.posted
		}
	}
	sent := elapsed
	if c.peer != nil && c.lanes.apart.mine == nil {
		sent = 0 // what the clock of an end sees that sends nothing is conversation
	}
	theirs, err := c.conclude(verified, sent)
	if err != nil {
		return 0, err
	}
	if c.peer != nil && c.peer.leads && c.cut(limit) && !c.interrupted() {
		// A round that is cut counts nothing: one that the peer cuts again and again would never
		// end.
		return 0, fmt.Errorf("%w: the peer stopped a round before its end", rendezvous.ErrProtocol)
	}
	// Of two ends that send at the same time the slower one counts, for neither clock sees both.
	elapsed = max(elapsed, min(theirs, time.Since(start)))
	if !warmup && !c.cut(limit) {
		c.timed += elapsed
		c.result.Messages += count
		c.result.Bytes += uint64(count) * uint64(c.size)
	}
	c.through += count
	c.rig.faults.outlived()
	c.rate = float64(c.flows[0].posted) / max(elapsed.Seconds(), 1e-9)
	return c.rate, nil
}

// cut says whether the round of two ends that send at the same time was stopped: then they did not
// stop at the same time, and it is no measure of both.
func (c *cell) cut(limit int) bool {
	return c.peer != nil && len(c.flows) > 1 &&
		slices.ContainsFunc(c.flows, func(f *flow) bool { return f.posted < limit })
}
