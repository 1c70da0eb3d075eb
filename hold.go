package ibverbx

import (
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// holder gathers consecutive holds on one region, so that a batch costs one atomic operation and
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
			return sendError(i, wr, ErrClosed, "memory region "+wr.Local.String()+" is closed")
		}
		return nil
	}
	if bad := holdPieces(wr.SGL); bad >= 0 {
		return sendError(i, wr, ErrClosed, "memory region "+wr.SGL[bad].String()+" is closed")
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

// unholdPieces gives back what holdPieces took.
func unholdPieces(pieces []Segment) {
	for i := range pieces {
		if k := pieces[i].Keys; k != nil && k.mr != nil {
			k.mr.unhold(1)
		}
	}
}

// sink is where a poll puts what it reports: into the caller's slice while there is room, then into
// the ready ring.
type sink struct {
	dst   []WC
	n     int            // completions in dst
	ready *ring.FIFO[WC] // takes what dst has no room for
	mr    *MR            // region whose holds are gathered, to give them back in one step
	held  int64
}

// slot is where the next completion to report goes. Its fields are as their last user left them.
func (s *sink) slot() *WC {
	if s.n == len(s.dst) {
		return s.overflow()
	}
	s.n++
	return &s.dst[s.n-1]
}

// overflow is apart so that slot can be inlined.
//
//go:noinline
func (s *sink) overflow() *WC { return s.ready.Open() }

// release gives back what a reported request held.
func (s *sink) release(r *sendReq) {
	if k := r.localKeys; k != nil && k.mr != nil {
		if k.mr != s.mr {
			s.settle()
			s.mr = k.mr
		}
		s.held++
	} else if r.scattered {
		unholdPieces(r.ext.pieces)
	}
}

// settle gives back the holds that were only counted.
func (s *sink) settle() {
	if s.held != 0 {
		s.mr.unhold(s.held)
		s.held = 0
	}
}
