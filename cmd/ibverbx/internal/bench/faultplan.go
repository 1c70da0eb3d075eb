package bench

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// faultPlan is the faults of a column. The goroutine that plays the rounds injects and removes
// them, by the messages posted and by the time of the column.
type faultPlan struct {
	pair   *pair
	faults []*faultState
}

// faultState is a fault of a column: not due yet, in force, or over.
type faultState struct {
	fault    Fault
	*struck                // nil until it is due
	at       time.Duration // when it was injected, by the watch of the column
	over     bool          // it was removed
	reported bool          // in a cell
}

func newFaultPlan(c *pair, faults []Fault) *faultPlan {
	fp := &faultPlan{pair: c}
	for _, f := range faults {
		fp.faults = append(fp.faults, &faultState{fault: f})
	}
	slices.SortStableFunc(fp.faults, func(a, b *faultState) int {
		return cmp.Or(cmp.Compare(a.fault.At, b.fault.At), cmp.Compare(a.fault.Message, b.fault.Message))
	})
	return fp
}

// look injects the faults that are due after the given number of posted messages, and removes those
// that have lasted long enough. It marks both on the time line.
func (fp *faultPlan) look(posted int, line *recorder) error {
	for _, s := range fp.faults {
		now := fp.pair.watch.now()
		switch {
		case s.struck == nil && s.fault.due(posted, now):
			if err := fp.strike(s); err != nil {
				return fmt.Errorf("fault %s: %w", s.fault.text, err)
			}
			if s.at = fp.pair.watch.now(); !s.missed {
				line.mark(FaultStruck, s.fault.text)
			}
		case s.struck != nil && !s.over && s.fault.For > 0 && now-s.at >= s.fault.For:
			if s.end(); s.over {
				line.mark(FaultEnded, s.fault.text)
			}
		}
	}
	return nil
}

// due reports whether the fault must strike now.
func (f *Fault) due(posted int, now time.Duration) bool {
	if f.At > 0 {
		return now >= f.At
	}
	return posted >= f.Message
}

// strike injects a fault.
func (fp *faultPlan) strike(s *faultState) (err error) {
	switch f, c := &s.fault, fp.pair; {
	case f.Rail >= c.dataRails():
		s.struck = missed("this column does not have queue pair %d", f.Rail)
	case f.NIC >= len(c.nics[f.end()]):
		s.struck = missed("this column does not use NIC %d", f.NIC)
	default:
		s.struck, err = f.kind().strike(c, f)
	}
	return err
}

// end removes the fault, if that is possible and has not happened yet.
func (s *faultState) end() {
	if s.struck != nil && s.undo != nil && !s.over {
		s.undo()
		s.over = true
	}
}

// end removes all faults that are not permanent.
func (fp *faultPlan) end() {
	for _, s := range fp.faults {
		s.end()
	}
}

// report returns the effects of faults that no cell has reported yet, and those that have not
// struck.
func (fp *faultPlan) report() (list []FaultReport) {
	for _, s := range fp.faults {
		switch {
		case s.struck != nil && !s.reported:
			s.reported = true
			list = append(list, FaultReport{Fault: s.fault, Struck: !s.missed, What: s.what})
		case s.struck == nil:
			why := fmt.Sprintf("the column has not sent %d messages", s.fault.Message)
			if s.fault.At > 0 {
				why = fmt.Sprintf("the column has not been measured for %v", s.fault.At)
			}
			list = append(list, FaultReport{Fault: s.fault, What: "has not struck: " + why})
		}
	}
	return list
}
