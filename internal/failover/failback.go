package failover

import "time"

// Rails come back when they are settled. Their queue pairs are reset, which both ends may do by
// then: neither NIC holds anything of the old connection of the rail. One end leads:
//
//	leader                                       follower
//	settled; asks after a pause      UP    →
//	                                       ←     READY     resets its queue pair, to RTS
//	resets its queue pair, to RTS
//	proves the path by                GO   →               over the rail itself: it is live
//	GO is acknowledged: it is live
//
// The connection of a rail has an epoch, which every control about it names, so a late control has
// no effect. UP and READY carry the packet sequence numbers.

// maxPauses is how often the pause before a rail's return is doubled, which holds back a flapping
// rail.
const maxPauses = 6

// pause returns how long a rail waits until it is brought back.
func (p *Protocol) pause(r *Rail) time.Duration {
	r.pauses = min(r.pauses+1, maxPauses+1)
	return p.config.Failback << (r.pauses - 1)
}

// MayAsk reports whether this end may ask for lost rails now. Epochs have few bits: none begins
// while a control message is outstanding, so that a late one matches no later epoch.
func (p *Protocol) MayAsk() bool {
	return p.config.Leader && p.config.Failback >= 0 && p.unsettled == 0 && !p.controlsOutstanding()
}

// Due reports whether the pause before a rail's return is over, and when it will be over or must be
// checked again. at is zero for a rail that must not return.
func (p *Protocol) Due(r *Rail, now time.Time) (due bool, at time.Time) {
	if r.stage != StageSettled || r.gone || p.beingReplaced(r) {
		return false, time.Time{}
	}
	if r.due.IsZero() {
		r.due = now.Add(p.pause(r))
	}
	return !now.Before(r.due), r.due
}

// beingReplaced reports whether a rail is still in service, or the peer has not confirmed that
// another one serves in its place. SERVE names the epoch in which the rail was lost: if the rail
// came back before that, the follower would ignore SERVE as late, and the ends would wait for each
// other. This ends when another rail of the role is live. If none ever is, because all others are
// gone, the rail stays out.
func (p *Protocol) beingReplaced(r *Rail) bool {
	return p.serving[r.role] == r.index || p.unconfirmed[r.role] == r
}

// Ask asks the follower for a rail that is due. psn is the caller's number for it, which is used
// unless one was drawn for it before. It returns when to ask again.
func (p *Protocol) Ask(r *Rail, now time.Time, psn uint16) (again time.Time) {
	p.asked, r.due = now, now.Add(p.pause(r))
	if r.psn == 0 {
		r.psn = psn
	}
	p.broadcast(control{controlUp, r.index, r.epoch + 1, r.psn})
	return r.due
}

// Postpone leaves a rail that is due for later: its NIC may not have it back yet. It returns when
// to look again.
func (p *Protocol) Postpone(r *Rail, now time.Time) (again time.Time) {
	r.due = now.Add(p.config.Failback)
	return r.due
}

// handleUp handles the leader's request to bring a rail back.
func (p *Protocol) handleUp(r *Rail, c control) []Action {
	switch {
	case p.config.Leader || p.config.Failback < 0 || r.gone:
	case c.epoch == r.epoch&epochMask && r.stage == StageReady:
		p.broadcast(control{controlReady, r.index, r.epoch, r.psn})
	case p.controlsOutstanding(): // the leader asks again
	case c.epoch == (r.epoch+1)&epochMask && r.stage == StageSettled:
		return []Action{{Kind: DoConnect, Rail: r.index, PeerPSN: c.count}}
	}
	return nil
}

// handleReady handles the follower's report that its queue pair of a rail is connected and waits.
func (p *Protocol) handleReady(r *Rail, c control) []Action {
	if !p.config.Leader || r.stage != StageSettled || r.psn == 0 || c.epoch != (r.epoch+1)&epochMask {
		return nil
	}
	return []Action{{Kind: DoConnect, Rail: r.index, OwnPSN: r.psn, PeerPSN: c.count}}
}

// Reset drops the state of a settled rail's last connection: its queue pair was reset. Receives
// that are posted from here on belong to the next.
func (r *Rail) Reset() {
	r.posted, r.unanswered, r.peerDown = 0, 0, false
	r.places = r.places[:0]
}

// Connected handles the success of a DoConnect, with the PSN of this end: the rail is in its next
// epoch, and carries nothing yet.
func (p *Protocol) Connected(r *Rail, ownPSN uint16) {
	r.epoch++
	r.due = time.Time{}
	if p.config.Leader {
		r.stage, r.psn = StageProbing, 0
		p.askOthers()
		r.enqueue(control{controlGo, r.index, r.epoch, 0})
		return
	}
	r.stage, r.psn = StageReady, ownPSN
	p.broadcast(control{controlReady, r.index, r.epoch, r.psn})
}

// askOthers makes the rails due again that the leader has asked for in vain: the follower answers
// for one at a time, and has just done so.
func (p *Protocol) askOthers() {
	for _, r := range p.rails {
		if r.stage == StageSettled && r.psn != 0 && r.due.After(p.asked) {
			r.due, r.pauses = p.asked, max(0, r.pauses-1)
		}
	}
}

// WentLive handles the return of a rail into service.
func (p *Protocol) WentLive(r *Rail, now time.Time) {
	if p.Lacks(r.role) {
		p.patience.renew() // the next step is to agree that it serves
	}
	r.stage, r.cause, r.liveSince = StageLive, nil, now
	p.SuspectIdle()
	if r.role == Data {
		p.repeatControls(r)
	}
}

// repeatControls queues, on a rail that has come back, the controls that the peer may not have
// received: the rails over which they were sent may be lost by now.
func (p *Protocol) repeatControls(on *Rail) {
	for _, r := range p.rails {
		if r.stage == StageFlushed || r.stage == StageSettled {
			on.enqueue(control{controlDown, r.index, r.epoch, r.arrived()})
		}
	}
	for role, old := range p.unconfirmed {
		if old != nil {
			on.enqueue(control{controlServe, old.index, p.unconfirmedEpoch[role], uint16(p.serving[role])})
		}
	}
}
