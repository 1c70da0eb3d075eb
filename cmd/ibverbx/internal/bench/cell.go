package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
)

// cell is one size with one scheme, measured in rounds.
type cell struct {
	meter
	round
	pair      *pair
	shape     layers.Shape
	endpoints int // in use, of a layer that has several
	hist      *hdrhistogram.Histogram
	part      *hdrhistogram.Histogram // what hist got in this turn
	times     []int64                 // room for those of a series, in nanoseconds
	sorted    []uint64
	alone     single // what was measured with one of several endpoints
	// counters is what the counter of atomics at each end holds: as read when the cell begins or
	// its ends are made anew, told by the other process, and computed after each round.
	counters [2]uint64
	// before is what the ends had counted when the cell began, or when they were made anew.
	before counted
	lost   [2][]Loss // what the column had lost when the cell began
	pace   float64   // messages a second of a direction, as the last round went; 0 before
	moved  func()    // feeds the watchdog of the round under way
	opened bool      // the other process knows of it, if there is one
	closed bool      // nothing more is measured: the result is complete
	// recorder is nil where no time line is asked for.
	recorder *recorder
}

// single is what a cell has measured with one endpoint, while it measures with all, or the other
// way round.
type single struct {
	messages int
	bytes    uint64
	seconds  float64
	latency  *Percentile
	hist     *hdrhistogram.Histogram
	tally
}

func newCell(r *runner, column *pair, size int) *cell {
	c := &cell{
		meter: meter{runner: r, size: size, directions: 1},
		pair:  column, shape: r.p.Shape(), endpoints: r.p.Endpoints, hist: newHistogram(),
		part: newHistogram(),
	}
	c.alone.hist = newHistogram()
	c.before, c.lost = column.count(), column.lossesSoFar()
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

// measure takes a sample. Several endpoints are compared with a single one,
// of the same connections.
func (c *cell) measure(turn int) {
	c.turn = turn
	err := c.oneEndpoint()
	if err == nil {
		err = c.figures()
	}
	if err = c.explain(err); err == nil && c.peer != nil {
		err = c.over()
	}
	if c.result.Err = err; err != nil {
		c.giveUp()
		c.close()
	}
}

// close completes the result once all samples are taken.
func (c *cell) close() {
	if c.closed {
		return
	}
	c.closed = true
	if c.p.Mode == Latency {
		c.result.Outstanding = 1
	}
	c.result.samples = c.samples
	if c.result.Err == nil && c.p.Endpoints > 1 && c.result.Messages > 0 {
		c.result.finish(nil)
		c.swap()
		one := c.result
		one.samples = c.samples
		one.finish(nil)
		c.swap()
		c.result.compareTo(OneEndpoint, &one)
	}
	c.countSince()
	c.result.Losses = c.pair.lossesSince(c.lost)
	c.result.Faults = c.pair.faults.report()
	if c.recorder != nil {
		c.result.Timeline = c.recorder.timeline(c.pair.faults.faults)
	}
}

// oneEndpoint measures with a single endpoint where there are several.
func (c *cell) oneEndpoint() error {
	if c.p.Endpoints < 2 {
		return nil
	}
	c.endpoints = 1
	c.swap()
	err := c.figures()
	c.swap()
	c.endpoints = c.p.Endpoints
	return err
}

// swap exchanges what was measured with one endpoint and with all.
func (c *cell) swap() {
	r, s := &c.result, &c.alone
	r.Messages, s.messages = s.messages, r.Messages
	r.Bytes, s.bytes = s.bytes, r.Bytes
	r.Seconds, s.seconds = s.seconds, r.Seconds
	r.Latency, s.latency = s.latency, r.Latency
	c.hist, s.hist = s.hist, c.hist
	c.tally, s.tally = s.tally, c.tally
}

// figures measures with the endpoints in use.
func (c *cell) figures() error {
	longest := c.longest()
	if c.p.Mode != Latency {
		return c.rounds(longest, min(c.outstanding(), longest), c.runRound)
	}
	err := c.batches(c.runRound, c.hist, c.part)
	c.result.Latency = percentiles(c.hist, c.p.Answered())
	return err
}

// giveUp ends a column that failed. It closes the queue pairs, which flushes what is outstanding,
// and checks that each request had its completion.
func (c *cell) giveUp() {
	c.pair.failed = true
	c.pair.faults.end()
	if c.peer != nil {
		c.result.Err = c.peer.part(c.result.Err)
	}
	for i, q := range c.pair.queuePairs() {
		if q != nil {
			c.result.Err = errors.Join(c.result.Err, c.pair.ends[i].Close(c.ctx))
		}
	}
}

// explain replaces errFailed by what the virtual queue pairs say: each end that has noticed the
// failure has its own error.
func (c *cell) explain(err error) error {
	if !errors.Is(err, errFailed) && !errors.Is(err, verbs.ErrDeviceGone) {
		return err
	}
	c.settle()
	var errs []error
	for _, q := range c.pair.queuePairs() {
		if q == nil {
			continue
		}
		if why := q.VQP().Err(); why != nil {
			errs = append(errs, fmt.Errorf("end %s: %w", q.Name(), why))
		}
	}
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs...)
}

// settleTime is how long after the last completion both ends have noticed a failure as far as they
// will.
const settleTime = 5 * time.Millisecond

// settle polls until the ends here have noticed a failure as far as they will.
func (c *cell) settle() {
	start := time.Now()
	for last := start; time.Since(last) < settleTime && time.Since(start) < time.Second; {
		known := true
		for _, q := range c.pair.queuePairs() {
			if q == nil {
				continue
			}
			moved, err := q.Drain()
			if err != nil {
				return
			}
			if moved {
				last = time.Now()
			}
			known = known && q.VQP().Err() != nil
		}
		if known {
			return
		}
		time.Sleep(settleTime / 50)
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
