package failover

import "ibverbx/internal/wrid"

// Work is what lost rails of one role had outstanding and the peer has not received, in the order
// in which it is to be posted again: all of it on one live rail, so that a message still proves
// what was posted ahead of it.
type Work struct {
	entries []Entry
	on      *Rail // carries it; nil before one is chosen
	// last is the work request that was posted last on that rail, without its rail; 0 for none.
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

// Next returns the work request to be posted next.
func (w *Work) Next() Entry { return w.entries[0] }

// Follows reports whether a work request is the one that was posted last.
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

// add adds what a rail has lost. Where the rail carries this very work, that comes ahead of what
// waits; otherwise behind it, since nothing may come between a fragment and the user's immediate.
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
