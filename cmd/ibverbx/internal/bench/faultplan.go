package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// faultPlan is the faults of a column, and which of them have struck.
type faultPlan struct {
	ctx     context.Context // of the run
	pair    *pair
	pending []Fault // by Message
	reports []*faultState
}

// faultState is a fault that is in force, or was.
type faultState struct {
	fault Fault
	*struck
	ending   *ending // of a fault that lasts for a while
	excused  int     // strikes whose consequences are over
	reported int     // strikes that a cell has reported
	missing  bool    // a cell has reported that there was nothing to strike
}

// strikes is how often the fault has struck.
func (s *faultState) strikes() int {
	switch {
	case s.missed:
		return 0
	case s.hits != nil:
		return s.hits()
	}
	return 1
}

// report says what became of the fault.
func (s *faultState) report() FaultReport {
	r := FaultReport{Fault: s.fault, Struck: s.strikes() > 0, What: s.what}
	if s.hits != nil {
		r.Hits = s.hits()
	}
	if s.ending != nil && s.ending.wasCut() {
		r.What += ", cut short by the interruption"
	}
	return r
}

func newFaultPlan(c *pair, faults []Fault) *faultPlan {
	fp := &faultPlan{ctx: context.Background(), pair: c, pending: slices.Clone(faults)}
	for i := range fp.pending {
		fp.pending[i].nth = i
	}
	slices.SortStableFunc(fp.pending, func(a, b Fault) int { return a.Message - b.Message })
	return fp
}

// admit puts the faults in force that are due when posted messages have been posted, and says how
// many of n further ones may be posted before the next fault is due.
func (fp *faultPlan) admit(posted, n int) (int, error) {
	if err := fp.strike(posted); err != nil || len(fp.pending) == 0 {
		return n, err
	}
	return min(n, fp.pending[0].Message-posted), nil
}

// strike puts the faults in force that are due.
func (fp *faultPlan) strike(posted int) error {
	for len(fp.pending) > 0 && fp.pending[0].Message <= posted {
		f := fp.pending[0]
		fp.pending = fp.pending[1:]
		if f.Rail >= fp.pair.dataRails() {
			fp.reports = append(fp.reports, &faultState{fault: f, struck: fp.pair.noRail()})
			continue
		}
		s, err := f.kind().strike(fp.pair, &f)
		if err != nil {
			return fmt.Errorf("fault %s: %w", f.text, err)
		}
		state := &faultState{fault: f, struck: s}
		if s.undo != nil && f.For > 0 {
			state.ending = newEnding(s, f.For)
			// the round under way waits for it; for what comes back, await does, which ctx ends
			if s.hits != nil {
				context.AfterFunc(fp.ctx, state.ending.cutShort)
			}
		}
		fp.reports = append(fp.reports, state)
	}
	return nil
}

// end takes the faults back that can be.
func (fp *faultPlan) end() {
	for _, s := range fp.reports {
		switch {
		case s.ending != nil:
			s.ending.now()
		case s.undo != nil:
			s.undo()
		}
	}
}

// report says what became of the faults since its last call, and which have not struck.
func (fp *faultPlan) report() []FaultReport {
	var list []FaultReport
	for _, s := range fp.reports {
		if n := s.strikes(); n > s.reported || n == 0 && !s.missing {
			s.reported, s.missing = n, s.missed
			list = append(list, s.report())
		}
	}
	for _, f := range fp.pending {
		list = append(list, FaultReport{Fault: f, What: fmt.Sprintf("has not struck: the end came before "+
			"message %d of the column", f.Message)})
	}
	return list
}

// fresh lists the faults that have struck since the last [faultPlan.excuse].
func (fp *faultPlan) fresh() (list []*faultState) {
	for _, s := range fp.reports {
		if s.strikes() > s.excused && !s.idle && !s.fault.kind().bearable {
			list = append(list, s)
		}
	}
	return list
}

// excuse records that what has struck until now is over.
func (fp *faultPlan) excuse() {
	for _, s := range fp.reports {
		s.excused = s.strikes()
	}
}

// outlived records that a round succeeded: faults that were over before it ended have done no harm.
func (fp *faultPlan) outlived() {
	for _, s := range fp.reports {
		if s.ending != nil && s.ending.isOver() {
			s.excused = s.strikes()
		}
	}
}

// await waits for the end of what lasts for a while: links and NICs that come back.
func (fp *faultPlan) await(ctx context.Context) error {
	for _, s := range fp.reports {
		if s.ending == nil || s.hits != nil {
			continue
		}
		select {
		case <-s.ending.ended:
		case <-ctx.Done():
			return ErrInterrupted
		}
	}
	return nil
}

// ending takes a fault back after a while, which of a fault that strikes requests begins when it
// has struck one.
type ending struct {
	*struck
	lasts time.Duration
	ended chan struct{}

	mu    sync.Mutex
	timer *time.Timer
	over  bool
	cut   bool // over before its time, because the run is to end
}

func newEnding(s *struck, lasts time.Duration) *ending {
	e := &ending{struck: s, lasts: lasts, ended: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timer = time.AfterFunc(lasts, e.due)
	return e
}

func (e *ending) due() {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.over:
	case e.hits != nil && e.hits() == 0:
		e.timer.Reset(e.lasts)
	default:
		e.finish()
	}
}

// now ends the fault if it has not ended yet.
func (e *ending) now() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timer.Stop()
	if !e.over {
		e.finish()
	}
}

// cutShort ends the fault because the run is to end.
func (e *ending) cutShort() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timer.Stop()
	if !e.over {
		e.cut = true
		e.finish()
	}
}

// wasCut says whether the fault was taken back before its time.
func (e *ending) wasCut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

// isOver says whether the fault was taken back.
func (e *ending) isOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// finish takes the fault back; mu is held.
func (e *ending) finish() {
	e.over = true
	e.undo()
	close(e.ended)
}
