package failover

import (
	"slices"

	"ibverbx/internal/wrid"
)

// The leader chooses which rail serves when the one that carries SENDs, or notifications, is lost,
// since the two ends may not see the same rails live at the moment:
//
//	both ends have settled it; has
//	its receives on another        SERVE   →               posts its receives there
//	                                       ←     SERVED
//
// and only then is anything sent there.

// Choose has another rail serve where the one in service is lost and settled, if this end leads.
func (p *Protocol) Choose() (actions []Action) {
	if !p.config.Leader || p.unsettled != 0 {
		return nil
	}
	for _, role := range []Role{Sends, Notifications} {
		i := p.serving[role]
		if i < 0 || p.rails[i].stage < StageSettled || p.unconfirmed[role] != nil {
			continue
		}
		next := p.firstLive(role)
		if next < 0 {
			continue
		}
		old := p.rails[i]
		p.serving[role] = next
		p.unconfirmed[role], p.unconfirmedEpoch[role] = old, old.epoch
		p.broadcast(control{controlServe, old.index, old.epoch, uint16(next)})
		p.patience.renew()
		actions = append(actions, Action{Kind: DoServe, Rail: next})
	}
	return actions
}

// handleServe handles the leader's choice of the rail that takes over from one that was lost.
func (p *Protocol) handleServe(old *Rail, c control, ending bool) (actions []Action, err error) {
	if int(c.count) >= len(p.rails) || p.rails[c.count].role != old.role || old.role == Data {
		return nil, errNoControl
	}
	next := p.rails[c.count]
	switch serving := p.serving[old.role]; {
	case p.config.Leader || ending:
		return nil, nil
	case serving == next.index && next != old:
		p.holdAnswer(control{controlServed, old.index, c.epoch, 0}) // perhaps it was not received
		return nil, nil
	case serving != old.index || c.epoch != old.epoch&epochMask:
		return nil, nil
	}
	if next.stage == StageReady {
		actions = append(actions, Action{Kind: DoGoLive, Rail: next.index})
	}
	p.serving[old.role] = next.index
	p.holdAnswer(control{controlServed, old.index, c.epoch, 0})
	return append(actions, Action{Kind: DoServe, Rail: next.index}), nil
}

// holdAnswer keeps an answer that must wait. A peer may ask many times.
func (p *Protocol) holdAnswer(c control) {
	if !slices.Contains(p.heldAnswers, c) {
		p.heldAnswers = append(p.heldAnswers, c)
	}
}

// Answer queues SERVED where that is due. While a rail is dying no receives are posted, so it must
// wait. The receives of the rail that serves are posted before the next control message is.
func (p *Protocol) Answer() {
	if p.unflushed != 0 {
		return
	}
	for _, c := range p.heldAnswers {
		p.broadcast(c)
	}
	p.heldAnswers = p.heldAnswers[:0]
}

// handleServed handles the follower's confirmation that it has its receives where the leader wants
// them.
func (p *Protocol) handleServed(old *Rail, c control) {
	if p.unconfirmed[old.role] == old && c.epoch == p.unconfirmedEpoch[old.role]&epochMask {
		p.unconfirmed[old.role] = nil
	}
}

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

// Waiting returns how many work requests wait to be posted, and their bytes.
func (w *Work) Waiting() (n int, bytes uint64) {
	for i := range w.entries {
		bytes += uint64(w.entries[i].Size)
	}
	return len(w.entries), bytes
}

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
