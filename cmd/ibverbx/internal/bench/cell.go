package bench

import (
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
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

	turn  int           // of the size's turns, in each of which a sample is taken
	timed time.Duration // all timed rounds together
	pace  float64       // messages a second of a direction, as the last round went; 0 before
	warm  bool          // the warm-up is over
	hist  *Latencies
	part  *Latencies // what hist got in this turn
	times []int64    // room for those of a series, in nanoseconds

	before   [2]ibverbx.Stats // what the ends had counted when the cell began
	recorder *recorder        // nil where no time line is asked for
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

// outstanding is how many messages an end has outstanding at most.
func (c *cell) outstanding() int {
	return c.accepted(min(c.p.TxDepth, c.longest()))
}

// accepted is how many of n messages a virtual queue pair accepts at a time: pass-through refuses
// more than its queue holds.
func (c *cell) accepted(n int) int {
	if c.pair.dataRails() == 1 && !c.p.Layered() {
		return min(n, c.p.Depth)
	}
	return n
}

// longest is how many messages a round has at most. Those that are compared at its end have a slot
// each, and so have those of software NICs, which would copy two to one place at a time. Others
// share the slots: NICs are faster where these fit into the processor's cache.
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

// sample plays rounds until this turn has had its share of the time, or of the messages.
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

// messages is how many the next round has: not more than the time left allows, for a slow link must
// not make the run much longer than asked for, and not so few that they are never all outstanding.
func (c *cell) messages(target time.Duration) int {
	most := c.pace * roundTime.Seconds()
	if target > 0 {
		most = min(most, max(float64(c.result.Outstanding), (target-c.timed).Seconds()*c.pace+1))
	}
	return max(1, min(c.longest(), c.left(), int(most)))
}

const (
	// The longest warm-up, and the longest round: a longer one of a slow NIC would look as if it
	// had stalled.
	warmupTime = 50 * time.Millisecond
	roundTime  = time.Second / 4
	// overtime is how many times as long as asked for a cell may take for its samples, and as the
	// round before a round of which this end sees nothing.
	overtime = 4
)

// warmUp sends the messages that do not count: they grow rings and wake workers, and show how fast
// messages go. They are compared, those that notify at the moment of the notification, by when they
// must be there. Some messages show how many those can be.
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

// more reports whether a further round is wanted. Each turn gives a sample, although the turns
// before took longer than asked for, unless the run would take many times as long.
func (c *cell) more(target, begun time.Duration) bool {
	switch {
	case c.interrupted():
		return false
	case target == 0:
		return c.left() > 0
	}
	return c.timed < target || c.timed == begun && c.timed < overtime*time.Duration(c.p.Duration)
}

// left is how many messages a direction still has to send in this turn, of a run by iterations.
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

// explain replaces layers.ErrRequests by what the virtual queue pairs say: each end that has
// noticed the failure has its own error.
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

// settleTime is how long after the last completion both ends have noticed a failure as far as they
// will.
const settleTime = 5 * time.Millisecond

// settle polls until the ends here have noticed a failure as far as they will.
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

// compares is the end that has what an end's messages bring.
func (c *cell) compares(end int) int {
	if c.shape.Reads || c.p.Op.Atomic() {
		return end
	}
	return 1 - end
}
