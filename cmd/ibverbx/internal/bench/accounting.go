package bench

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
)

// settle polls until both ends have noticed the failure as far as they will: the error of an end
// itself says more than the other's.
func (c *cell) settle() error {
	start := time.Now()
	for last := start; time.Since(last) < settleTime && time.Since(start) < time.Second; {
		moved, known := false, true
		for _, q := range c.pair.queuePairs() {
			more, err := q.Drain()
			if err != nil {
				return err
			}
			moved = moved || more
			known = known && q.VQP().Err() != nil
		}
		switch {
		case moved:
			last = time.Now()
		case known:
			return nil
		default:
			time.Sleep(settleTime / 50)
		}
	}
	return nil
}

// recordFailure records what both ends know of the failure, which a reset clears.
func (c *cell) recordFailure() *Failure {
	f := &Failure{}
	for _, q := range c.pair.queuePairs() {
		f.Ends = append(f.Ends, EndFailure{End: q.Name(), Error: firstError(q.VQP())})
	}
	for _, s := range c.pair.faults.fresh() {
		r := s.report()
		if at := f.place(s); at != "" {
			r.What = strings.Replace(r.What, anyNIC, at, 1)
		}
		f.Faults = append(f.Faults, r)
	}
	c.result.add(f)
	return f
}

// place says where a fault that could strike anywhere did strike:
// where its end has its first error.
func (f *Failure) place(s *faultState) string {
	if s.hits == nil || s.strikes()-s.excused != 1 {
		return ""
	}
	for _, e := range f.Ends {
		if e.End == s.fault.End && e.Error != nil && e.Error.Status != verbs.StatusWRFlushErr.Name() &&
			e.Error.Rail >= 0 {
			return fmt.Sprintf("%s qp %d (end %s)", e.Error.Device, e.Error.QPNum, e.End)
		}
	}
	return ""
}

// account completes the record of a failure, once nothing is outstanding at either end: what became
// of all that was accepted, and whether what was acknowledged or notified is there. Its error says
// which promise was not kept.
func (c *cell) account() error {
	failure := c.failure
	if failure == nil {
		return nil
	}
	c.failure = nil
	var errs []error
	qps := c.pair.queuePairs()
	for i, q := range qps {
		_, err := q.Drain()
		errs = append(errs, err, q.Ledger.Check(q.Name()))
		failure.Ends[i].Sends, failure.Ends[i].Recvs = q.Ledger.Sends, q.Ledger.Recvs
		c.addStatuses(q)
		q.Ledger = layers.Ledger{}
	}
	for end, q := range qps {
		if !c.sends(end) {
			continue
		}
		failure.Acknowledged += q.Acked()
		failure.Notified += qps[1-end].Notified()
		n, err := c.compareReported(end, max(q.Acked(), qps[1-end].Notified()))
		failure.Compared += n
		errs = append(errs, err)
	}
	if c.p.Mode == Bandwidth { // those of a series were counted already
		c.result.Verified += failure.Compared
	}
	err := errors.Join(errs...)
	if failure.Kept = err == nil; err != nil {
		failure.Broken = err.Error()
	}
	return err
}

// addStatuses adds an end's failed completions to the result.
func (c *cell) addStatuses(q *layers.QueuePair) {
	if c.result.Statuses == nil {
		c.result.Statuses = map[string]int{}
	}
	for status, n := range maps.All(q.Ledger.Statuses) {
		c.result.Statuses[q.Name()+": "+status] += n
	}
}

// compareReported compares the first n messages of an end in a round that failed, which are those
// up to the last that was acknowledged or notified: all of them must be there.
// It says how many are.
func (c *cell) compareReported(end, n int) (int, error) {
	if !c.p.Verify {
		return 0, nil
	}
	if err := c.compare(end, n); err != nil || !c.shape.Atomic {
		return n, err
	}
	e, got := c.pair.ends[end], c.pair.ends[1-end].Counter()
	if e.QueuePair().MayHold(got) {
		return n, nil
	}
	c.counters[1-end] = e.PeerCounter()
	return n, c.checkCounter(1-end, got)
}

// closeQueuePairs closes the queue pairs of a column that failed,
// and completes the record of the failure.
func (c *cell) closeQueuePairs() error {
	var errs []error
	if c.failure != nil {
		errs = append(errs, c.shut(), c.account())
	}
	for i, q := range c.pair.queuePairs() {
		if q != nil {
			errs = append(errs, c.pair.ends[i].Close(c.ctx))
			c.addStatuses(q)
		}
	}
	return errors.Join(errs...)
}

// explain replaces errFailed by what the virtual queue pairs say.
func (c *cell) explain(err error) error {
	if !errors.Is(err, errFailed) {
		return err
	}
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
