package ibverbx

import (
	"ibverbx/verbs"
)

// holder gathers consecutive holds on one region, so that a batch costs two atomic operations and
// not one a request.
type holder struct {
	mr *MR
	n  int64 // holds to take, beyond the one taken to see that the region is open
}

// take holds mr once more; it reports false when the region is closed.
func (h *holder) take(mr *MR) bool {
	if mr == h.mr {
		h.n++
		return true
	}
	if !mr.hold(1) {
		return false
	}
	h.settle()
	h.mr = mr
	return true
}

// settle takes the holds that were only counted. The region cannot have been closed meanwhile: one
// is taken.
func (h *holder) settle() {
	if h.n != 0 {
		h.mr.holds.Add(h.n)
		h.n = 0
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
	if bad := holdPieces(wr.SGL); bad >= 0 {
		return refuseSend(i, wr, ErrClosed, wr.SGL[bad].closedText())
	}
	return nil
}

// holdPieces holds the region of every piece, or of none; it returns the index of the piece whose
// region is closed, or -1.
func holdPieces(pieces []Segment) int {
	for i := range pieces {
		if k := pieces[i].Keys; k != nil && k.mr != nil && !k.mr.hold(1) {
			unholdPieces(pieces[:i])
			return i
		}
	}
	return -1
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

// unholdPieces gives back what holdPieces took.
func unholdPieces(pieces []Segment) {
	for i := range pieces {
		if k := pieces[i].Keys; k != nil && k.mr != nil {
			k.mr.unhold(1)
		}
	}
}
