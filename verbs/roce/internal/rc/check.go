package rc

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Check returns the first violated invariant of the QP, or nil. It is for tests.
func (q *QP) Check() error {
	r := &q.req
	if err := q.resp.ahead.check(q.resp.expected); err != nil {
		return err
	}
	if q.resp.gapDue && q.resp.ahead.n == 0 && q.resp.nak == 0 {
		return errors.New("a gap is to be told of, and nothing is kept")
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
		left, lostOf := 0, 0
		for s := p.first; s < p.end; s++ {
			if s >= r.una && r.at(s).state != done {
				left++
				if r.at(s).state == lost {
					lostOf++
				}
				if s < p.low {
					return fmt.Errorf("%d of a read is missing, before low %d", s-p.first, p.low-p.first)
				}
			}
		}
		if left != p.left {
			return fmt.Errorf("a read of %d packets misses %d, counted %d", p.end-p.first, left, p.left)
		}
		if p.kept && lostOf != 0 {
			return fmt.Errorf("%d packets are lost of a read that the responder has", lostOf)
		}
	}
	if a := &q.resp.answers; a.fresh > a.limit {
		return fmt.Errorf("%d answers, at most %d", a.fresh, a.limit)
	}
	return q.CheckInvariants()
}

func (r *reorderBuffer) check(expected seq) error {
	n := 0
	for i, p := range r.slots {
		if p == nil {
			continue
		}
		n++
		if p.s <= expected || p.s >= expected+maxTrack || p.s > r.highest || int(p.s)&(len(r.slots)-1) != i {
			return fmt.Errorf("%d is kept in slot %d of %d, up to %d, where %d is expected", p.s, i,
				len(r.slots), r.highest, expected)
		}
	}
	switch {
	case n != r.n || n != 0 && r.find(r.highest) == nil || n == 0 && r.highest != 0:
		return fmt.Errorf("%d packets are kept, counted %d, up to %d", n, r.n, r.highest)
	case n == 0 && len(r.slots) > smallRing || r.pool != nil && len(r.pool.free) > poolPackets:
		return fmt.Errorf("%d slots for nothing, and %d packets in the pool", len(r.slots), len(r.pool.free))
	}
	return nil
}
