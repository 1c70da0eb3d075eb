package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"ibverbx/cmd/ibverbx/internal/units"
)

// Observer is told how a run goes on. It is called between measurements, from the goroutine of Run.
type Observer interface {
	// Start comes first, once it is settled what is measured. peer is nil when both ends are in
	// this process.
	Start(p *Params, peer *Peer)
	// Cell comes before each cell, with how many cells of all are done.
	Cell(done, all int)
	// Row brings the cells of a size, in the order of the schemes.
	Row(row []Result)
}

// ErrInterrupted says that the run was ended from outside before it had measured everything.
var ErrInterrupted = errors.New("interrupted: the rest was not measured")

// Run measures. When ctx ends it finishes what is under way and returns what it has; the report
// then says so, and the error is [ErrInterrupted]. Otherwise the error is that of the first cell
// that failed, which the report holds too; or a [*UsageError] or another reason for which nothing
// could be measured, and then there is no report.
func Run(ctx context.Context, p *Params, open OpenFunc, o Observer) (*Report, error) {
	o.Start(p, nil)
	run := newRunner(ctx, p, bothHere(), o)
	defer run.stop()
	err := run.open(open)
	if err == nil {
		err = run.rows()
	}
	if closing := run.close(); err == nil {
		err = closing
	}
	var unusable *UsageError
	if errors.As(err, &unusable) {
		return nil, err
	}
	return run.end(err)
}

// runner is a run under way.
type runner struct {
	ctx      context.Context
	p        *Params
	mem      *memory
	columns  []column
	below    *below      // what layers are compared with; nil for nothing
	brake    atomic.Bool // the user wants to see what there is
	observer Observer
	done     int
	report   *Report
	peer     *peer // nil when both ends are in this process
	start    time.Time
	stop     func() bool
}

// bothHere says that this process drives both ends.
func bothHere() [2]bool { return [2]bool{true, true} }

func newRunner(ctx context.Context, p *Params, here [2]bool, o Observer) *runner {
	return newRunnerOver(ctx, p, newMemory(p, here), o)
}

// newRunnerOver is newRunner with memory that there is.
func newRunnerOver(ctx context.Context, p *Params, mem *memory, o Observer) *runner {
	r := &runner{
		ctx: ctx, p: p, mem: mem, observer: o, start: time.Now(),
		report: &Report{Tool: "ibverbx perf", Params: p, Machine: ThisMachine(), Results: []Result{}},
	}
	r.stop = context.AfterFunc(ctx, func() { r.brake.Store(true) })
	return r
}

// rows measures.
func (r *runner) rows() error {
	for _, size := range r.p.Sizes {
		row, err := r.row(int(size))
		r.report.Results = append(r.report.Results, row...)
		if err != nil || r.interrupted() || r.parted() {
			return err
		}
	}
	return nil
}

// parted says whether there is another process that has gone, or was told that it is over.
func (r *runner) parted() bool { return r.peer != nil && r.peer.conn.Err() != nil }

// end completes the report. err is what ended the run before its time.
func (r *runner) end(err error) (*Report, error) {
	report := r.report
	for i := range report.Results {
		if res := &report.Results[i]; res.Err != nil && err == nil {
			err = res.failure()
		}
	}
	report.Interrupted = r.interrupted()
	switch {
	case errors.Is(context.Cause(r.ctx), errServedLong): // nobody has asked for it
		report.Interrupted = false
		if err == nil {
			err = errServedLong
		}
	case report.Interrupted && (err == nil || errors.Is(err, context.Canceled)):
		err = ErrInterrupted
	}
	report.Seconds = time.Since(r.start).Seconds()
	report.OK = err == nil
	if err != nil {
		report.Error = err.Error()
	}
	return report, err
}

// interrupted says whether ctx has ended. Rounds under way learn it from the brake, which costs
// them less.
func (r *runner) interrupted() bool { return r.ctx.Err() != nil }

// open connects each column. All stay open for the whole run: their cells of one size are measured
// one right after the other, so that a machine that slows down slows them all.
func (r *runner) open(open OpenFunc) error {
	for _, s := range r.p.Schemes {
		c, err := r.newColumn(open, s)
		if err != nil {
			return err
		}
		r.columns = append(r.columns, c)
	}
	return r.openBelow(open)
}

func (r *runner) newColumn(open OpenFunc, s Scheme) (column, error) {
	if r.p.Layered() {
		return newStack(r.p, open, s, r.mem)
	}
	rig, err := newRig(r.p, open, s, r.mem)
	if err != nil {
		return nil, err
	}
	rig.faults.ctx = r.ctx
	return rig, nil
}

func (r *runner) close() error {
	var errs []error
	for _, c := range r.columns {
		errs = append(errs, c.close())
	}
	if r.below != nil {
		errs = append(errs, r.below.close())
	}
	return errors.Join(errs...)
}

// row measures the cells of a size. copy() is measured before and after, and the better figure
// counts: on a machine that has other things to do it must not be the one that was disturbed.
func (r *runner) row(size int) ([]Result, error) {
	before, err := r.baseline(size)
	if err != nil {
		return nil, err
	}
	below, err := r.measureBelow(size)
	if err != nil {
		return nil, err
	}
	var row []Result
	var opening error
	for _, column := range r.columns {
		r.observer.Cell(r.done, len(r.p.Sizes)*len(r.columns))
		r.done++
		if r.interrupted() {
			break
		}
		if column.spent() {
			continue // has said so already
		}
		c := column.cell(r, size)
		if opening = c.open(); opening != nil {
			break
		}
		c.measure()
		row = append(row, c.outcome())
		if r.parted() {
			break
		}
	}
	after, err := r.baseline(size)
	err = errors.Join(opening, err)
	for i := range row {
		row[i].finish(max(before, after))
		row[i].compare(below)
	}
	if len(row) > 0 {
		r.observer.Row(row)
	}
	if err == nil && r.peer != nil && len(row) > 0 && !r.parted() {
		err = r.peer.conn.Send(r.peer.steps, kindRow, rowBody{row})
	}
	return row, err
}

// baseline measures copy(), where that is a comparison: both ends' memory is in this process.
func (r *runner) baseline(size int) (float64, error) {
	if r.p.Mode != Bandwidth || r.p.Op.Atomic() || r.peer != nil {
		return 0, nil
	}
	gb, err := baseline(r.p, r.mem, size, &r.brake)
	if err != nil {
		return 0, fmt.Errorf("copy(): %w", err)
	}
	return gb, nil
}

// cell is one size with one scheme.
type cell struct {
	meter
	rig   *rig
	flows []*flow // from end a, and from end b if that sends too
	lanes *round
	rate  float64 // messages a second of a direction, as the last round went; 0 before

	since        EndStats  // counters at the beginning, or when the ends were made anew
	through      int       // messages of rounds that went well, those of the warm-up included
	failure      *Failure  // that is not accounted for yet
	recovery     *Recovery // the last one
	mark         int       // through, then
	markVerified int       // verified messages, then
}

func newCell(r *runner, rig *rig, size int) *cell {
	c := &cell{meter: meter{runner: r, size: size, directions: 1}, rig: rig}
	if r.p.unknownSpeed() {
		c.most = roundPatience
	}
	c.flows = []*flow{newFlow(r.p, rig, r.mem, 0, 1, size)}
	if r.p.Bidirectional || r.p.Answered() {
		c.flows = append(c.flows, newFlow(r.p, rig, r.mem, 1, 0, size))
		c.directions = 2
	}
	c.lanes = newRound(c.flows, r.peer, rig.here())
	if r.peer != nil && r.p.Mode == Latency {
		c.lanes.spin = latencySpin
		if r.p.Answered() && !r.peer.leads {
			c.flows[1].echoes = c.flows[0]
		}
		for _, f := range c.flows {
			f.tx = 1
			if f.echoes != nil {
				f.tx = 2 // or an answer would wait until the one before it is acknowledged
			}
		}
	}
	c.result = Result{
		Layer: r.p.Layer, Op: r.p.Op, Mode: r.p.Mode, Size: units.Size(size), Scheme: rig.scheme,
		Rails: rig.here()[0].vqp.DataRails(), Outstanding: c.flows[0].tx,
	}
	return c
}

// measure fills in the result.
func (c *cell) measure() {
	c.since = c.rig.stats()
	var err error
	if c.p.Mode == Latency {
		c.result.Outstanding = 1
		err = c.latency()
	} else {
		err = c.bandwidth()
	}
	c.result.Err = c.explain(err)
	if err == nil && c.peer != nil {
		err = c.over()
		c.result.Err = err
	}
	if err != nil {
		c.giveUp()
	}
	c.recount()
	after := c.rig.stats()
	if c.rig.a != nil {
		c.result.Stats.A = since(after.A, c.since.A)
	}
	if c.rig.b != nil {
		c.result.Stats.B = since(after.B, c.since.B)
	}
	c.result.Faults = c.rig.faults.report()
}

// giveUp ends a column that failed. Closing flushes what is outstanding, and shows that each
// request had its completion.
func (c *cell) giveUp() {
	c.rig.failed = true
	c.rig.faults.end()
	if c.peer != nil {
		c.result.Err = c.peer.part(c.result.Err)
	}
	if c.failure != nil {
		c.result.Err = errors.Join(c.result.Err, c.shut(), c.account())
	}
	if c.result.Statuses == nil {
		c.result.Statuses = map[string]int{}
	}
	for _, e := range c.rig.here() {
		c.result.Err = errors.Join(c.result.Err, e.close())
		for status, n := range e.tally.statuses {
			c.result.Statuses[e.name+": "+status] += n
		}
	}
}

// stats is what the ends here have counted.
func (r *rig) stats() (s EndStats) {
	if r.a != nil {
		s.A = r.a.vqp.Stats()
	}
	if r.b != nil {
		s.B = r.b.vqp.Stats()
	}
	return s
}

// explain puts the virtual queue pairs' own words in the place of errFailed.
func (c *cell) explain(err error) error {
	if !errors.Is(err, errFailed) {
		return err
	}
	var errs []error
	for _, e := range c.rig.here() {
		if why := e.vqp.Err(); why != nil {
			errs = append(errs, fmt.Errorf("end %s: %w", e.name, why))
		}
	}
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs...)
}

// deadline is a context that ends when a round of up to n messages has to end, and the watchdog
// that wants to be told what moves.
func (c *cell) deadline(n int) (context.Context, *watchdog, context.CancelFunc) {
	if c.peer == nil {
		return c.deadlineHere()
	}
	d := patience(c.p, c.peer.conn.Timeout(), c.size)
	if c.blind() {
		d = passivePatience(c.peer.conn.Timeout(), n, c.size, c.rate)
	}
	ctx, stop := c.peer.watch(slices.ContainsFunc(c.flows, func(f *flow) bool { return f.from != nil }))
	ctx, w, cancel := watched(ctx, d)
	return ctx, w, func() { cancel(); stop() }
}

// blind says whether the other process sends what this one sees nothing of: once its own messages
// are reported nothing moves here.
func (c *cell) blind() bool {
	for _, f := range c.flows {
		if f.from == nil && !f.op.notifies() {
			return true
		}
	}
	return false
}
