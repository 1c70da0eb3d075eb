package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
)

// layerCell is one size through a layer with one scheme.
type layerCell struct {
	meter
	stack     *stack
	shape     layers.Shape
	endpoints int // in use
	hist      *hdrhistogram.Histogram
	samples   []int64
	tasks     [2]layers.Task
	counters  [2]uint64 // what each end's counter of atomics holds
	sorted    []uint64
	watch     *watchdog // of the round under way
	rate      float64   // messages a second of a direction, as the last round went; 0 before

	// Where another process drives the other end, and this one has played its part:
	told, heard bool
	parting     error
}

func newLayerCell(r *runner, s *stack, size int) *layerCell {
	c := &layerCell{
		meter: meter{runner: r, size: size, directions: 1, most: uncutPatience},
		stack: s, shape: r.p.Shape(), endpoints: r.p.Endpoints, hist: newHistogram(),
	}
	if r.p.Bidirectional || r.p.Answered() {
		c.directions = 2
	}
	end, _ := s.here()
	c.result = Result{
		Layer: r.p.Layer, Op: r.p.Op, Mode: r.p.Mode, Size: units.Size(size), Scheme: s.scheme,
		Rails:       r.p.railsOf(s.scheme),
		Outstanding: r.p.TxDepth * r.p.Endpoints, Endpoints: r.p.Endpoints,
	}
	if len(c.shape.Kinds) > 0 {
		c.result.Kind = end.Kind(size)
	}
	for i, e := range s.ends {
		if e != nil && c.shape.Atomic {
			c.counters[i] = e.Counter()
		}
	}
	return c
}

// railsOf is how many queue pairs a connection of a scheme has.
func (p *Params) railsOf(s Scheme) int {
	if s == Single {
		return 1
	}
	return p.rails()
}

func (c *layerCell) outcome() Result { return c.result }

// measure fills in the result. Several endpoints are compared with a single one, of the same
// connections.
func (c *layerCell) measure() {
	before := c.stats()
	var one *Result
	err := error(nil)
	if c.p.Endpoints > 1 {
		c.endpoints = 1
		if err = c.figures(); err == nil {
			c.result.finish(0)
			kept := c.result
			one = &kept
			verified := c.result.Verified
			c.result.Messages, c.result.Bytes, c.result.Verified, c.timed = 0, 0, verified, 0
		}
		c.endpoints = c.p.Endpoints
	}
	if err == nil {
		err = c.figures()
	}
	if c.p.Mode == Latency {
		c.result.Outstanding = 1
	}
	if err == nil && c.peer != nil {
		err = c.over()
	}
	c.result.Err = err
	if err != nil {
		c.giveUp()
		return
	}
	if one != nil && c.result.Messages > 0 {
		c.result.finish(0)
		c.result.compareTo(OneEndpoint, one)
	}
	after := c.stats()
	theirs := TransportCounts{}
	if c.peer != nil {
		theirs = c.result.Transport.B
	}
	c.result.Transport = &TransportStats{A: after.A.since(&before.A), B: after.B.since(&before.B)}
	if c.peer != nil {
		c.result.Transport.B = theirs
	}
}

// figures measures with the endpoints in use.
func (c *layerCell) figures() error {
	longest := c.mem.slots(c.size)
	if c.p.Mode != Latency {
		return c.rounds(longest, min(c.p.TxDepth*c.endpoints, longest), c.round)
	}
	err := c.batches(c.round, c.hist)
	c.result.Latency = percentiles(c.hist, c.p.Answered())
	return err
}

// giveUp ends a column that failed.
func (c *layerCell) giveUp() {
	c.stack.failed = true
	if c.peer != nil {
		c.result.Err = c.peer.part(c.result.Err)
	}
}

// stats is what the ends here have counted.
func (c *layerCell) stats() (s TransportStats) {
	for i, e := range c.stack.ends {
		switch {
		case e == nil:
		case i == 0:
			s.A = counts(e.Stats())
		default:
			s.B = counts(e.Stats())
		}
	}
	return s
}

// sends says whether an end sends messages.
func (c *layerCell) sends(end int) bool { return end == 0 || c.directions == 2 }

// compares is the end that has what an end's messages bring.
func (c *layerCell) compares(end int) int {
	if c.shape.Reads || c.shape.Atomic {
		return end
	}
	return 1 - end
}

// task is an end's part in a round of n messages a direction.
func (c *layerCell) task(end, n int, number uint64) layers.Task {
	t := layers.Task{Round: c.mem.round(number, c.size), Endpoints: c.endpoints, Alone: c.p.Mode == Latency}
	if c.sends(end) {
		t.Send = n
	}
	if c.shape.Seen && c.sends(1-end) {
		t.Take = n
	}
	t.Answers = end == 1 && c.p.Answered()
	return t
}

// round runs and verifies one round of n messages a direction, and says how many came a second.
func (c *layerCell) round(n int, warmup bool) (rate float64, err error) {
	number := c.mem.nextRound()
	ctx, watch, cancel := c.deadline(n)
	defer cancel()
	c.watch = watch
	for i, e := range c.stack.ends {
		c.tasks[i] = c.task(i, n, number)
		if e != nil {
			if err := e.Begin(c.tasks[i], watch.feed); err != nil {
				return 0, err
			}
		}
	}
	if err := c.begin(n, warmup); err != nil {
		return 0, err
	}
	start := time.Now()
	elapsed, err := c.play(ctx, n, start)
	if err != nil {
		return 0, err
	}
	whole := time.Since(start)
	verified, err := c.verify(n, number)
	if err != nil {
		return 0, err
	}
	theirs, err := c.conclude(n, verified, elapsed)
	if err != nil {
		return 0, err
	}
	elapsed = max(elapsed, min(theirs, whole))
	if c.p.Mode == Latency && (c.peer == nil || c.peer.leads) {
		elapsed = c.record(n)
	}
	if !warmup {
		c.timed += elapsed
		c.result.Messages += n * c.directions
		c.result.Bytes += uint64(n*c.directions) * uint64(c.size)
	}
	c.rate = float64(n) / max(elapsed.Seconds(), 1e-9)
	return c.rate, nil
}

// record takes the samples of a series in, and says how long it took in all.
func (c *layerCell) record(n int) (all time.Duration) {
	ways := int64(1)
	if c.p.Answered() {
		ways = 2
	}
	for _, took := range c.samples[:n] {
		all += time.Duration(took)
		record(c.hist, took/ways)
	}
	return all
}

// play plays the round at the ends that are here, and says how long what they send was under way.
func (c *layerCell) play(ctx context.Context, n int, start time.Time) (time.Duration, error) {
	if c.peer != nil {
		return c.playApart(ctx, n, start)
	}
	if err := c.playBoth(ctx, n); err != nil {
		return 0, err
	}
	var elapsed time.Duration
	for i, e := range c.stack.ends {
		if t := &c.tasks[i]; t.Send+t.Take > 0 {
			elapsed = max(elapsed, e.EndedAt().Sub(start))
		}
	}
	return elapsed, nil
}

func (c *layerCell) playBoth(ctx context.Context, n int) error {
	if c.p.Mode != Latency {
		return c.stack.run(ctx, &c.tasks)
	}
	a, b, took := c.stack.ends[0], c.stack.ends[1], c.take(n)
	switch {
	case !c.shape.Seen:
		b = nil
	case c.p.Wait == Events:
		return c.answered(ctx, took)
	}
	if err := a.Series(ctx, b, took); err != nil {
		return err
	}
	return c.stack.run(ctx, &c.tasks)
}

// answered sends a series whose answers come from a goroutine of their own: each end sleeps until
// an event of its own NICs.
func (c *layerCell) answered(ctx context.Context, took []int64) error {
	a, b := c.stack.ends[0], c.stack.ends[1]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan error, 1)
	go func() { over <- c.stack.part("b", b.Run(ctx, a.Over), cancel) }()
	err := c.stack.part("a", a.SeriesAsleep(ctx, took), cancel)
	if err == nil {
		err = c.stack.part("a", a.Run(ctx, b.Over), cancel)
	}
	return errors.Join(cause(ctx, err), cause(ctx, <-over))
}

// take is room for n samples.
func (c *layerCell) take(n int) []int64 {
	if len(c.samples) < n {
		c.samples = make([]int64, max(n, latencyWarmup))
	}
	return c.samples[:n]
}

// verify compares what the round brought to this process, and says how many messages that were.
// Both ends are at rest.
func (c *layerCell) verify(n int, number uint64) (verified int, err error) {
	for end := range c.tasks {
		if !c.sends(end) {
			continue
		}
		if c.shape.Atomic {
			c.counters[1-end] += uint64(n)
		}
		at := c.compares(end)
		if !c.p.Verify || c.stack.ends[at] == nil {
			continue
		}
		if err := c.compare(end, at, n, number); err != nil {
			return 0, err
		}
		verified += n
	}
	for i, e := range c.stack.ends {
		if e == nil || !c.shape.Atomic || !c.sends(1-i) {
			continue
		}
		if err := c.checkCounter(i, e.Counter()); err != nil {
			return 0, err
		}
	}
	c.result.Verified += verified
	return verified, nil
}

// compare looks at what end's messages brought to the end at.
func (c *layerCell) compare(end, at, n int, number uint64) error {
	switch {
	case c.shape.Atomic:
		return c.compareResults(c.stack.ends[end].Results(), 1-end, n, number)
	case c.shape.Op == layers.PutPoll && c.size == 8:
		return nil // the word is the message, and was compared when it came
	case at == end: // read
		return c.mem.verify(c.stack.ends[at].Target(), c.mem.ends[1-end].src, number, n, c.size)
	}
	return c.mem.verify(c.stack.ends[at].Target(), c.mem.ends[end].src, number, n, c.size)
}

// compareResults looks whether n atomics, each of which has added one, brought each of the values
// that the counter has had, and each once.
func (c *layerCell) compareResults(got []uint64, target, n int, number uint64) error {
	c.sorted = append(c.sorted[:0], got...)
	slices.Sort(c.sorted)
	first := c.counters[target] - uint64(n)
	for i, v := range c.sorted {
		if want := first + uint64(i); v != want {
			return fmt.Errorf("%w: the results of %d %s of round %d are not what the counter held one "+
				"after the other: %d is missing",
				ErrVerify, n, c.shape.Op, number, want)
		}
	}
	return nil
}

// checkCounter compares what an end's counter holds with what it must.
func (c *layerCell) checkCounter(end int, got uint64) error {
	if want := c.counters[end]; got != want {
		return fmt.Errorf("%w: the target's counter holds %d, want %d", ErrVerify, got, want)
	}
	return nil
}

// deadline is a context that ends when a round of n messages has to end, and the watchdog that
// wants to be told what moves.
func (c *layerCell) deadline(n int) (context.Context, *watchdog, context.CancelFunc) {
	if c.peer == nil {
		return c.deadlineHere()
	}
	return c.deadlineApart(n)
}
