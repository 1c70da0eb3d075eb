package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ibverbx/cmd/ibverbx/internal/units"
)

// Observer is told how a run goes on. It is called between measurements, from the goroutine of Run.
type Observer interface {
	// Cell comes before each cell, with how many cells of all are done.
	Cell(done, all int)
	// Row brings the cells of a size, in the order of the schemes.
	Row(row []Result)
}

// ErrInterrupted says that the run was ended from outside before it had measured everything.
var ErrInterrupted = errors.New("interrupted: the rest was not measured")

// Run measures. When ctx ends it finishes what is under way and returns what it has; the report then says so, and the error is
// [ErrInterrupted]. Otherwise the error is that of the first cell that failed, which the report holds too; or a [*UsageError] or another reason for which nothing
// could be measured, and then there is no report.
func Run(ctx context.Context, p *Params, open OpenFunc, o Observer) (*Report, error) {
	start := time.Now()
	run := &runner{ctx: ctx, p: p, mem: newMemory(p), observer: o}
	stop := context.AfterFunc(ctx, func() { run.brake.Store(true) })
	defer stop()
	report := &Report{Tool: "ibverbx perf", Params: p, Machine: ThisMachine(), Results: []Result{}}
	err := run.open(open)
	if err == nil {
		for _, size := range p.Sizes {
			var row []Result
			row, err = run.row(int(size))
			report.Results = append(report.Results, row...)
			if err != nil || run.interrupted() {
				break
			}
		}
	}
	if closing := run.close(); err == nil {
		err = closing
	}
	var unusable *UsageError
	if errors.As(err, &unusable) {
		return nil, err
	}
	for i := range report.Results {
		if r := &report.Results[i]; r.Err != nil && err == nil {
			err = r.failure()
		}
	}
	if report.Interrupted = run.interrupted(); report.Interrupted && (err == nil || errors.Is(err, context.Canceled)) {
		err = ErrInterrupted
	}
	report.Seconds = time.Since(start).Seconds()
	report.OK = err == nil
	if err != nil {
		report.Error = err.Error()
	}
	return report, err
}

// runner is a run under way.
type runner struct {
	ctx      context.Context
	p        *Params
	mem      *memory
	rigs     []*rig
	brake    atomic.Bool // the user wants to see what there is
	observer Observer
	done     int
}

// interrupted says whether ctx has ended. Rounds under way learn it from the brake, which costs them less.
func (r *runner) interrupted() bool { return r.ctx.Err() != nil }

// open connects a rig for each column. All stay open for the whole run: their cells of one size are measured one right after
// the other, so that a machine that slows down slows them all.
func (r *runner) open(open OpenFunc) error {
	for _, s := range r.p.Schemes {
		rig, err := newRig(r.p, open, s, r.mem)
		if err != nil {
			return err
		}
		r.rigs = append(r.rigs, rig)
	}
	return nil
}

func (r *runner) close() error {
	var errs []error
	for _, rig := range r.rigs {
		errs = append(errs, rig.close())
	}
	return errors.Join(errs...)
}

// row measures the cells of a size. copy() is measured before and after, and the better figure counts: on a machine that has
// other things to do it must not be the one that was disturbed.
func (r *runner) row(size int) ([]Result, error) {
	before, err := r.baseline(size)
	if err != nil {
		return nil, err
	}
	var row []Result
	for _, rig := range r.rigs {
		r.observer.Cell(r.done, len(r.p.Sizes)*len(r.rigs))
		r.done++
		if r.interrupted() {
			break
		}
		if rig.failed {
			continue // has said so already
		}
		c := newCell(r, rig, size)
		c.measure()
		row = append(row, c.result)
	}
	after, err := r.baseline(size)
	for i := range row {
		row[i].finish(max(before, after))
	}
	if len(row) > 0 {
		r.observer.Row(row)
	}
	return row, err
}

// baseline measures copy(), where that is a comparison.
func (r *runner) baseline(size int) (float64, error) {
	if r.p.Mode != Bandwidth || r.p.Op.Atomic() {
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
	*runner
	rig    *rig
	size   int
	flows  []*flow // from end a, and from end b if that sends too
	lanes  *round
	timed  time.Duration
	result Result
}

func newCell(r *runner, rig *rig, size int) *cell {
	c := &cell{runner: r, rig: rig, size: size}
	c.flows = []*flow{newFlow(r.p, rig, r.mem, rig.a, rig.b, size)}
	if r.p.Bidirectional || r.p.Mode == Latency && r.p.Op.notifies() {
		c.flows = append(c.flows, newFlow(r.p, rig, r.mem, rig.b, rig.a, size))
	}
	c.lanes = newRound(c.flows)
	c.result = Result{
		Op: r.p.Op, Mode: r.p.Mode, Size: units.Size(size), Scheme: rig.scheme, Rails: rig.a.vqp.DataRails(), Outstanding: c.flows[0].tx,
	}
	return c
}

// measure fills in the result.
func (c *cell) measure() {
	a, b := c.rig.a, c.rig.b
	before := EndStats{A: a.vqp.Stats(), B: b.vqp.Stats()}
	var err error
	if c.p.Mode == Latency {
		c.result.Outstanding = 1
		err = c.latency()
	} else {
		err = c.bandwidth()
	}
	if c.result.Err = c.explain(err); err != nil {
		c.rig.failed = true
		c.rig.faults.end()
		// Closing flushes what is outstanding, and shows that each request had its completion.
		for _, e := range []*end{a, b} {
			c.result.Err = errors.Join(c.result.Err, e.close())
		}
		c.result.Statuses = map[string]int{}
		for _, e := range []*end{a, b} {
			for status, n := range e.tally.statuses {
				c.result.Statuses[e.name+": "+status] += n
			}
		}
	}
	after := EndStats{A: a.vqp.Stats(), B: b.vqp.Stats()}
	c.result.Stats = EndStats{A: since(after.A, before.A), B: since(after.B, before.B)}
	c.result.Faults = c.rig.faults.report()
}

// explain puts the virtual queue pairs' own words in the place of errFailed.
func (c *cell) explain(err error) error {
	if !errors.Is(err, errFailed) {
		return err
	}
	var errs []error
	for _, e := range []*end{c.rig.a, c.rig.b} {
		if why := e.vqp.Err(); why != nil {
			errs = append(errs, fmt.Errorf("end %s: %w", e.name, why))
		}
	}
	if len(errs) == 0 {
		return err
	}
	return errors.Join(errs...)
}

// hurry gives a round two more seconds once the user has asked for the end.
func (c *cell) hurry(cancel context.CancelFunc) (stop func() bool) {
	return context.AfterFunc(c.ctx, func() { time.AfterFunc(2*time.Second, cancel) })
}
