package ibverbx

import (
	"ibverbx/verbs"
)

// counted is a number of holds on a region that are still to be taken, or to be given back, in one
// step.
type counted struct {
	mr *MR
	n  int64
}

// holder gathers the holds of a call on the region named last, so that a batch costs two atomic
// operations and not one a request. For scatter lists it remembers two: a message is often a header
// in one region and a payload in another.
type holder struct {
	// What is to be taken of each, beyond the one hold that was taken to see that it is open.
	last, other counted
}

// take holds mr once more; it reports false when the region is closed.
func (h *holder) take(mr *MR) bool {
	if mr == h.last.mr {
		h.last.n++
		return true
	}
	if !mr.hold(1) {
		return false
	}
	h.last.take()
	h.last.mr = mr
	return true
}

// takeRun is take for a run of pieces of a list.
func (h *holder) takeRun(mr *MR) bool {
	switch {
	case mr == h.last.mr:
		h.last.n++
	case mr == h.other.mr:
		h.other.n++
	case !mr.hold(1):
		return false
	default:
		h.other.take()
		h.other, h.last = h.last, counted{mr: mr}
	}
	return true
}

// settle takes the holds that were only counted. The regions cannot have been closed meanwhile: one
// hold on each is taken.
func (h *holder) settle() {
	h.last.take()
	h.other.take()
}

// take takes the holds that were only counted.
func (c *counted) take() {
	if c.n != 0 {
		c.mr.holds.Add(c.n)
		c.n = 0
	}
}

// giveBack gives back the holds that were only counted.
func (c *counted) giveBack() {
	if c.n != 0 {
		c.mr.unhold(c.n)
		c.n = 0
	}
}

// holdSend keeps the regions that a request names open until it is reported.
func (h *holder) holdSend(i int, wr *SendWR) error {
	if wr.Flags&verbs.SendInline != 0 {
		return nil
	}
	if len(wr.SGL) == 0 {
		if k := wr.Local.Keys; k != nil && k.mr != nil && !h.take(k.mr) {
			return refuseSend(i, wr, ErrClosed, wr.Local.closedText())
		}
		return nil
	}
	if bad := h.holdPieces(wr.SGL); bad >= 0 {
		return refuseSend(i, wr, ErrClosed, wr.SGL[bad].closedText())
	}
	return nil
}

// holdPieces holds the regions of all pieces, once for each run of pieces with the same keys, or
// none; it returns the index of a piece whose region is closed, or -1. sink.releasePieces gives
// back as much.
func (h *holder) holdPieces(pieces []Segment) (closed int) {
	var last *Keys
	for i := range pieces {
		k := pieces[i].Keys
		if k == last {
			continue
		}
		last = k
		if k != nil && k.mr != nil && !h.takeRun(k.mr) {
			h.drop(pieces[:i])
			return i
		}
	}
	return -1
}

// drop gives back what was taken for pieces. What was only counted is taken first: less than what
// is held must never be seen.
func (h *holder) drop(pieces []Segment) {
	h.settle()
	*h = holder{}
	out := sink{}
	out.releasePieces(pieces)
	out.settle()
}

// closedPiece is the index of the first piece whose region is closed, or -1.
func closedPiece(pieces []Segment) int {
	for i := range pieces {
		if !pieces[i].open() {
			return i
		}
	}
	return -1
}

// open reports whether the piece may be named: the region that it is of, if any, is not closed.
func (s *Segment) open() bool { return s.Keys == nil || s.Keys.open() }

// closedText is why a piece whose region is closed is refused.
func (s *Segment) closedText() string { return "memory region " + s.String() + " is closed" }
