package ibverbx

import (
	"math/rand/v2"
	"slices"
	"time"

	"ibverbx/verbs"
)

// This file brings rails back that were lost and are settled. Their queue pairs are reset, which
// both ends may do by then: neither end's NIC holds anything of the old connection of the rail. One
// end leads:
//
//	leader                                       follower
//	settled; asks after a pause      UP    →
//	                                       ←     READY     resets its queue pair, to RTS
//	resets its queue pair, to RTS
//	proves the path by                GO   →               over the rail itself: it is live
//	GO is acknowledged: it is live
//
// The connection of a rail has an epoch, which all words about it name; so a word that comes late
// means nothing. UP and READY carry the packet sequence numbers.
//
// The leader also says which rail serves when the one that carries SENDs, or notifications, is
// lost, since the two ends may not see the same rails live at the moment:
//
//	both ends have settled it; has
//	its receives on another        SERVE   →               posts its receives there
//	                                       ←     SERVED
//
// and only then is anything sent there.

const (
	// maxPauses is how often the pause before a rail is brought back is doubled: a rail that flaps
	// is held back.
	maxPauses = 6
	// firstLimit is how much a rail that has come back is given at first, in work requests. It
	// doubles as that is carried.
	firstLimit = 4
)

// leads reports whether this end leads: a choice that both make alike.
func leads(own, peer *BusinessCard) bool {
	switch a, b := own.Rails[0].GID, peer.Rails[0].GID; {
	case a != b:
		return string(a[:]) < string(b[:])
	default:
		return own.QPNums[0] < peer.QPNums[0]
	}
}

// pause is how long a rail waits until it is brought back.
func (q *VirtualQP) pause(v *recovery) time.Duration {
	v.pauses = min(v.pauses+1, maxPauses+1)
	return q.cfg.Failback << (v.pauses - 1)
}

// bringBack asks for the rails whose pause is over, if this end leads. While a port is down no
// queue pair is connected over it: on the way to RTR the kernel looks for the peer's Ethernet
// address, and the caller stands still until it gives up, a second or more for each queue pair.
func (q *VirtualQP) bringBack() {
	f := q.failover
	if !f.leads || q.cfg.Failback < 0 || q.ending() || q.unheard() {
		return // a word that comes an age late must not be taken for one of a later epoch
	}
	var now, next time.Time
	for _, rl := range q.send.rails.all {
		v := rl.recovery
		if v.stage != railSettled || !rl.returns() {
			continue
		}
		if now.IsZero() {
			now = q.line.clock()
		}
		if v.due.IsZero() {
			v.due = now.Add(q.pause(v))
		}
		switch {
		case now.Before(v.due):
		case !q.mayReturn(rl):
			v.due = now.Add(q.cfg.Failback)
		default:
			v.due = now.Add(q.pause(v))
			if v.ownPSN == 0 {
				v.ownPSN = rl.drawPSN()
			}
			q.tellAll(word{controlUp, rl.index(), v.epoch + 1, v.ownPSN})
		}
		if next.IsZero() || v.due.Before(next) {
			next = v.due
		}
	}
	if !next.IsZero() {
		q.cq.touchAt(q, next, now) // nothing else may lead here by then
	}
}

// mayReturn reports whether the NIC of a lost rail may have it back: its port is up, and it has all
// memory that requests may name.
func (q *VirtualQP) mayReturn(rl *rail) bool {
	return q.portActive(rl.qp.Device()) && (q.dom == nil || q.dom.lacking[rl.device].Load() == 0)
}

// drawPSN draws the upper 16 bits of a packet sequence number, which travel in a word: never 0, and
// ahead of the rail's last connection like that of newConn.
func (r *rail) drawPSN() uint16 {
	return max(1, uint16(r.lastPSN>>8+1<<14+rand.Uint32N(1<<14)))
}

// askedUp handles the leader's wish to bring a rail back.
func (q *VirtualQP) askedUp(rl *rail, w word) {
	v := rl.recovery
	switch {
	case q.failover.leads || q.ending() || q.cfg.Failback < 0 || !rl.returns():
	case w.epoch == v.epoch&epochMask && v.stage == railReady:
		q.tellAll(word{controlReady, rl.index(), v.epoch, v.ownPSN})
	case q.unheard():
	case !q.mayReturn(rl): // the leader asks again
	case w.epoch == (v.epoch+1)&epochMask && v.stage == railSettled:
		v.ownPSN = rl.drawPSN()
		if q.resume(rl, v.ownPSN, w.count) == nil {
			v.stage = railReady
			q.tellAll(word{controlReady, rl.index(), v.epoch, v.ownPSN})
		}
	}
}

// peerReady handles the follower's word that its queue pair of a rail waits.
func (q *VirtualQP) peerReady(rl *rail, w word) {
	v := rl.recovery
	if !q.failover.leads || q.ending() || v.stage != railSettled || v.ownPSN == 0 ||
		w.epoch != (v.epoch+1)&epochMask {
		return
	}
	if q.resume(rl, v.ownPSN, w.count) == nil {
		v.stage, v.ownPSN = railProbing, 0
		v.say(word{controlGo, rl.index(), v.epoch, 0})
	}
}

// resume takes the queue pair of a settled rail from ERR to RTS again, in the next epoch, with its
// receives posted. The rail carries nothing yet. One that refuses stays lost, and is tried again.
func (q *VirtualQP) resume(rl *rail, ownPSN, peerPSN uint16) error {
	err := q.reconnect(rl, ownPSN, peerPSN)
	if err != nil {
		_ = rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState) // it is tried again
		q.recv.dropCredits(rl)
		rl.recvs = 0
	}
	return err
}

func (q *VirtualQP) reconnect(rl *rail, ownPSN, peerPSN uint16) error {
	v := rl.recovery
	if err := rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState); err != nil {
		return err
	}
	rl.inbox.Restart(rl.creditsPosted)
	rl.log.clear()
	v.posted, v.unanswered, v.peerDown, v.emptied = 0, 0, false, false
	v.words = v.words[:0]
	v.setup[stepRTR].attr.RQPSN, v.setup[stepRTS].attr.SQPSN = uint32(peerPSN)<<8, uint32(ownPSN)<<8
	for i := range v.setup {
		if err := rl.qp.Modify(&v.setup[i].attr, v.setup[i].mask); err != nil {
			return err
		}
		if i == stepRTR {
			if err := q.postOwn(rl); err != nil {
				return err
			}
		}
	}
	rl.lastPSN = v.setup[stepRTS].attr.SQPSN
	v.epoch++
	v.due = time.Time{}
	return nil
}

// postOwn posts the receives of its own that a rail has at the beginning; one that carries no data
// has one at the follower, for GO.
func (q *VirtualQP) postOwn(rl *rail) error {
	switch {
	case rl.role != roleData && q.failover.leads:
		return nil
	case rl.role != roleData:
		rl.recvsToPost = 1
	default:
		rl.recvsToPost = rl.own
	}
	q.recv.recvsToPost += rl.recvsToPost
	return q.recv.postCredits(rl)
}

// goLive puts a rail back into service.
func (q *VirtualQP) goLive(rl *rail) {
	v := rl.recovery
	v.stage, v.cause = railLive, nil
	rl.down, rl.recvsRefused = false, false
	rl.limit = min(v.limit, firstLimit)
	v.grow = rl.log.head + uint64(rl.limit)
	if rl.role == roleData {
		q.send.rails.free += rl.limit
	}
	if rl.ability != nil {
		rl.ability.restart()
		q.send.rails.compare()
	}
	q.railsBack++
	if rl.role == roleData {
		q.tellAgain(rl)
	}
	q.cq.touch(q)
	q.announce(rl, nil)
}

// tellAgain says over a rail that has come back what the peer may not have heard: the rails over
// which it was said may be lost by now.
func (q *VirtualQP) tellAgain(on *rail) {
	tell := on.recovery.say
	for _, rl := range q.send.rails.all {
		if v := rl.recovery; v.stage == railFlushed || v.stage == railSettled {
			tell(word{controlDown, rl.index(), v.epoch, v.arrived()})
		}
	}
	for role, old := range q.failover.awaits {
		if old != nil {
			next := *q.send.rails.serving(railRole(role))
			tell(word{controlServe, old.index(), q.failover.awaited[role], uint16(next.index())})
		}
	}
}

// growLimits gives rails that have come back more to carry as they have carried what they had.
func (q *VirtualQP) growLimits() {
	for _, rl := range q.send.rails.all {
		v := rl.recovery
		if v.grow == 0 || rl.log.head < v.grow {
			continue
		}
		more := min(rl.limit, v.limit-rl.limit)
		rl.limit += more
		v.grow = rl.log.head + uint64(rl.limit)
		if rl.role == roleData {
			q.send.rails.free += more
		}
		if rl.limit == v.limit {
			v.pauses, v.grow = 0, 0 // it has proved itself
		}
	}
}

// chooseService has another rail serve where the one in service is lost and settled, if this end
// leads. The receives are posted there before the peer hears of it.
func (q *VirtualQP) chooseService() {
	f, rails := q.failover, &q.send.rails
	for _, role := range []railRole{roleSends, roleFinals} {
		old := *rails.serving(role)
		if !f.leads || old == nil || !old.down || f.awaits[role] != nil || old.recovery.stage < railSettled {
			continue
		}
		next := rails.firstLive(role)
		if next == nil {
			continue
		}
		*rails.serving(role) = next
		f.awaits[role], f.awaited[role] = old, old.recovery.epoch
		q.dispatchRecvs()
		q.tellAll(word{controlServe, old.index(), old.recovery.epoch, uint16(next.index())})
	}
}

// serve handles the leader's choice of the rail that takes over from one that was lost.
func (q *VirtualQP) serve(old *rail, w word) error {
	rails := &q.send.rails
	if int(w.count) >= len(rails.all) || rails.all[w.count].role != old.role || old.role == roleData {
		return errNoControl
	}
	next := rails.all[w.count]
	switch serving := *rails.serving(old.role); {
	case q.failover.leads || q.ending():
		return nil
	case serving == next && next != old:
		q.failover.willAnswer(word{controlServed, old.index(), w.epoch, 0}) // perhaps it was not heard
		return nil
	case serving != old || w.epoch != old.recovery.epoch&epochMask:
		return nil
	}
	if next.recovery.stage == railReady {
		q.goLive(next)
	}
	*rails.serving(old.role) = next
	q.failover.willAnswer(word{controlServed, old.index(), w.epoch, 0})
	return nil
}

// willAnswer notes an answer that must wait. A peer may ask many times.
func (f *failover) willAnswer(w word) {
	if !slices.Contains(f.answers, w) {
		f.answers = append(f.answers, w)
	}
}

// answer says SERVED. While a rail is dying no receives are posted, so it must wait.
func (q *VirtualQP) answer() {
	f := q.failover
	if len(f.answers) == 0 || f.unflushed != 0 {
		return
	}
	q.dispatchRecvs()
	for _, w := range f.answers {
		q.tellAll(w)
	}
	f.answers = f.answers[:0]
}

// served handles the follower's word that it has its receives where the leader wants them.
func (q *VirtualQP) served(old *rail, w word) {
	f := q.failover
	if f.awaits[old.role] == old && w.epoch == f.awaited[old.role]&epochMask {
		f.awaits[old.role] = nil
		q.cq.touch(q)
	}
}

// serving is which rail of a role without data is in service; nil for none.
func (s *railSet) serving(role railRole) **rail {
	if role == roleSends {
		return &s.sendRail
	}
	return &s.finalRail
}

// returns reports whether the rail's queue pair can be connected anew.
func (r *rail) returns() bool { return !r.closed && r.recovery.setup[stepRTS].mask != 0 }
