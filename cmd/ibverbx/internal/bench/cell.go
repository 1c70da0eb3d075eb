package bench

import (
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
	"ibverbx/verbs"
)

// cell is one size with one scheme, measured in rounds (round.go).
type cell struct {
	*runner
	round
	pair       *pair
	shape      layers.Shape
	size       int // of a message, in bytes
	directions int // in which messages are counted, 1 or 2
	result     Result

	turn  int           // of the size; each turn takes a sample
	timed time.Duration // all timed rounds together
	pace  float64       // messages a second of a direction in the last round; 0 before
	warm  bool          // the warm-up is over
	hist  *Latencies
	part  *Latencies // the latencies of this turn
	times []int64    // room for those of a series, in nanoseconds

	before   [2]ibverbx.Stats // the ends' counters at the beginning of the cell
	recorder *recorder        // nil without a time line
}

func newCell(r *runner, column *pair, size int) *cell {
	c := &cell{
		runner: r, pair: column, shape: r.p.Shape(), size: size, directions: 1,
		hist: NewLatencies(r.p.Answered()), part: NewLatencies(r.p.Answered()), before: column.count(),
	}
	if r.p.Bidirectional || r.p.Answered() {
		c.directions = 2
	}
	c.result = Result{
		Layer: r.p.Layer, Op: r.p.Op, Mode: r.p.Mode, Size: units.Size(size), Scheme: column.scheme,
		Rails: column.dataRails(), Outstanding: c.outstanding(),
	}
	if r.p.Mode.Series() {
		c.result.Outstanding = 1
	}
	return c
}

// outstanding is the most messages that an end has outstanding.
func (c *cell) outstanding() int {
	return c.accepted(min(c.p.TxDepth, c.longest()))
}

// accepted returns how many of n messages a virtual queue pair accepts at a time: pass-through
// refuses more than its queue holds.
func (c *cell) accepted(n int) int {
	if c.pair.dataRails() == 1 && !c.p.Layered() {
		return min(n, c.p.Depth)
	}
	return n
}

// longest is the most messages of a round. Messages that are compared at its end have a slot each,
// and so do those of software NICs, which would otherwise copy two to one place at a time. Others
// share the slots: NICs are faster if these fit into the processor's cache.
func (c *cell) longest() int {
	if c.p.Verify || c.p.Mode.Series() || c.p.Layered() || c.p.Op.Atomic() || !c.p.unknownSpeed() {
		return c.mem.slots(c.size)
	}
	return maxRound
}

// measure takes a sample.
func (c *cell) measure(turn int) {
	c.turn = turn
	sample := c.sample
	if !c.decides() {
		sample = c.follow
	}
	before := c.pair.repairs()
	err := c.explain(sample())
	for i, now := range c.pair.repairs() {
		[...]*Repairs{&c.result.Repairs.A, &c.result.Repairs.B}[i].add(now, before[i])
	}
	if c.p.Mode.Series() {
		c.result.Latency = c.hist.Percentiles()
	}
	if err == nil && c.peer != nil && c.peer.leads {
		_, err = decide(c.peer, kindRound, roundBody{})
	}
	if c.result.Err = err; err != nil {
		c.giveUp()
	}
}

// sample plays rounds until this turn has used its share of the time, or of the messages.
func (c *cell) sample() (err error) {
	if !c.warm {
		if err := c.warmUp(); err != nil {
			return err
		}
	}
	target := time.Duration(c.p.Duration) * time.Duration(c.turn+1) / time.Duration(c.p.Samples)
	first, begun := c.result.Messages, c.timed
	c.part.Reset()
	for err == nil && c.more(target, begun) {
		err = c.runRound(c.messages(target), false)
	}
	switch took := c.timed - begun; {
	case c.p.Mode.Series() && c.part.TotalCount() > 0:
		c.result.samples = append(c.result.samples, float64(c.part.ValueAtQuantile(50)))
	case !c.p.Mode.Series() && took > 0:
		c.result.samples = append(c.result.samples, float64(c.result.Messages-first)/took.Seconds())
	}
	c.result.Seconds = c.timed.Seconds()
	return err
}

// messages returns how many the next round has: not more than the time left allows, because a slow
// link must not make the run much longer than asked for, and enough to fill the window.
func (c *cell) messages(target time.Duration) int {
	most := c.pace * roundTime.Seconds()
	if target > 0 {
		most = min(most, max(float64(c.result.Outstanding), (target-c.timed).Seconds()*c.pace+1))
	}
	return max(1, min(c.longest(), c.left(), int(most)))
}

const (
	// These limit a warm-up and a round: a longer one of a slow NIC would look stalled.
	warmupTime = 50 * time.Millisecond
	roundTime  = time.Second / 4
	// overtime limits the time of a cell's samples, as a multiple of the requested time, and of a
	// round of which this end sees nothing, as a multiple of the round before.
	overtime = 4
)

// warmUp sends messages that do not count: they grow rings, wake workers, and show the speed. They
// are compared; those that notify, at the moment of the notification, when their data must be
// there. A few messages first show how many the warm-up can have.
func (c *cell) warmUp() error {
	n, first := min(c.longest(), c.left(), c.outstanding()), 1
	if c.p.Mode.Series() {
		n, first = min(c.longest(), latencyWarmup), 4
	}
	if err := c.runRound(min(n, first), true); err != nil {
		return err
	}
	if err := c.runRound(max(1, min(n, int(c.pace*warmupTime.Seconds()))), true); err != nil {
		return err
	}
	c.hist.Reset()
	c.warm = true
	return nil
}

// more reports whether another round follows. Each turn gives a sample even if earlier turns took
// longer than asked for, unless the run would take many times as long.
func (c *cell) more(target, begun time.Duration) bool {
	switch {
	case c.interrupted():
		return false
	case target == 0:
		return c.left() > 0
	}
	return c.timed < target || c.timed == begun && c.timed < overtime*time.Duration(c.p.Duration)
}

// left returns how many messages a direction must still send in this turn of a run by iterations.
func (c *cell) left() int {
	if c.p.Iterations == 0 {
		return maxRound
	}
	return c.p.Iterations*(c.turn+1)/c.p.Samples - c.result.Messages/c.directions
}

// close completes the result once all samples are taken.
func (c *cell) close() {
	stats := [...]*QPStats{&c.result.Stats.A, &c.result.Stats.B}
	for i, q := range c.pair.queuePairs() {
		*stats[i] = QPStats{c.pair.scheme, since(q.VQP.Stats(), c.before[i])}
	}
	c.result.Losses, c.pair.losses = c.pair.losses, nil
	c.result.Faults = c.pair.faults.report()
	if c.recorder != nil {
		c.result.Timeline = c.recorder.timeline()
	}
}

// giveUp ends a column that failed. It closes the queue pairs, which flushes what is outstanding,
// and checks that each request had its completion.
func (c *cell) giveUp() {
	c.pair.failed = true
	c.pair.faults.end()
	if c.peer != nil {
		c.result.Err = c.peer.part(c.result.Err)
	}
	if !c.decides() {
		return // the leading end reports the cell
	}
	for _, q := range c.pair.queuePairs() {
		c.result.Err = errors.Join(c.result.Err, q.Close(c.ctx))
	}
}

// explain replaces layers.ErrRequests by the errors of the virtual queue pairs: each end that has
// noticed the failure has its own.
func (c *cell) explain(err error) error {
	if !errors.Is(err, layers.ErrRequests) && !errors.Is(err, verbs.ErrDeviceGone) {
		return err
	}
	c.settle()
	var errs []error
	for _, q := range c.pair.queuePairs() {
		if why := q.VQP.Err(); why != nil {
			errs = append(errs, fmt.Errorf("end %s: %w", q.Name, why))
		}
	}
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs...)
}

// settleTime is how long after the last completion both ends get to notice a failure.
const settleTime = 5 * time.Millisecond

// settle gives the ends here time to notice a failure, and polls meanwhile.
func (c *cell) settle() {
	for end := time.Now().Add(settleTime); time.Now().Before(end); time.Sleep(settleTime / 50) {
		known := true
		for _, q := range c.pair.queuePairs() {
			moved, err := q.Drain()
			if err != nil {
				return
			}
			if moved {
				end = time.Now().Add(settleTime)
			}
			known = known && q.VQP.Err() != nil
		}
		if known {
			return
		}
	}
}

// sends reports whether an end sends messages.
func (c *cell) sends(end int) bool { return end == 0 || c.directions == 2 }

// compares returns the end that has the data of an end's messages.
func (c *cell) compares(end int) int {
	if c.shape.Reads || c.p.Op.Atomic() {
		return end
	}
	return 1 - end
}
