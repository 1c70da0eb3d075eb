package ibverbx

import (
	"time"

	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// firstLimit is the limit of a rail that has come back, in work requests. It doubles each time the
// rail has carried as many.
const firstLimit = 4

// leads reports whether this end is the leader. Both ends come to the same result.
func leads(own, peer *BusinessCard) bool {
	switch a, b := own.Rails[0].GID, peer.Rails[0].GID; {
	case a != b:
		return string(a[:]) < string(b[:])
	default:
		return own.QPNums[0] < peer.QPNums[0]
	}
}

// bringBack asks for the rails whose pause is over, if this end is the leader. It returns when to
// look again, or zero, and the time. While a port is down it connects no queue pair over it: in the
// move to RTR the kernel looks for the peer's Ethernet address, and blocks the caller until it
// gives up, a second or more for each queue pair.
func (x *recovery) bringBack() (next, now time.Time) {
	if !x.protocol.MayAsk() {
		return next, now
	}
	for _, rl := range x.rails.all {
		if !rl.down || rl.back.state.GivenUp() {
			continue
		}
		if now.IsZero() {
			now = x.line.clock()
		}
		due, at := x.protocol.Due(rl.back.state, now)
		switch {
		case !due:
		case x.mayReturn(rl):
			at = x.protocol.Ask(rl.back.state, now, rl.drawPSN())
		default:
			at = x.protocol.Postpone(rl.back.state, now)
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, now
}

// mayReturn reports whether a lost rail may return to service: its NIC's port is up, and the NIC
// has all memory that requests may name.
func (x *recovery) mayReturn(rl *rail) bool {
	return x.portActive(rl.qp.Device()) && (x.lacking == nil || x.lacking[rl.device].Load() == 0)
}

// connect takes the queue pair of a settled rail from ERR to RTS again, in the next epoch, with its
// receives posted. The rail carries nothing yet. If its queue pair refuses, the rail stays lost and
// is tried again.
func (x *recovery) connect(rl *rail, a failover.Action) {
	psn := a.OwnPSN
	if psn == 0 {
		if !x.mayReturn(rl) {
			return // the leader asks again
		}
		psn = rl.drawPSN()
	}
	if x.reconnect(rl, psn, a.PeerPSN) != nil {
		_ = rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState) // it is tried again later
		x.recv.dropCredits(rl)
		rl.recvs = 0
		return
	}
	x.protocol.Connected(rl.back.state, psn)
}

func (x *recovery) reconnect(rl *rail, ownPSN, peerPSN uint16) error {
	if err := rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState); err != nil {
		return err
	}
	rl.inbox.Restart(rl.creditsPosted)
	rl.log.Clear()
	rl.back.state.Reset()
	rl.back.emptied = false
	setup := &rl.back.setup
	setup[stepRTR].attr.RQPSN, setup[stepRTS].attr.SQPSN = uint32(peerPSN)<<8, uint32(ownPSN)<<8
	for i := range setup {
		if err := rl.qp.Modify(&setup[i].attr, setup[i].mask); err != nil {
			return err
		}
		if i == stepRTR {
			if err := x.postOwn(rl); err != nil {
				return err
			}
		}
	}
	rl.lastPSN = setup[stepRTS].attr.SQPSN
	return nil
}

// postOwn posts a rail's own receives after it is connected. At the follower a rail without data
// has one, for GO.
func (x *recovery) postOwn(rl *rail) error {
	switch {
	case rl.role != failover.Data && x.protocol.Leader():
		return nil
	case rl.role != failover.Data:
		rl.recvsToPost = 1
	default:
		rl.recvsToPost = rl.own
	}
	x.recv.recvsToPost += rl.recvsToPost
	return x.recv.postCredits(rl)
}

// goLive puts a rail back into service.
func (x *recovery) goLive(rl *rail) {
	rl.down, rl.recvsRefused = false, false
	rl.limit = min(rl.back.limit, firstLimit)
	rl.back.grow = rl.log.Completed() + uint64(rl.limit)
	if rl.role == failover.Data {
		x.rails.free += rl.limit
	}
	if rl.ability != nil {
		rl.ability.Return()
	}
	x.railsBack++
	x.protocol.WentLive(rl.back.state, x.line.clock())
	x.announce(rl, nil)
}

// growLimits raises the limits of rails that have come back, as they carry work.
func (x *recovery) growLimits() {
	for _, rl := range x.rails.all {
		b := rl.back
		if b.grow == 0 || rl.log.Completed() < b.grow {
			continue
		}
		more := min(rl.limit, b.limit-rl.limit)
		rl.limit += more
		b.grow = rl.log.Completed() + uint64(rl.limit)
		if rl.role == failover.Data {
			x.rails.free += more
		}
		if rl.limit == b.limit {
			b.grow = 0
			rl.back.state.Proved()
		}
	}
}

// repost stages lost work again, as far as there is room. Every lost rail is settled.
func (x *recovery) repost() {
	if !x.send.finishImm() {
		return
	}
	for role := range failover.Roles {
		w := x.protocol.Work(role)
		if !w.Any() {
			continue
		}
		if w.On() < 0 {
			on := x.rails.nextForAtomics()
			if role != failover.Data {
				on = *x.rails.serving(role)
			}
			w.Begin(on.back.state)
		}
		x.repostOn(x.rails.all[w.On()], w)
	}
}

// repostOn stages lost work on a rail, as far as it has room.
func (x *recovery) repostOn(rl *rail, w *failover.Work) {
	for w.Any() && rl.hasRoom() {
		e := w.Next()
		if wrid.Kind(e.ID) == wrid.Imm {
			if last := x.send.lastBefore(&e); !w.Follows(last.ID) {
				// The fragment that announces the user's immediate has arrived, but does not count
				// without it, so it is sent again.
				n, _ := x.send.resolve(e.ID)
				x.send.win.At(n).left++
				w.Precede(last)
				continue
			}
		}
		x.send.stageAgain(rl, &e)
		x.reposted++
		w.Posted()
	}
}
