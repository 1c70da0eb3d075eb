package bench

import "fmt"

// verify compares what the round brought to this process, and says how many messages that were.
// Both ends are idle.
func (c *cell) verify() (verified int, err error) {
	for end := range c.pair.ends {
		if !c.sends(end) {
			continue
		}
		if target := c.pair.ends[1-end]; target != nil && c.p.Op.Atomic() {
			if got, want := target.Counter(), c.tasks[end].Round.Counter(c.posted[end]); got != want {
				return 0, fmt.Errorf("%w: after round %d the target's counter holds %#x, want %#x", ErrVerify,
					c.number, got, want)
			}
		}
		if !c.p.Verify || c.pair.ends[c.compares(end)] == nil {
			continue
		}
		if err := c.compare(end, c.posted[end]); err != nil {
			return 0, err
		}
		verified += c.posted[end]
	}
	c.result.Verified += verified
	return verified, nil
}

// compare checks what the first n messages of an end brought.
func (c *cell) compare(end, n int) error {
	at := c.pair.ends[c.compares(end)]
	switch {
	case c.p.Op.Atomic():
		for i := range n {
			if got, want := at.Old(i), c.tasks[end].Round.Counter(i); got != want {
				return fmt.Errorf("%w: %s %d of round %d brought %#x, the counter held %#x", ErrVerify,
					c.p.Op, i, c.number, got, want)
			}
		}
		return nil
	case c.shape.Reads:
		end = 1 - end
	}
	return c.mem.verify(at.Target(), c.mem.ends[end].src, c.number, n, c.size)
}

// early compares each message to an end when that end sees it: its bytes must be there by then. It
// is nil where messages are not compared so.
func (c *cell) early(end int) func(i int) error {
	if !c.p.Verify || c.pair.ends[end] == nil {
		return nil
	}
	dst, src, number := c.pair.ends[end].Target(), c.mem.ends[1-end].src, c.number
	return func(i int) error { return c.mem.verifySlot(dst, src, number, i, c.size) }
}
