package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/trace"
)

// Observer follows the progress of a run. It is called between measurements,
// from the goroutine of Run.
type Observer interface {
	// Start comes first, once the parameters are settled. peer is nil if both ends are in this
	// process.
	Start(p *Params, peer *Peer)
	// Row receives the cells of a size, in the order of the schemes.
	Row(row []Result)
}

// ErrInterrupted means that the run was interrupted before it had measured everything.
var ErrInterrupted = errors.New("interrupted: the rest was not measured")

// Run measures. When ctx ends it finishes the round under way and returns its results so far; the
// report then says so, and the error is [ErrInterrupted]. Otherwise the error is that of the first
// failed cell, which is in the report too; or, without a report, a [*UsageError] or another reason
// why nothing could be measured.
func Run(ctx context.Context, p *Params, open OpenFunc, o Observer) (*Report, error) {
	run := newRunner(ctx, p, bothHere(), o)
	err := run.open(open)
	if err == nil {
		o.Start(p, nil)
		err = cmp.Or(run.rows(), run.traces())
	}
	err = cmp.Or(err, run.close())
	if errors.As(err, new(*UsageError)) {
		return nil, err
	}
	return run.end(err)
}

// runner is a run under way.
type runner struct {
	ctx      context.Context
	p        *Params
	mem      *memory
	columns  []*pair
	observer Observer
	report   *Report
	stopped  bool // the run ends early: the end that decides was interrupted
	// complete is set once everything was measured: an error after that does not affect the
	// figures.
	complete bool
	peer     *peer // nil when both ends are in this process
	start    time.Time
}

// bothHere means that this process drives both ends.
func bothHere() [2]bool { return [2]bool{true, true} }

func newRunner(ctx context.Context, p *Params, here [2]bool, o Observer) *runner {
	return &runner{
		ctx: ctx, p: p, mem: newMemory(p, here), observer: o, start: time.Now(),
		report: &Report{Document: Document{Tool: "ibverbx perf", Machine: ThisMachine()}, Params: p,
			Results: []Result{}},
	}
}

// rows measures.
func (r *runner) rows() error {
	for _, size := range r.p.Sizes {
		row, err := r.row(int(size))
		r.report.Results = append(r.report.Results, row...)
		for i := range row {
			r.report.Verified += row[i].Verified
		}
		if err != nil || r.parted() || r.stopped {
			return err
		}
	}
	r.complete = true
	return nil
}

// parted reports whether the conversation with another process has ended.
func (r *runner) parted() bool { return r.peer != nil && r.peer.conn.Err() != nil }

// end completes the report. err is what ended the run early.
func (r *runner) end(err error) (*Report, error) {
	report := r.report
	for i := range report.Results {
		if res := &report.Results[i]; res.Err != nil && err == nil {
			err = res.failure()
		}
	}
	report.Interrupted = r.interrupted() && !r.complete
	if report.Interrupted && (err == nil || errors.Is(err, ErrInterrupted)) {
		err = ErrInterrupted
	}
	if err == nil {
		err = r.spared()
	}
	report.End(r.start, err)
	return report, err
}

// spared returns an error that names a fault that was due in no column.
func (r *runner) spared() error {
	for i := range r.p.Faults {
		due := func(c *pair) bool { return c.faults.faults[i].struck != nil }
		if !slices.ContainsFunc(r.columns, due) {
			return fmt.Errorf("--fault %s has not struck: the run ended before; measure longer (--duration, "+
				"--iters), or let it strike earlier (at=, msg=)", r.columns[0].faults.faults[i].fault.text)
		}
	}
	return nil
}

// decides reports whether this process decides when the run ends.
func (r *runner) decides() bool { return r.peer == nil || r.peer.leads }

// interrupted reports whether ctx has ended.
func (r *runner) interrupted() bool { return r.ctx.Err() != nil }

// open connects each column. All stay open for the whole run: their cells of one size are measured
// one right after the other, so that a machine that slows down slows them all.
func (r *runner) open(open OpenFunc) error {
	for _, s := range r.p.Schemes {
		c, err := newPair(r.p, open, s, r.mem)
		if err != nil {
			return err
		}
		r.columns = append(r.columns, c)
	}
	return nil
}

func (r *runner) close() error {
	var errs []error
	for _, c := range r.columns {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

// row measures the cells of a size in turns: in each turn every column gives a sample, in another
// order, so that a disturbance of the machine affects all of them.
func (r *runner) row(size int) (row []Result, err error) {
	cells := make([]*cell, len(r.columns))
	for turn := 0; turn < r.p.Samples && err == nil && !r.stopped && !r.parted(); turn++ {
		err = r.takeTurn(cells, size, turn)
	}
	if err != nil && !r.decides() {
		return nil, err
	}
	r.stopped = r.stopped || r.decides() && r.interrupted()
	for _, c := range cells {
		if c != nil {
			c.close()
			c.result.finish()
			row = append(row, c.result)
		}
	}
	if err == nil && r.peer != nil && len(row) > 0 && !r.parted() {
		row, err = r.share(row)
	}
	if len(row) > 0 {
		r.observer.Row(row)
	}
	return row, err
}

// takeTurn takes a sample of each column that has not failed.
func (r *runner) takeTurn(cells []*cell, size, turn int) error {
	for i := range r.columns {
		at := (i + turn) % len(r.columns)
		if r.columns[at].failed {
			continue // its failure is in this row or an earlier one
		}
		c := cells[at]
		if c == nil {
			c = newCell(r, r.columns[at], size)
		}
		goesOn, err := c.open()
		if !goesOn || err != nil {
			r.stopped = err == nil
			return err
		}
		cells[at] = c
		c.measure(turn)
		if c.result.Err != nil && !r.decides() {
			return c.result.failure() // the other end has the figures
		}
		if r.parted() {
			return nil
		}
	}
	return nil
}

// traces takes the traces of all columns, on one time line. Of two processes, the leading one gets
// the other's too.
func (r *runner) traces() (err error) {
	for i := 0; r.p.Trace && i < len(r.columns) && err == nil; i++ {
		for end, q := range r.columns[i].queuePairs() {
			ends := make([]trace.End, 2)
			ends[0].Trace, err = trace.Take(q.VQP.CQ())
			if p := r.peer; p != nil && err == nil {
				ends[1], err = trace.Exchange(ends[0].Trace, p.leads,
					func(v any) error { return p.conn.Send(p.steps, kindTrace, v) },
					func(v any) error { return p.conn.Receive(p.steps, kindTrace, v) })
			}
			for k, e := range ends {
				if e.Trace != nil && err == nil {
					e.Name = fmt.Sprintf("%s %s", r.columns[i].scheme, endName(end^k))
					e.Begins += ends[0].Trace.Begin.Sub(append(r.report.Traces, ends...)[0].Trace.Begin)
					r.report.Traces = append(r.report.Traces, e)
				}
			}
		}
	}
	return err
}
