package ibverbx

import (
	"ibverbx/internal/ring"
)

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
		s.releaseOne(k.mr)
	} else if r.scattered {
		s.releasePieces(r.ext.pieces)
	}
}

// releaseOne gives back one hold.
func (s *sink) releaseOne(mr *MR) {
	if mr != s.mr {
		s.settle()
		s.mr = mr
	}
	s.held++
}

// releasePieces gives back what holder.holdPieces took.
func (s *sink) releasePieces(pieces []Segment) {
	var last *Keys
	for i := range pieces {
		k := pieces[i].Keys
		if k == last {
			continue
		}
		last = k
		if k != nil && k.mr != nil {
			s.releaseOne(k.mr)
		}
	}
}

// settle gives back the holds that were only counted.
func (s *sink) settle() {
	if s.held != 0 {
		s.mr.unhold(s.held)
		s.held = 0
	}
}
