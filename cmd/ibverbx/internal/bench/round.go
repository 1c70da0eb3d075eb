package bench

import (
	"context"
	"fmt"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/rendezvous"
	"time"
)

// round is the state of the round under way.
type round struct {
	number uint64
	tasks  [2]layers.Task
	posted [2]int // messages that each end has sent, once its part is played
	taken  int    // samples of a series
	watch  *watchdog
	goodbye
}

// task is an end's part in a round of n messages a direction.
func (c *cell) task(end, n int, warmup bool) layers.Task {
	t := layers.Task{Round: c.mem.round(c.number, c.size), Endpoints: c.endpoints,
		Alone: c.p.Mode == Latency, Counter: c.counters[1-end]}
	if c.sends(end) {
		t.Send = n
	}
	if c.shape.Seen && c.sends(1-end) {
		t.Take = n
	}
	t.Answers = end == 1 && c.p.Answered()
	if c.peer != nil {
		t.Meanwhile = c.converse
	}
	if warmup && t.Take > 0 {
		t.Check = c.early(end)
	}
	if c.p.Layered() {
		if t.Alone && end == 0 {
			t.Brake = &c.brake // between two messages of a series nothing is outstanding
		}
		return t
	}
	t.Slots, t.Brake, t.Window = c.mem.slots(c.size), &c.brake, c.outstanding()
	if t.Alone {
		t.Window = c.accepted(2) // with 1 an answer would wait until the one before is acknowledged
	}
	// Both ends share a goroutine where there is a recorder or a fault.
	if !warmup && c.sends(end) && (c.recorder != nil || end == 0 && len(c.p.Faults) > 0) {
		t.Look = c.look
	}
	return t
}

// runRound runs and verifies one round of up to n messages a direction, and says how many came a
// second. Of a series that failed what came before counts.
func (c *cell) runRound(n int, warmup bool) (rate float64, err error) {
	c.round = round{number: c.mem.nextRound()}
	if c.recorder == nil && c.p.Interval != 0 && !warmup {
		c.recorder = newRecorder(c)
	}
	for i, e := range c.pair.ends {
		c.tasks[i] = c.task(i, n, warmup)
		if e != nil {
			if err := e.Begin(c.tasks[i], c.moved); err != nil {
				return 0, err
			}
		}
	}
	if err := c.begin(n, warmup); err != nil {
		return 0, err
	}
	ctx, watch, cancel := c.deadline(n)
	defer cancel()
	c.watch = watch
	if !warmup {
		c.pair.watch.start()
	}
	start := time.Now()
	err = c.play(ctx, n)
	if !warmup {
		if c.recorder != nil {
			c.read()
		}
		c.pair.watch.stop()
	}
	c.countPosted(warmup)
	if err != nil {
		return c.partial(warmup, err)
	}
	elapsed := c.elapsed(start)
	verified, err := c.verify()
	if err != nil {
		return 0, err
	}
	theirs, err := c.conclude(verified, elapsed)
	if err != nil {
		return 0, err
	}
	cut := c.cut(n)
	if c.peer != nil && c.peer.leads && cut && !c.interrupted() {
		// A round that is cut does not count:
		// a peer that cut every round would make the run endless.
		return 0, fmt.Errorf("%w: the peer stopped a round before its end", rendezvous.ErrProtocol)
	}
	// Of two ends that send at the same time the slower one counts,
	// since neither clock covers both.
	elapsed = max(elapsed, min(theirs, time.Since(start)))
	if c.taken > 0 {
		elapsed = c.record()
	}
	c.add(c.posted[0]+c.posted[1], elapsed, warmup || cut)
	c.pace = float64(c.posted[0]) / max(elapsed.Seconds(), 1e-9)
	c.pair.carried = c.pace * float64(c.size)
	return c.pace, nil
}

// countPosted notes how many messages each end has sent.
func (c *cell) countPosted(warmup bool) {
	for i, e := range c.pair.ends {
		switch {
		case e != nil:
			c.posted[i] = e.Posted()
		case c.sends(i):
			c.posted[i] = c.theirs
		}
	}
	if !warmup {
		c.pair.sent += c.posted[0]
	}
}

// add counts messages and their time, unless they do not count.
func (c *cell) add(messages int, took time.Duration, uncounted bool) {
	if uncounted {
		return
	}
	c.timed += took
	c.result.Messages += messages
	c.result.Bytes += uint64(messages) * uint64(c.size)
}

// partial counts the messages of a series that failed with err that came through before.
func (c *cell) partial(warmup bool, err error) (rate float64, _ error) {
	if c.taken == 0 {
		return 0, err
	}
	for end := range c.tasks {
		if at := c.compares(end); c.p.Verify && c.sends(end) && c.pair.ends[at] != nil {
			if wrong := c.compare(end, c.taken); wrong != nil {
				return 0, wrong
			}
			c.result.Verified += c.taken
		}
	}
	took := c.record()
	c.add(c.taken*c.directions, took, warmup)
	return float64(c.taken) / max(took.Seconds(), 1e-9), err
}

// cut says whether the round of two ends that send at the same time was stopped: then they did not
// stop at the same time, and the round measures neither.
func (c *cell) cut(n int) bool {
	return c.peer != nil && c.directions == 2 && (c.posted[0] < n || c.posted[1] < n)
}

// record records the samples of a series, and says how long it took in all.
func (c *cell) record() (all time.Duration) {
	ways := int64(1)
	if c.p.Answered() {
		ways = 2
	}
	for _, took := range c.times[:c.taken] {
		all += time.Duration(took)
		record(c.hist, took/ways)
		record(c.part, took/ways)
	}
	return all
}

// play plays the round at the ends that are here.
func (c *cell) play(ctx context.Context, n int) error {
	switch {
	case c.peer != nil:
		return c.playApart(ctx, n)
	case c.p.Mode == Latency:
		return c.series(ctx, n)
	}
	return c.pair.run(ctx, &c.tasks)
}

// elapsed is how long what the ends here send was under way. In two processes, what follows is
// conversation and is not counted, nor is anything at an end that sends nothing.
func (c *cell) elapsed(start time.Time) (longest time.Duration) {
	for i, e := range c.pair.ends {
		if t := &c.tasks[i]; e != nil && (t.Send > 0 || t.Take > 0 && c.peer == nil) {
			longest = max(longest, e.EndedAt().Sub(start))
		}
	}
	return longest
}

// series sends n messages one at a time where both ends are here.
func (c *cell) series(ctx context.Context, n int) (err error) {
	a, b, samples := c.pair.ends[0], c.pair.ends[1], c.room(n)
	if !c.shape.Seen && !c.p.Failover {
		b = nil
	}
	switch {
	case c.p.Wait != Events:
		c.taken, err = a.Series(ctx, b, samples)
	case b == nil:
		c.taken, err = a.SeriesAsleep(ctx, samples)
		err = cause(ctx, err)
	default:
		// The answers come from a goroutine of their own:
		// each end sleeps until an event of its own NICs.
		return c.pair.runConcurrently(ctx, func(ctx context.Context) error {
			if c.taken, err = a.SeriesAsleep(ctx, samples); err != nil {
				return err
			}
			c.shorten(b)
			return a.Run(ctx, b.Over)
		})
	}
	if err != nil {
		return err
	}
	c.shorten(b)
	return c.pair.run(ctx, &c.tasks)
}

// shorten tells both ends the length of a series that may have been cut short.
func (c *cell) shorten(b *layers.End) {
	if b != nil {
		c.pair.ends[0].Expect(c.taken)
		b.Expect(c.taken)
	}
}

// room is room for n samples.
func (c *cell) room(n int) []int64 {
	if len(c.times) < n {
		c.times = make([]int64, max(n, latencyWarmup))
	}
	return c.times[:n]
}

// deadline is a context that ends when a round of up to n messages has to end, and the watchdog
// whose patience that is.
func (c *cell) deadline(n int) (context.Context, *watchdog, context.CancelFunc) {
	if c.peer == nil {
		return c.deadlineHere()
	}
	d := patience(c.p, c.peer.conn.Timeout(), c.size)
	_, at := c.pair.here()
	if c.sends(1-at) && !c.shape.Seen {
		// This end sees nothing of what the other process sends: once its own messages are reported
		// nothing moves here.
		d = passivePatience(c.peer.conn.Timeout(), n, c.size, c.pace)
	}
	ctx, stop := c.peer.watch(c.sends(at))
	ctx, w, cancel := watched(ctx, d)
	return ctx, w, func() { cancel(); stop() }
}
