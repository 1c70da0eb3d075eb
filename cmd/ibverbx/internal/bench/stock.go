package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// takerOf is who takes in the completions of an end outside of a round.
func (c *cell) takerOf(e *end) func(*ibverbx.WC) error {
	return func(wc *ibverbx.WC) error {
		for _, f := range c.flows {
			switch recv := wc.ID&recvBit != 0; {
			case recv && f.to == e && f.op.notifies():
				if err := f.arrived(wc); !errors.Is(err, errFailed) {
					return err
				}
				return nil
			case !recv && f.from == e:
				return f.sent(wc)
			}
		}
		return nil
	}
}

// settle lets both ends see what they will see of the failure: an error of its own is news, and
// says more than the other end's.
func (c *cell) settle() error {
	start := time.Now()
	for last := start; time.Since(last) < settleTime && time.Since(start) < time.Second; {
		moved, known := false, true
		for _, e := range c.rig.here() {
			before := e.tally
			if err := e.empty(c.takerOf(e)); err != nil {
				return err
			}
			moved = moved || e.tally.sends != before.sends || e.tally.recvs != before.recvs
			known = known && e.vqp.Err() != nil
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

// takeStock writes down what both ends know of the failure, before they forget it.
func (c *cell) takeStock() *Failure {
	f := &Failure{}
	for _, e := range c.rig.here() {
		f.Ends = append(f.Ends, EndFailure{End: e.name, Error: e.firstError()})
	}
	for _, s := range c.rig.faults.fresh() {
		r := s.report()
		if at := f.place(s); at != "" {
			r.What = strings.Replace(r.What, anyNIC, at, 1)
		}
		f.Faults = append(f.Faults, r)
	}
	c.result.add(f)
	return f
}

// place says where a fault that could strike anywhere did so: where its end has its first error.
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
	for i, e := range c.rig.here() {
		errs = append(errs, e.empty(c.takerOf(e)), e.tally.check(e.name))
		failure.Ends[i].Sends, failure.Ends[i].Recvs = e.tally.sends, e.tally.recvs
		for status, n := range e.tally.statuses {
			if c.result.Statuses == nil {
				c.result.Statuses = map[string]int{}
			}
			c.result.Statuses[e.name+": "+status] += n
		}
		e.tally = tally{}
	}
	for _, f := range c.flows {
		failure.Acknowledged += f.acked
		failure.Notified += f.notified
		n, err := c.compare(f)
		failure.Compared += n
		errs = append(errs, err)
	}
	if c.p.Mode == Bandwidth { // else each was compared as it came
		c.result.Verified += failure.Compared
	}
	err := errors.Join(errs...)
	if failure.Kept = err == nil; err != nil {
		failure.Broken = err.Error()
	}
	return err
}

// compare looks at the messages of a round that failed: all up to the last that was acknowledged or
// notified must be there. It says how many that are.
func (c *cell) compare(f *flow) (int, error) {
	if !c.p.Verify {
		return 0, nil
	}
	n := max(f.acked, f.notified)
	if !f.op.Atomic() {
		return n, f.mem.verify(f.dst, f.src, f.round, n, f.size)
	}
	for i := range n {
		if err := f.verifyAtomic(i); err != nil {
			return i, err
		}
	}
	return n, f.checkPrefix()
}

// checkPrefix looks whether the counter holds what some of the atomics make of it, in order: those
// that were acknowledged, and perhaps some whose acknowledgement was lost.
func (f *flow) checkPrefix() error {
	got := f.held()
	for i := f.acked; i < f.posted; i++ {
		if got == f.expect[i] {
			return nil
		}
	}
	return f.checkCounter(got)
}
