package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/rendezvous"
	"ibverbx/cmd/ibverbx/internal/units"
)

// cell is one size with one scheme, measured in rounds.
type cell struct {
	meter
	round
	survival
	pair      *pair
	shape     layers.Shape
	endpoints int // in use, of a layer that has several
	hist      *hdrhistogram.Histogram
	samples   []int64 // room for those of a series, in nanoseconds
	sorted    []uint64
	// counters is what the counter of atomics at each end holds: as read when the cell begins or
	// its ends are made anew, said by the other process, and reckoned on after each round.
	counters [2]uint64
	// before is what the ends had counted when the cell began, or when they were made anew.
	before counted
	rate   float64 // messages a second of a direction, as the last round went; 0 before
	moved  func()  // feeds the watchdog of the round under way
}

// round is what a cell knows of the round under way.
type round struct {
	number uint64
	tasks  [2]layers.Task
	posted [2]int // messages that each end has sent, once its part is played
	taken  int    // samples of a series
	watch  *watchdog
	goodbye
}

func newCell(r *runner, column *pair, size int) *cell {
	c := &cell{
		meter: meter{runner: r, size: size, directions: 1},
		pair:  column, shape: r.p.Shape(), endpoints: r.p.Endpoints, hist: newHistogram(),
	}
	c.moved = func() { c.watch.feed() }
	switch {
	case r.p.Layered():
		c.most = uncutPatience
	case r.p.unknownSpeed():
		c.most = roundPatience
	}
	if r.p.Bidirectional || r.p.Answered() {
		c.directions = 2
	}
	c.result = Result{
		Layer: r.p.Layer, Op: r.p.Op, Mode: r.p.Mode, Size: units.Size(size), Scheme: column.scheme,
		Rails: column.dataRails(), Endpoints: r.p.Endpoints,
	}
	c.result.Outstanding = c.outstanding()
	if end, _ := column.here(); len(c.shape.Kinds) > 0 {
		c.result.Kind = end.Kind(size)
	}
	c.readCounters()
	return c
}

// outstanding is how many messages an end has outstanding at most, on all endpoints in use.
func (c *cell) outstanding() int {
	if c.p.Layered() {
		return c.p.TxDepth * c.endpoints
	}
	n := min(c.p.TxDepth, c.longest())
	if !c.p.unknownSpeed() {
		// software NICs would copy several messages to one place at a time, which is a data race
		n = min(n, c.mem.slots(c.size))
	}
	return c.accepted(n)
}

// accepted is how many of n messages a virtual queue pair accepts at a time: pass-through refuses
// more than its queue holds.
func (c *cell) accepted(n int) int {
	if c.pair.dataRails() == 1 {
		return min(n, c.p.Depth)
	}
	return n
}

// longest is how many messages a round has at most. Those of the layers have a slot each.
func (c *cell) longest() int {
	if c.p.Layered() {
		return c.mem.slots(c.size)
	}
	return c.mem.longest(c.p, c.size)
}

// readCounters reads the counters of atomics at the ends that are here.
func (c *cell) readCounters() {
	for i, e := range c.pair.ends {
		if e != nil && c.shape.Atomic {
			c.counters[i] = e.Counter()
		}
	}
}

// measure fills in the result. Several endpoints are compared with a single one, of the same
// connections.
func (c *cell) measure() {
	c.before = c.pair.count()
	one, err := c.oneEndpoint()
	if err == nil {
		err = c.figures()
	}
	if c.p.Mode == Latency {
		c.result.Outstanding = 1
	}
	if err = c.explain(err); err == nil && c.peer != nil {
		err = c.over()
	}
	if c.result.Err = err; err != nil {
		c.giveUp()
	} else if one != nil && c.result.Messages > 0 {
		c.result.finish(0)
		c.result.compareTo(OneEndpoint, one)
	}
	c.recount()
	c.countSince()
	c.result.Faults = c.pair.faults.report()
}

// oneEndpoint measures with a single endpoint where there are several; nil where there are not.
func (c *cell) oneEndpoint() (*Result, error) {
	if c.p.Endpoints < 2 {
		return nil, nil
	}
	c.endpoints = 1
	if err := c.figures(); err != nil {
		return nil, err
	}
	c.result.finish(0)
	one := c.result
	c.result.Messages, c.result.Bytes, c.timed = 0, 0, 0
	c.endpoints = c.p.Endpoints
	return &one, nil
}

// figures measures with the endpoints in use.
func (c *cell) figures() error {
	longest := c.longest()
	if c.p.Mode != Latency {
		return c.rounds(longest, min(c.outstanding(), longest), c.try)
	}
	err := c.batches(c.try, c.hist)
	c.result.Latency = percentiles(c.hist, c.p.Answered())
	return err
}

// try is a round that may fail where a fault has asked for it: then it counts for nothing, but for
// the messages of a series that came through before, and the next one is in place of it.
func (c *cell) try(n int, warmup bool) (rate float64, err error) {
	rate, err = c.runRound(n, warmup)
	return rate, c.survive(err)
}

// giveUp ends a column that failed. Closing queue pairs flushes what is outstanding, and shows that
// each request had its completion.
func (c *cell) giveUp() {
	c.pair.failed = true
	c.pair.faults.end()
	if c.peer != nil {
		c.result.Err = c.peer.part(c.result.Err)
	}
	if !c.p.Layered() {
		c.result.Err = errors.Join(c.result.Err, c.closeQueuePairs())
	}
}

// sends says whether an end sends messages.
func (c *cell) sends(end int) bool { return end == 0 || c.directions == 2 }

// compares is the end that has what an end's messages bring.
func (c *cell) compares(end int) int {
	if c.shape.Reads || c.shape.Atomic {
		return end
	}
	return 1 - end
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
		t.Window = c.accepted(2) // or an answer would wait until the one before it is acknowledged
	}
	if end == 0 && !warmup && len(c.p.Faults) > 0 {
		sent := c.pair.sent
		t.Gate = func(posted, n int) (int, error) { return c.pair.faults.admit(sent+posted, n) }
	}
	return t
}

// early compares each message to an end when that sees it, by when its bytes must be there; nil
// where that is not to be. Those of several endpoints come in any order.
func (c *cell) early(end int) func(i int) error {
	if !c.p.Verify || c.pair.ends[end] == nil || c.wordAlone() || c.endpoints > 1 {
		return nil
	}
	dst, src, number := c.pair.ends[end].Target(), c.mem.ends[1-end].src, c.number
	return func(i int) error { return c.mem.verifySlot(dst, src, number, i, c.size) }
}

// wordAlone says that the word that the target looks at is the message: it is compared by looking.
func (c *cell) wordAlone() bool { return c.shape.Op == layers.PutPoll && c.size == 8 }

// runRound runs and verifies one round of up to n messages a direction, and says how many came a
// second. Of a series that failed what came before counts.
func (c *cell) runRound(n int, warmup bool) (rate float64, err error) {
	c.round = round{number: c.mem.nextRound()}
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
	start := time.Now()
	err = c.play(ctx, n)
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
		// A round that is cut counts nothing: one that the peer cuts again and again would never
		// end.
		return 0, fmt.Errorf("%w: the peer stopped a round before its end", rendezvous.ErrProtocol)
	}
	// Of two ends that send at the same time the slower one counts, for neither clock sees both.
	elapsed = max(elapsed, min(theirs, time.Since(start)))
	if c.taken > 0 {
		elapsed = c.record()
	}
	c.add(c.posted[0]+c.posted[1], elapsed, warmup || cut)
	c.pair.faults.outlived()
	c.rate = float64(c.posted[0]) / max(elapsed.Seconds(), 1e-9)
	return c.rate, nil
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
	c.through += messages
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
// stop at the same time, and it is no measure of both.
func (c *cell) cut(n int) bool {
	return c.peer != nil && c.directions == 2 && (c.posted[0] < n || c.posted[1] < n)
}

// record records the samples of a series, and says how long it took in all.
func (c *cell) record() (all time.Duration) {
	ways := int64(1)
	if c.p.Answered() {
		ways = 2
	}
	for _, took := range c.samples[:c.taken] {
		all += time.Duration(took)
		record(c.hist, took/ways)
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

// elapsed is how long what the ends here send was under way. What comes after that in two processes
// is conversation, and so is all that an end sees that sends nothing.
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
	if !c.shape.Seen {
		b = nil
	}
	switch {
	case c.p.Wait != Events:
		c.taken, err = a.Series(ctx, b, samples)
	case b == nil:
		c.taken, err = a.SeriesAsleep(ctx, samples)
		err = cause(ctx, err)
	default:
		// The answers come from a goroutine of their own: each end sleeps until an event of its own
		// NICs.
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

// shorten says to both ends how long a series was that may have been cut short.
func (c *cell) shorten(b *layers.End) {
	if b != nil {
		c.pair.ends[0].Expect(c.taken)
		b.Expect(c.taken)
	}
}

// room is room for n samples.
func (c *cell) room(n int) []int64 {
	if len(c.samples) < n {
		c.samples = make([]int64, max(n, latencyWarmup))
	}
	return c.samples[:n]
}

// verify compares what the round brought to this process, and says how many messages that were.
// Both ends are at rest.
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

// compare looks at what the first n messages of an end brought.
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

// compareResults looks whether n atomics, each of which has added one, brought each of the values
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
		d = passivePatience(c.peer.conn.Timeout(), n, c.size, c.rate)
	}
	ctx, stop := c.peer.watch(c.sends(at))
	ctx, w, cancel := watched(ctx, d)
	return ctx, w, func() { cancel(); stop() }
}
