package failover

import "ibverbx/internal/wrid"

// Work is outstanding work of one role's lost rails that the peer has not received, in the order in
// which it must be posted again: all of it on one live rail, so that a message still proves the
// data posted ahead of it.
type Work struct {
	entries []Entry
	on      *Rail // carries it; nil before one is chosen
	// last is the last work request posted on that rail, without its rail; 0 for none.
	last uint64
}

// Any reports whether some of it waits to be posted.
func (w *Work) Any() bool { return len(w.entries) != 0 }

// On returns the index of the rail that carries it; -1 before one is chosen.
func (w *Work) On() int {
	if w.on == nil {
		return -1
	}
	return w.on.index
}

// Begin chooses the rail that carries it.
func (w *Work) Begin(on *Rail) { w.on, w.last = on, 0 }

// Next returns the next work request to post.
func (w *Work) Next() Entry { return w.entries[0] }

// Follows reports whether a work request is the last one posted.
func (w *Work) Follows(id uint64) bool { return w.last == wrid.OnNoRail(id) }

// Posted removes the next work request: it was posted on the rail.
func (w *Work) Posted() {
	w.last = wrid.OnNoRail(w.entries[0].ID)
	if w.entries = w.entries[1:]; len(w.entries) == 0 {
		w.clear()
	}
}

// Precede puts a work request ahead of the others.
func (w *Work) Precede(e Entry) { w.entries = append([]Entry{e}, w.entries...) }

// add adds the lost work of a rail. If that rail carries this very work, its work goes ahead of the
// waiting work; otherwise behind it, since nothing may come between a fragment and the user's
// immediate.
func (w *Work) add(r *Rail, again []Entry) {
	if r == w.on {
		w.entries, w.on = append(again, w.entries...), nil
		return
	}
	w.entries = append(w.entries, again...)
}

// awaitsImm reports whether a rail has carried a last fragment whose immediate still waits here.
func (w *Work) awaitsImm(r *Rail) bool { return w.on == r && w.Any() && w.entries[0].isImm() }

func (w *Work) clear() { *w = Work{} }
