package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/rendezvous"
)

// round is the state of the round under way.
type round struct {
	number uint64
	tasks  [2]layers.Task
	posted [2]int // messages that each end has sent, once its part is played
	// With two processes, each end reports that it has sent its messages once they have completed,
	// and neither ends the round before the other has reported that.
	said, heard bool
}

// task is an end's part in a round of n messages a direction.
func (c *cell) task(ctx context.Context, end, n int, warmup bool) layers.Task {
	t := layers.Task{Ctx: ctx, Round: c.mem.round(c.number, c.size),
		Window: c.outstanding()}
	if c.sends(end) {
		t.Send = n
	}
	if c.shape.Seen && c.sends(1-end) {
		t.Take = n
	}
	t.Answers = end == 1 && c.p.Answered()
	if warmup && t.Take > 0 {
		t.Check = c.early(end)
	}
	if c.p.Mode.Series() {
		t.Window = c.accepted(2) // with 1 an answer would wait for the acknowledgement of the one before
		if end == 0 {
			if len(c.times) < n {
				c.times = make([]int64, n)
			}
			t.Times = c.times[:n]
		}
	}
	// Both ends share a goroutine, unless they are in two processes.
	timed := !warmup && c.sends(end) && (c.recorder != nil || end == 0 && len(c.p.Faults) > 0)
	if timed || c.peer != nil {
		t.Look = func(posted int) error {
			if timed {
				if err := c.look(posted); err != nil {
					return err
				}
			}
			return c.converse()
		}
	}
	return t
}

// runRound runs and verifies one round of n messages a direction.
func (c *cell) runRound(n int, warmup bool) error {
	c.round = round{number: c.mem.nextRound()}
	if c.recorder == nil && c.p.Interval != 0 && !warmup {
		c.recorder = newRecorder(c)
	}
	ctx, cancel := c.deadline()
	defer cancel()
	var ends []*layers.End
	for i, e := range c.pair.ends {
		c.tasks[i] = c.task(ctx, i, n, warmup)
		if e == nil {
			continue
		}
		ends = append(ends, e)
		if err := e.Begin(c.tasks[i]); err != nil {
			return err
		}
	}
	if err := c.begin(n, warmup); err != nil {
		return err
	}
	if !warmup {
		c.pair.watch.start()
	}
	start := time.Now()
	pace := layers.Pace{Spin: c.p.spin(), Stall: c.patience(n, warmup)}
	err := cause(ctx, layers.Run(ctx, pace, c.parted, ends...))
	if !warmup {
		if c.recorder != nil {
			c.recorder.note(c.tally())
		}
		c.pair.watch.stop()
	}
	c.countPosted(warmup)
	if err != nil {
		return err
	}
	elapsed := c.elapsed(start)
	verified, err := c.verify()
	if err != nil {
		return err
	}
	theirs, err := c.conclude(verified, elapsed)
	if err != nil {
		return err
	}
	// Of two ends that send at the same time the slower one counts, since neither clock covers
	// both.
	elapsed = max(elapsed, min(theirs, time.Since(start)))
	if c.p.Mode.Series() && (c.peer == nil || c.peer.leads) {
		elapsed = c.record(n)
	}
	if !warmup {
		c.timed += elapsed
		c.result.Messages += c.posted[0] + c.posted[1]
		c.result.Bytes = uint64(c.result.Messages) * uint64(c.size)
	}
	c.pace = float64(n) / max(elapsed.Seconds(), 1e-9)
	c.pair.carried = c.pace * float64(c.size)
	return nil
}

// countPosted records how many messages each end has sent.
func (c *cell) countPosted(warmup bool) {
	for i, e := range c.pair.ends {
		c.posted[i] = c.tasks[i].Send
		if e != nil {
			c.posted[i] = e.Posted
		}
	}
	if !warmup {
		c.pair.sent += c.posted[0]
	}
}

// record records the n times of a series, and returns their sum.
func (c *cell) record(n int) (all time.Duration) {
	for _, took := range c.times[:n] {
		all += time.Duration(took)
		c.hist.Record(took)
		c.part.Record(took)
	}
	return all
}

// elapsed returns how long the messages of the ends here were under way. With two processes,
// neither the conversation that follows counts, nor anything at an end that sends nothing.
func (c *cell) elapsed(start time.Time) (longest time.Duration) {
	for i, e := range c.pair.ends {
		if t := &c.tasks[i]; e != nil && (t.Send > 0 || t.Take > 0 && c.peer == nil) {
			longest = max(longest, e.EndedAt.Sub(start))
		}
	}
	return longest
}

// deadline returns a context that ends when a round must end: soon after an interrupt, or when the
// other process has gone.
func (c *cell) deadline() (context.Context, func()) {
	if c.peer != nil {
		_, at := c.pair.here()
		return c.peer.watch(c.sends(at))
	}
	return stepsOf(c.ctx, lastRound)
}

// patience returns how long nothing may move in a round of n messages.
func (c *cell) patience(n int, warmup bool) time.Duration {
	if c.peer == nil {
		return patience(c.p, idlePatience, c.size)
	}
	if _, at := c.pair.here(); c.sends(1-at) && !c.shape.Seen {
		// This end does not see the other process's messages: once its own messages are reported
		// nothing moves here. A link slower than slowest is as slow as in the round before, except
		// in the warm-up, whose first message may have been faster than a rate limit allows.
		speed := slowest
		switch {
		case warmup:
			speed = slowestLink
		case c.pace > 0:
			speed = min(speed, c.pace*float64(c.size)/overtime)
		}
		return c.peer.conn.Timeout() + transfer(n*c.size, speed)
	}
	return patience(c.p, c.peer.conn.Timeout(), c.size)
}

// cause returns why ctx ended, if err says only that it has.
func cause(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}

// converse reports to the other process that this end has sent its messages, as soon as it has, and
// receives the same report.
func (c *cell) converse() error {
	if c.peer == nil {
		return nil
	}
	end, at := c.pair.here()
	if !c.said && c.sends(at) && end.Sent {
		c.said = true
		if err := c.peer.conn.Send(c.peer.steps, kindDone, nil); err != nil {
			return err
		}
	}
	if c.heard || !c.sends(1-at) {
		return nil
	}
	select {
	case m := <-c.peer.conn.Inbox():
		c.heard = true
		if m.Kind != kindDone || len(m.Body) > len("null") {
			return fmt.Errorf("%w: message %q came in place of %q", rendezvous.ErrProtocol, m.Kind, kindDone)
		}
	default:
	}
	return nil
}

// parted reports whether both ends of a round have reported that they have sent their messages.
func (c *cell) parted() bool {
	if c.peer == nil {
		return true
	}
	_, at := c.pair.here()
	return (c.said || !c.sends(at)) && (c.heard || !c.sends(1-at))
}

// verify compares the messages that the round brought to this process, and returns their number.
// Both ends are idle.
func (c *cell) verify() (verified int, err error) {
	for end := range c.pair.ends {
		if !c.sends(end) {
			continue
		}
		if target := c.pair.ends[1-end]; target != nil && c.p.Op.Atomic() {
			if got, want := target.Counter(), c.tasks[end].Round.Counter(c.posted[end]); got != want {
				return 0, fmt.Errorf("%w: after round %d the target's counter holds %#x, want %#x",
					layers.ErrVerify, c.number, got, want)
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

// compare checks the data of an end's first n messages.
func (c *cell) compare(end, n int) error {
	at := c.pair.ends[c.compares(end)]
	switch {
	case c.p.Op.Atomic():
		for i := range n {
			if got, want := at.Old(i), c.tasks[end].Round.Counter(i); got != want {
				return fmt.Errorf("%w: %s %d of round %d brought %#x, the counter held %#x", layers.ErrVerify,
					c.p.Op, i, c.number, got, want)
			}
		}
		return nil
	case c.shape.Reads:
		end = 1 - end
	}
	return c.mem.verify(at.Target(), c.mem.ends[end].src, c.number, n, c.size)
}

// early returns a function that compares each message to an end when that end sees it, because its
// bytes must be there by then. It is nil if messages are not compared in this way.
func (c *cell) early(end int) func(i int) error {
	if !c.p.Verify || c.pair.ends[end] == nil {
		return nil
	}
	dst, src, number := c.pair.ends[end].Target(), c.mem.ends[1-end].src, c.number
	return func(i int) error { return c.mem.verifySlot(dst, src, number, i, c.size) }
}

const (
	// idlePatience is how long nothing may happen between two ends in this process.
	idlePatience = 20 * time.Second
	// lastRound is how long a round may still take after an interrupt.
	lastRound = 2 * time.Second
	// slowest is the speed, in bytes a second, below which real NICs, emulated ones too,
	// count as stalled.
	slowest = 5e6
	// slowestLink is the least rate limit, 1 Mbit/s.
	slowestLink = 125e3
)

// patience returns how long nothing may move between two ends of which at least one is in this
// process. It is generous, because a slow machine is no error: idlePatience, plus the time of a
// message in both directions at the slowest speed.
func patience(p *Params, idle time.Duration, size int) time.Duration {
	if p.unknownSpeed() {
		return idle + transfer(2*size, slowest)
	}
	d := idle
	for _, s := range p.Speeds {
		if s > 0 {
			// The messages of a slow NIC queue up behind those of the others.
			d = max(d, idle+4*transfer(2*size*p.rails(), float64(s)))
		}
	}
	return d
}

// transfer returns how long bytes take at a speed in bytes a second.
func transfer(bytes int, speed float64) time.Duration {
	return time.Duration(float64(bytes) / speed * float64(time.Second))
}
