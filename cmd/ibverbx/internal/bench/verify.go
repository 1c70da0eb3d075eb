package bench

import (
	"encoding/binary"
	"fmt"
	"ibverbx/cmd/ibverbx/internal/layers"
	"slices"
)

// verify compares what the round brought to this process, and says how many messages that were.
// Both ends are idle.
func (c *cell) verify() (verified int, err error) {
	for end, e := range c.pair.ends {
		if !c.sends(end) {
			continue
		}
		if c.shape.Atomic && e != nil {
			c.counters[1-end] = e.PeerCounter()
			if target := c.pair.ends[1-end]; target != nil {
				if err := c.checkCounter(1-end, target.Counter()); err != nil {
					return 0, err
				}
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
	case c.shape.Atomic && at.QueuePair() != nil:
		return c.compareEach(at, n)
	case c.shape.Atomic:
		return c.compareResults(at.Results(), end, n)
	case c.wordAlone():
		return nil
	case c.shape.Reads:
		return c.mem.verify(at.Target(), c.mem.ends[1-end].src, c.number, n, c.size)
	}
	return c.mem.verify(at.Target(), c.mem.ends[end].src, c.number, n, c.size)
}

// compareEach compares what each of the first n atomics of a queue pair brought with what the
// counter held before it.
func (c *cell) compareEach(e *layers.End, n int) error {
	for i := range n {
		got, want := binary.NativeEndian.Uint64(e.Target()[i*8:]), e.QueuePair().Expected(i)
		if got != want {
			return fmt.Errorf("%w: %s %d of round %d brought %#x, the counter held %#x", ErrVerify,
				c.shape.Op, i, c.number, got, want)
		}
	}
	return nil
}

// compareResults checks that n atomics, each of which has added one, brought each of the values
// that the counter has had, and each once.
func (c *cell) compareResults(got []uint64, end, n int) error {
	c.sorted = append(c.sorted[:0], got...)
	slices.Sort(c.sorted)
	for i, v := range c.sorted {
		if want := c.tasks[end].Counter + uint64(i); v != want {
			return fmt.Errorf("%w: the results of %d %s of round %d are not what the counter held one "+
				"after the other: %d is missing",
				ErrVerify, n, c.shape.Op, c.number, want)
		}
	}
	return nil
}

// checkCounter compares what an end's counter holds with what it must.
func (c *cell) checkCounter(end int, got uint64) error {
	if want := c.counters[end]; got != want {
		return fmt.Errorf("%w: after round %d the target's counter holds %#x, want %#x", ErrVerify,
			c.number, got, want)
	}
	return nil
}

// early compares each message to an end when that end sees it: its bytes must be there by then. It
// is nil where messages are not compared so. Those of several endpoints come in any order.
func (c *cell) early(end int) func(i int) error {
	if !c.p.Verify || c.pair.ends[end] == nil || c.wordAlone() || c.endpoints > 1 {
		return nil
	}
	dst, src, number := c.pair.ends[end].Target(), c.mem.ends[1-end].src, c.number
	return func(i int) error { return c.mem.verifySlot(dst, src, number, i, c.size) }
}

// wordAlone reports that the message is only the word that the target polls: polling compares it.
func (c *cell) wordAlone() bool { return c.shape.Op == layers.PutPoll && c.size == 8 }
