package ibverbx

import "ibverbx/internal/ring"

// A program that posts one request and polls it pays for two atomic operations on its region, 3 to
// 11 ns on the processors measured. Both are necessary, because any goroutine may close a region: a
// post and a Close at the same moment must see each other, so each must write before it reads, and
// on amd64 that takes one locked instruction. A plain store would suffice for the report, but an
// atomic store in Go is a locked instruction too. Keeping the holds for the next request would make
// Close refuse a region that nothing uses.

// counted is a number of holds on a region that are still to be taken, or given back, in one step.
type counted struct {
	mr *MR
	n  int64
}

// holder gathers the holds of a call on the region named last, so that a batch costs two atomic
// operations instead of one per request. For lists over several regions it remembers two: a message
// is often a header in one region and a payload in another.
type holder struct {
	// The holds still to be taken on each, beyond the first one, which showed that the region is
	// open.
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

// settle takes the holds that were only counted. The regions cannot have been closed meanwhile,
// because one hold on each is taken already.
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

// holdSend keeps the regions that a request names open until it is reported. keys is what checkSend
// returned.
func (h *holder) holdSend(i int, wr *SendWR, keys *Keys) error {
	if keys == nil {
		if bad := h.holdPieces(wr.SGL); bad >= 0 {
			return refuseSend(i, wr, ErrClosed, wr.SGL[bad].closedText())
		}
		return nil
	}
	if keys.mr != nil && !h.take(keys.mr) {
		first := wr.Local
		if len(wr.SGL) != 0 {
			first = wr.SGL[0]
		}
		return refuseSend(i, wr, ErrClosed, first.closedText())
	}
	return nil
}

// holdPieces holds the regions of all pieces, once for each run of pieces with the same keys, or
// none; it returns the index of a piece whose region is closed, or -1. sink.releasePieces undoes
// it.
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

// closedPiece returns the index of the first piece whose region is closed, or -1.
func closedPiece(pieces []Segment) int {
	for i := range pieces {
		if !pieces[i].open() {
			return i
		}
	}
	return -1
}

// open reports whether requests may use the piece: its region, if any, is not closed.
func (s *Segment) open() bool { return s.Keys == nil || s.Keys.open() }

// closedText explains the refusal of a piece whose region is closed.
func (s *Segment) closedText() string { return "memory region " + s.String() + " is closed" }

// sink is the destination of a poll's completions: the caller's slice while there is room, then the
// ready ring.
type sink struct {
	dst   []WC
	n     int            // completions in dst
	ready *ring.FIFO[WC] // takes completions that do not fit dst
	// The two regions named last, and the holds on them to be given back, as in holder.
	last, other counted
}

// slot returns the place of the next completion. Its fields are as their last user left them.
func (s *sink) slot() *WC {
	if s.n == len(s.dst) {
		return s.overflow()
	}
	s.n++
	return &s.dst[s.n-1]
}

// overflow is separate so that slot can be inlined.
//
//go:noinline
func (s *sink) overflow() *WC { return s.ready.Open() }

// release gives back the holds of a reported request.
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

// releaseRuns gives back the holds that holder.holdPieces took for a list that was copied.
func (s *sink) releaseRuns(runs []keyRun) {
	for i := range runs {
		if mr := runs[i].keys.mr; mr != nil {
			s.releaseRun(mr)
		}
	}
}

// releasePieces gives back the holds that holder.holdPieces took.
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

// drop gives back the holds of pieces. It first takes those that were only counted, because the
// count must never be lower than the holds in use.
func (h *holder) drop(pieces []Segment) {
	h.settle()
	*h = holder{}
	out := sink{}
	out.releasePieces(pieces)
	out.settle()
}
