package bench

import (
	"cmp"
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
	pending []Fault // those that strike by Message, in that order
	timed   []Fault // those that strike by At, in that order
	reports []*faultState
}

// faultState is a fault that is in force, or was.
type faultState struct {
	fault Fault
	*struck
	at       time.Duration // when it was put in force, by the watch of the column
	ending   *ending       // of a fault that lasts for a while
	excused  int           // strikes whose consequences are over
	reported int           // strikes that a cell has reported
	missing  bool          // a cell has reported that there was nothing to strike
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
	slices.SortStableFunc(fp.pending, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	messages := slices.IndexFunc(fp.pending, func(f Fault) bool { return f.At > 0 })
	if messages >= 0 {
		fp.timed = slices.Clone(fp.pending[messages:])
		fp.pending = fp.pending[:messages]
	}
	slices.SortStableFunc(fp.pending, func(a, b Fault) int { return a.Message - b.Message })
	return fp
}

// admit puts the faults in force that are due when posted messages have been posted, and says how
// many of n further ones may be posted before the next fault is due.
func (fp *faultPlan) admit(posted, n int) (int, error) {
	if err := fp.strikeTimed(); err != nil {
		return n, err
	}
	if err := fp.strike(posted); err != nil || len(fp.pending) == 0 {
		return n, err
	}
	return min(n, fp.pending[0].Message-posted), nil
}

// strike puts the faults in force that are due after so many messages.
func (fp *faultPlan) strike(posted int) error {
	for len(fp.pending) > 0 && fp.pending[0].Message <= posted {
		f := fp.pending[0]
		fp.pending = fp.pending[1:]
		if err := fp.inForce(f); err != nil {
			return err
		}
	}
	return nil
}

// strikeTimed puts the faults in force that are due by now.
func (fp *faultPlan) strikeTimed() error {
	for len(fp.timed) > 0 && fp.timed[0].At <= fp.pair.watch.now() {
		f := fp.timed[0]
		fp.timed = fp.timed[1:]
		if err := fp.inForce(f); err != nil {
			return err
		}
	}
	return nil
}

// inForce puts a fault in force.
func (fp *faultPlan) inForce(f Fault) error {
	if f.Rail >= fp.pair.dataRails() {
		fp.reports = append(fp.reports, &faultState{fault: f, struck: fp.pair.noRail()})
		return nil
	}
	s, err := f.kind().strike(fp.pair, &f)
	if err != nil {
		return fmt.Errorf("fault %s: %w", f.text, err)
	}
	state := &faultState{fault: f, struck: s, at: fp.pair.watch.now()}
	if s.undo != nil && f.For > 0 {
		state.ending = newEnding(s, f.For, &fp.pair.watch)
		// the round under way waits for it; for what comes back, await does, which ctx ends
		if s.hits != nil || f.kind().bearable {
			context.AfterFunc(fp.ctx, state.ending.cutShort)
		}
	}
	fp.reports = append(fp.reports, state)
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
	for _, f := range fp.timed {
		list = append(list, FaultReport{Fault: f, What: fmt.Sprintf("has not struck: the column was not "+
			"measured for %v", f.At)})
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
		if s.ending == nil || s.hits != nil || s.fault.kind().bearable {
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

// hold stops the time of the faults in force, which lasts only while that of the column does.
func (fp *faultPlan) hold() {
	for _, s := range fp.reports {
		if s.ending != nil {
			s.ending.hold()
		}
	}
}

// release lets it go on.
func (fp *faultPlan) release() {
	for _, s := range fp.reports {
		if s.ending != nil {
			s.ending.release()
		}
	}
}

// ended says whether the fault was taken back, and when by the watch of the column.
func (s *faultState) ended() (at time.Duration, over bool) {
	if s.ending == nil {
		return 0, false
	}
	s.ending.mu.Lock()
	defer s.ending.mu.Unlock()
	return s.ending.at, s.ending.over
}

// ending takes a fault back after a while, which of a fault that strikes requests begins when it
// has struck one.
type ending struct {
	*struck
	lasts time.Duration
	watch *stopwatch
	ended chan struct{}

	mu    sync.Mutex
	timer *time.Timer
	due   time.Time     // when the timer fires, while the time runs
	held  bool          // the time stands
	left  time.Duration // until the timer has to fire, while it does
	over  bool
	at    time.Duration // when it was over, by the watch
	cut   bool          // over before its time, because the run is to end
}

func newEnding(s *struck, lasts time.Duration, watch *stopwatch) *ending {
	e := &ending{struck: s, lasts: lasts, watch: watch, ended: make(chan struct{}),
		due: time.Now().Add(lasts)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timer = time.AfterFunc(lasts, e.fire)
	return e
}

func (e *ending) fire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.over || e.held:
	case e.hits != nil && e.hits() == 0:
		e.due = time.Now().Add(e.lasts)
		e.timer.Reset(e.lasts)
	default:
		e.finish()
	}
}

// hold stops the time, if it runs.
func (e *ending) hold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over && !e.held {
		e.held, e.left = true, time.Until(e.due)
		e.timer.Stop()
	}
}

// release lets it go on.
func (e *ending) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over && e.held {
		e.held, e.due = false, time.Now().Add(e.left)
		e.timer.Reset(max(e.left, 0))
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
	e.over, e.at = true, e.watch.now()
	e.undo()
	close(e.ended)
}
