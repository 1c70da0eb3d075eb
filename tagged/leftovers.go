package tagged

import "ibverbx/internal/list"

// leftovers are messages that arrived whole from endpoints that are closed, and wait for a receive.
// Worker.mu guards it.
//
// Invariant: an endpoint is in departed if and only if it is closed and its list kept is not empty;
// fragments is the sum over the messages of them all, at most most between calls.
type leftovers struct {
	departed  list.List[Endpoint] // the one closed first in front
	fragments int
	most      int // Config.MaxLeftover
}

// add counts a message of an endpoint that is being closed.
func (l *leftovers) add(in *inbound) { l.fragments += in.fragments }

// depart adds a closed endpoint whose messages were added.
func (l *leftovers) depart(e *Endpoint) { l.departed.PushBack(&e.inDeparted, e) }

// removed notes that a message of an endpoint was removed from its list kept.
func (l *leftovers) removed(e *Endpoint, in *inbound) {
	if !e.inDeparted.Listed() {
		return
	}
	l.fragments -= in.fragments
	if e.kept.all.Empty() {
		l.departed.Remove(&e.inDeparted)
	}
}

// excess returns the oldest message while there are too many; nil otherwise.
func (l *leftovers) excess() *inbound {
	if l.fragments <= l.most {
		return nil
	}
	return l.departed.First().kept.all.First().in
}
