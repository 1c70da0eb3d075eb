package rc

import (
	"fmt"

	"ibverbx/verbs"
)

// Check returns which invariant of the QP is violated; nil where none is. It is for tests.
func (q *QP) Check() error {
	r := &q.req
	if a := &q.resp.ahead; a.n != 0 && a.highest <= q.resp.expected {
		return fmt.Errorf("%d packets are kept, up to %d, where %d is expected", a.n, a.highest,
			q.resp.expected)
	}
	if q.State != verbs.StateRTS && q.State != verbs.StateSQD {
		return nil
	}
	if r.una > r.next || r.next > r.end || int(r.next-r.una) > len(r.track) {
		return fmt.Errorf("una %d next %d end %d, %d tracked", r.una, r.next, r.end, len(r.track))
	}
	var inFlight, missing int
	for s := r.una; s < r.next; s++ {
		switch r.at(s).state {
		case flying:
			inFlight++
		case lost:
			missing++
			if s < r.resend {
				return fmt.Errorf("%d is lost, before resend %d", s-r.una, r.resend-r.una)
			}
		}
	}
	if inFlight != r.flying || missing != r.lost {
		return fmt.Errorf("%d flying, counted %d; %d lost, counted %d", r.flying, inFlight, r.lost, missing)
	}
	for _, p := range r.reads[:r.nreads] {
		left := 0
		for s := p.first; s < p.end; s++ {
			if s >= r.una && r.at(s).state != done {
				left++
				if s < p.low {
					return fmt.Errorf("%d of a read is missing, before low %d", s-p.first, p.low-p.first)
				}
			}
		}
		if left != p.left {
			return fmt.Errorf("a read of %d packets misses %d, counted %d", p.end-p.first, left, p.left)
		}
	}
	if a := &q.resp.answers; a.fresh > a.limit {
		return fmt.Errorf("%d answers, at most %d", a.fresh, a.limit)
	}
	return q.CheckInvariants()
}
