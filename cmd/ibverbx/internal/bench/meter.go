package bench

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// How long the warm-up and a round may take where nothing is known of the NICs' speed.
	warmupPatience = 50 * time.Millisecond
	roundPatience  = 2 * time.Second
	// uncutPatience is how long a round may take that is not cut short
	// when the user interrupts the run.
	uncutPatience = time.Second / 4
)

// meter is what a cell has measured, and decides how much it still measures.
type meter struct {
	*runner
	size       int // of a message, in bytes
	directions int // in which messages are counted, 1 or 2
	// most is how long a round may take; 0 for any time. The first rounds are short: nothing is
	// known of the NICs' speed.
	most   time.Duration
	turn   int // of the size's turns, in each of which a sample is taken
	result Result
	tally
}

// tally is what was measured of a figure so far.
type tally struct {
	timed   time.Duration // all timed rounds together
	rate    float64       // messages a second of a direction, as the last round went
	warm    bool          // the warm-up is over
	samples series        // messages a second, or medians in nanoseconds
}

// rounds measures in rounds of at most longest messages, at least so many as are outstanding. try
// does one, and says how many messages of a direction came a second.
func (c *meter) rounds(longest, outstanding int,
	try func(limit int, warmup bool) (rate float64, err error)) error {
	// The warm-up grows rings and wakes workers, and shows how fast messages go. They are compared,
	// those that notify at the moment of the notification, by when they must be there.
	warmup, least := min(longest, c.left(), outstanding), outstanding
	if c.most > 0 {
		least = 1
	}
	if !c.warm {
		if err := c.warmUp(warmup, try); err != nil {
			return err
		}
	}
	target := c.target()
	first, begun := c.result.Messages, c.timed
	var err error
	for c.more(target) || c.owes(begun) {
		limit := min(longest, c.left())
		if target > 0 {
			// A slow link must not make the run much longer than asked for.
			limit = min(limit, max(least, int((target-c.timed).Seconds()*c.rate)+1))
		}
		limit = min(limit, c.longestRound(c.rate))
		before := c.result.Messages
		start := c.timed
		if _, err = try(limit, false); err != nil {
			break
		}
		if lap := c.timed - start; lap > 0 {
			c.rate = float64(c.result.Messages-before) / float64(c.directions) / lap.Seconds()
		}
	}
	if took := c.timed - begun; took > 0 {
		c.samples.set(c.turn, float64(c.result.Messages-first)/took.Seconds())
	}
	c.result.Seconds = c.timed.Seconds()
	return err
}

// warmUp sends the messages that do not count. Where nothing is known of the NICs' speed, one shows
// how many that can be.
func (c *meter) warmUp(n int, try func(limit int, warmup bool) (rate float64, err error)) (err error) {
	if c.most > 0 {
		if c.rate, err = try(1, true); err != nil {
			return err
		}
		n = min(n, int(c.rate*warmupPatience.Seconds()))
	}
	if n > 0 {
		if c.rate, err = try(n, true); err != nil {
			return err
		}
	}
	c.warm = true
	return nil
}

// target is how long all timed rounds take together when this turn is over;
// 0 where messages are counted.
func (c *meter) target() time.Duration {
	return time.Duration(c.p.Duration) * time.Duration(c.turn+1) / time.Duration(c.p.Samples)
}

// longestRound is how many messages a round has at most at a rate: a round that a slow NIC takes
// long for could not be distinguished from one that has stalled.
func (c *meter) longestRound(rate float64) int {
	if c.most == 0 {
		return maxRound
	}
	return max(1, int(min(rate*c.most.Seconds(), maxRound)))
}

// more says whether a further round is wanted.
func (c *meter) more(target time.Duration) bool {
	if c.interrupted() {
		return false
	}
	if target > 0 {
		return c.timed < target
	}
	return c.left() > 0
}

// owes reports whether a round is due although the turns before took longer than asked for: each
// turn gives a sample, unless links are so slow that the run would take many times as long.
func (c *meter) owes(begun time.Duration) bool {
	return c.timed == begun && c.p.Duration > 0 && c.timed < overtime*time.Duration(c.p.Duration) &&
		!c.interrupted()
}

// overtime is how many times as long as asked for a cell may take for its samples.
const overtime = 4

// left is how many messages a direction still has to send in this turn, of a run by iterations.
func (c *meter) left() int {
	if c.p.Iterations == 0 {
		return maxRound
	}
	return c.p.Iterations*(c.turn+1)/c.p.Samples - c.result.Messages/c.directions
}

// batches measures in batches of messages that go one at a time. batch sends some, takes their
// times into both histograms, and says how many can be sent a second. part is of this turn alone.
func (c *meter) batches(batch func(n int, warmup bool) (rate float64, err error),
	all, part *hdrhistogram.Histogram) (err error) {
	if !c.warm {
		// A few messages show how long one takes; then comes the warm-up itself,
		// if it is not too long.
		c.rate, err = batch(min(4, c.mem.slots(c.size)), true)
		if err == nil {
			n := min(latencyWarmup, c.mem.slots(c.size), int(c.rate*latencyPatience.Seconds()))
			if n > 0 {
				c.rate, err = batch(n, true)
			}
		}
		all.Reset()
		c.warm = err == nil
	}
	part.Reset()
	target := c.target()
	for begun := c.timed; err == nil && (c.more(target) || c.owes(begun)); {
		n := min(c.mem.slots(c.size), c.left())
		if target > 0 {
			n = min(n, max(int((target-c.timed).Seconds()*c.rate), 0)+1)
		}
		n = min(n, c.longestRound(c.rate))
		c.rate, err = batch(n, false)
	}
	if part.TotalCount() > 0 {
		c.samples.set(c.turn, float64(part.ValueAtQuantile(50)))
	}
	c.result.Seconds = c.timed.Seconds()
	return err
}

// deadlineHere is a deadline where both ends are in this process.
func (c *meter) deadlineHere() (context.Context, *watchdog, context.CancelFunc) {
	ctx, w, cancel := watched(context.Background(), patience(c.p, idlePatience, c.size))
	stop := context.AfterFunc(c.ctx, func() { time.AfterFunc(lastRound, cancel) })
	return ctx, w, func() { stop(); cancel() }
}
