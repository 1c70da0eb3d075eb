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
	// uncutPatience is how long a round may take that is not cut short when the user asks for the
	// end.
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
	timed  time.Duration // all timed rounds together
	result Result
}

// rounds measures in rounds of at most longest messages, at least so many as are outstanding. try
// does one, and says how many messages of a direction came a second.
func (c *meter) rounds(longest, outstanding int, try func(limit int, warmup bool) (rate float64,
	err error)) error {
	// The warm-up grows rings and wakes workers, and shows how fast messages go. They are compared,
	// those that notify at the moment of the notification, by when they must be there.
	warmup, least := min(longest, c.left(), outstanding), outstanding
	var rate float64
	var err error
	if c.most > 0 {
		if rate, err = try(1, true); err != nil {
			return err
		}
		warmup, least = min(warmup, int(rate*warmupPatience.Seconds())), 1
	}
	if warmup > 0 {
		if rate, err = try(warmup, true); err != nil {
			return err
		}
	}
	target := time.Duration(c.p.Duration)
	var timed time.Duration
	for c.more(timed, target) {
		limit := min(longest, c.left())
		if target > 0 {
			// Not much longer than asked for, also on a slow link.
			limit = min(limit, max(least, int((target-timed).Seconds()*rate)+1))
		}
		limit = min(limit, c.longestRound(rate))
		before := c.result.Messages
		start := c.timed
		if _, err = try(limit, false); err != nil {
			break
		}
		if lap := c.timed - start; lap > 0 {
			rate = float64(c.result.Messages-before) / float64(c.directions) / lap.Seconds()
		}
		timed = c.timed
	}
	c.result.Seconds = c.timed.Seconds()
	return err
}

// longestRound is how many messages a round has at most at a rate: a round that a slow NIC takes
// long for could not be distinguished from one that stands still.
func (c *meter) longestRound(rate float64) int {
	if c.most == 0 {
		return maxRound
	}
	return max(1, int(min(rate*c.most.Seconds(), maxRound)))
}

// more says whether a further round is wanted.
func (c *meter) more(timed, target time.Duration) bool {
	if c.interrupted() {
		return false
	}
	if target > 0 {
		return timed < target
	}
	return c.left() > 0
}

// left is how many messages a direction still has to send, of a run by iterations.
func (c *meter) left() int {
	if c.p.Iterations == 0 {
		return maxRound
	}
	return c.p.Iterations - c.result.Messages/c.directions
}

// batches measures in batches of messages that go one at a time. batch sends some, takes their
// times into hist, and says how many can be sent a second.
func (c *meter) batches(batch func(n int, warmup bool) (rate float64, err error),
	hist *hdrhistogram.Histogram) error {
	// A few messages show how long one takes; then the warm-up proper, if that is not too long.
	rate, err := batch(min(4, c.mem.slots(c.size)), true)
	if err == nil {
		if n := min(latencyWarmup, c.mem.slots(c.size), int(rate*latencyPatience.Seconds())); n > 0 {
			rate, err = batch(n, true)
		}
	}
	hist.Reset()
	target := time.Duration(c.p.Duration)
	for err == nil && c.more(c.timed, target) {
		n := min(c.mem.slots(c.size), c.left())
		if target > 0 {
			n = min(n, int((target-c.timed).Seconds()*rate)+1)
		}
		n = min(n, c.longestRound(rate))
		rate, err = batch(n, false)
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
