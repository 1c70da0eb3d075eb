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
	// The two regions named last, and the holds on them that are to be given back: as in holder.
	last, other counted
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
		s.releaseRuns(r.ext.list.runs)
	}
}

// releaseOne gives back one hold.
func (s *sink) releaseOne(mr *MR) {
	if mr != s.last.mr {
		s.last.giveBack()
		s.last.mr = mr
	}
	s.last.n++
}

// releaseRun gives back the hold on a run of pieces of a list.
func (s *sink) releaseRun(mr *MR) {
	switch mr {
	case s.last.mr:
		s.last.n++
	case s.other.mr:
		s.other.n++
	default:
		s.other.giveBack()
		s.other, s.last = s.last, counted{mr: mr, n: 1}
	}
}

// releaseRuns gives back what holder.holdPieces took for a list that was copied.
func (s *sink) releaseRuns(runs []keyRun) {
	for i := range runs {
		if mr := runs[i].keys.mr; mr != nil {
			s.releaseRun(mr)
		}
	}
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
			s.releaseRun(k.mr)
		}
	}
}

// settle gives back the holds that were only counted.
func (s *sink) settle() {
	s.last.giveBack()
	s.other.giveBack()
}
