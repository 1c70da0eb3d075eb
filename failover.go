package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// failover takes rails that fail out of a connection whose ends both offer that. It is nil where it
// is not in force. docs/FAILOVER.md says why what it does is safe.
//
// While a rail is not settled no new request is handed to any rail, nor until what was lost has
// been posted again: so no number is given, and no marker judged, while plain data is on no rail.
//
// Invariant: unflushed counts the rails that are dying, unsettled those that are dying or flushed.
type failover struct {
	unflushed, unsettled int
	degraded             bool      // not every rail is in full service
	since                time.Time // when the last of them was lost
	leads                bool      // this end brings rails back, and chooses those in service
	// awaits is the rail that was in service, by role, when the peer has not said yet that its
	// receives are posted on the next one, and awaited its epoch.
	awaits  [roles]*rail
	awaited [roles]uint8
	answers []word // SERVED, to be said once receives can be posted
	// portsDown are the devices whose ports may be down.
	portsDown []suspect
	// What is to be posted again, by what carries it: a data rail, the rail of SENDs, that of
	// notifications.
	data, sends, finals lostWork
}

// paused reports whether new requests must wait.
func (q *VirtualQP) paused() bool {
	f := q.failover
	return q.waits() || f.data.any() || f.sends.any() || f.finals.any()
}

// waits reports whether something is to be agreed with the peer about rails that are lost, or no
// data rail is in service until the leader says that one is.
func (q *VirtualQP) waits() bool {
	f, s := q.failover, &q.send.rails
	return f.unsettled != 0 || f.awaits != [roles]*rail{} || s.sendRail != nil && s.sendRail.down ||
		s.finalRail != nil && s.finalRail.down || s.firstLive(roleData) == nil
}

// restart begins a connection.
func (f *failover) restart() { *f = failover{leads: f.leads} }

// offersFailover reports whether the card may offer failover.
func (q *VirtualQP) offersFailover() bool { return q.pass == nil && q.cfg.Failover }

// survives reports whether the connection can do without a rail.
func (q *VirtualQP) survives(rl *rail) bool {
	if q.failover == nil || q.ending() || q.line.state != verbs.StateRTS {
		return false
	}
	return q.send.rails.other(rl) != nil
}

// other is a live rail that may take over from rl; nil if there is none.
func (s *railSet) other(rl *rail) *rail {
	for _, r := range s.group(rl.role) {
		if r != rl && (!r.down || r.recovery.stage == railReady) {
			return r
		}
	}
	return nil
}

// checkFailover says why rails cannot stand in for each other.
func (q *VirtualQP) checkFailover(rails *railSet) error {
	if !q.cfg.Failover || len(rails.data) == 1 {
		return nil
	}
	if q.cfg.Scheme == Spray && len(rails.spares) == 0 {
		return fmt.Errorf("ibverbx: new virtual qp: %w: Failover in spray has SENDs on a queue pair of "+
			"their own: take Domain.NewQP, or dqplb", verbs.ErrInvalid)
	}
	least := rails.all[0]
	for _, rl := range rails.all {
		if rl.maxSGE != least.maxSGE {
			return fmt.Errorf("ibverbx: new virtual qp: %w: Failover, and a queue pair of %s takes %d "+
				"pieces of memory, one of %s %d: make them alike", verbs.ErrInvalid,
				rl.qp.Device().Name(), rl.maxSGE, least.qp.Device().Name(), least.maxSGE)
		}
		if rl.maxMessage < least.maxMessage {
			least = rl
		}
	}
	for _, rl := range rails.all {
		rl.maxMessage = least.maxMessage
	}
	return nil
}

// lost counts the rails that are out of service.
func (s *railSet) lost() (n int) {
	for _, rl := range s.all {
		if rl.down {
			n++
		}
	}
	return n
}

// refusalLosesRail reports whether a refusal is the fault of the queue pair or its NIC.
func refusalLosesRail(err error) bool {
	return errors.Is(err, verbs.ErrState) || errors.Is(err, verbs.ErrDeviceGone)
}

// lostRail handles a completion that says that its rail is lost, or is of a rail that is. It
// reports false for any other.
func (q *VirtualQP) lostRail(rl *rail, wc *verbs.WC) bool {
	if rl.works() {
		// A control message that finds no receive, where the peer may retry no longer, is no fault
		// of a request either.
		lost := losesRail(wc.Status) || wrid.Kind(wc.ID) == wrid.Control && wc.Status != verbs.StatusSuccess
		if !lost || !q.survives(rl) || !q.outstanding(rl, wc.ID) {
			return false
		}
		q.loseRail(rl, wc.Status)
	}
	if !q.returned(rl, wc) {
		q.stale++
		return true
	}
	q.cq.touch(q)
	return true
}

// outstanding reports whether the rail has the work request of a completion outstanding.
func (q *VirtualQP) outstanding(rl *rail, id uint64) bool {
	switch wrid.Kind(id) {
	case wrid.Recv:
		n, ok := q.recv.win.Resolve(wrid.Number(id), wrid.NumberMask)
		return ok && rl.recvs != 0 && q.recv.postedOn(rl, n)
	case wrid.Credit:
		_, ok := rl.inbox.Resolve(wrid.Number(id), wrid.NumberMask, rl.creditsPosted)
		return ok && rl.recvs != 0
	}
	if rl.recovery.stage == railDying {
		return rl.recovery.find(id) != nil
	}
	return rl.log.find(id) != rl.log.tail
}

// loseRail takes a rail out, for which another one can stand in.
func (q *VirtualQP) loseRail(rl *rail, cause error) {
	v, f := rl.recovery, q.failover
	if v.stage == railLive {
		v.limit = max(v.limit, rl.limit)
		rl.stats.errors++
		q.railsLost++
		q.announce(rl, q.withPort(rl, cause))
	}
	f.degraded = true
	v.stage, v.cause = railDying, cause
	f.since = q.line.clock()
	f.unflushed++
	f.unsettled++
	staged := rl.staged()
	q.send.takeLog(rl, staged)
	if rl.batch != nil {
		rl.batch.clear() // it stays listed until the next post
	}
	v.held = rl.inUse - staged + v.controls
	v.controls, v.tell, v.grow = 0, v.tell[:0], 0
	q.recv.dropCredits(rl)
	q.send.rails.takeOut(rl)
	rl.toError()
	q.cq.touch(q)
}

// withPort adds to the cause of a loss what the port says, where it is down: a queue pair that was
// flushed does not tell why.
func (q *VirtualQP) withPort(rl *rail, cause error) error {
	var status verbs.Status
	if q.cfg.OnRail != nil && errors.As(cause, &status) {
		if down := q.portDown(rl.qp.Device()); down != nil {
			return fmt.Errorf("%w: %w", down, cause)
		}
	}
	return cause
}

// loseRailsOf takes the rails of a device out whose CQ has died: no more completions will come. It
// reports false, and changes nothing, where the connection cannot do without them.
func (q *VirtualQP) loseRailsOf(device uint8, cause error) bool {
	if !q.survivesDevice(device, nil) {
		return false
	}
	for _, rl := range q.send.rails.all {
		v := rl.recovery
		if rl.device != device {
			continue
		}
		if v.stage == railFlushed || v.stage == railSettled {
			rl.closed = rl.closed || rl.qp.Close() == nil // it will not come back
			v.setup = [setupSteps]connectStep{}
			continue
		}
		if v.stage != railDying {
			q.loseRail(rl, cause)
		}
		v.silent = true
	}
	q.cq.touch(q)
	return true
}

// silence ends what a rail without a CQ has outstanding: it is destroyed, after which its NIC holds
// nothing. What has arrived there without a completion is not known, and so has not arrived.
func (q *VirtualQP) silence(rl *rail) {
	if !rl.closed && rl.qp.Close() != nil {
		return // the next progress tries again
	}
	rl.closed = true
	v := rl.recovery
	v.unanswered += uint16(rl.recvs)
	// A rail that is connected anew, and not in service, has no receive but its own.
	v.emptied = v.emptied || rl.recvs != 0 && rl == *q.send.rails.serving(rl.role)
	v.held, rl.recvs = 0, 0
}

// takeOut ends the service of a rail: it has no room any more, and what it had is the business of
// its recovery.
func (s *railSet) takeOut(rl *rail) {
	if rl.role == roleData {
		s.free -= rl.limit - rl.inUse
	}
	rl.down, rl.dirty, rl.recvsRefused = true, false, true
	rl.limit, rl.inUse = 0, 0
	if rl.ability != nil {
		rl.ability.abandon()
		s.compare()
	}
	if s.lastFreed == rl {
		s.lastFreed = nil
	}
}

// continueFailover does what failover has to do beside the completions.
func (q *VirtualQP) continueFailover() {
	f := q.failover
	if !f.degraded && !q.untold() {
		return
	}
	for _, rl := range q.send.rails.all {
		if rl.recovery.stage == railDying {
			if rl.stopErr != nil {
				rl.toError()
			}
			if rl.recovery.silent {
				q.silence(rl)
			}
			q.flushedIfAll(rl)
		}
	}
	switch {
	case q.line.err != nil:
		q.dropLost()
		return
	case q.ending():
		return
	}
	q.judgePorts()
	q.answer()
	if f.unsettled == 0 {
		q.chooseService()
		q.bringBack()
		q.growLimits()
	}
	q.sendControls()
	switch {
	case q.ending(): // a refusal has ended it
	case q.waits():
		q.judgePeer()
	default:
		q.repost()
	}
	f.degraded = q.paused() || len(f.answers) != 0 || len(f.portsDown) != 0 ||
		slices.ContainsFunc(q.send.rails.all, func(rl *rail) bool {
			return rl.down || rl.recovery.grow != 0
		})
	if q.paused() || q.untold() {
		q.cq.touch(q) // perhaps no completion comes that leads here again
	}
}

// ending reports whether the connection has failed, or nothing is sent any more on purpose: then
// rails that are lost are not settled.
func (q *VirtualQP) ending() bool { return q.line.err != nil || q.line.phase >= drainRecvs }

// judgePeer ends the connection when the peer does not answer.
func (q *VirtualQP) judgePeer() {
	if q.line.clock().Sub(q.failover.since) <= q.cfg.FailoverTimeout {
		return
	}
	for _, rl := range q.send.rails.all {
		if cause := rl.recovery.cause; cause != nil {
			q.recvFailed(rl, noRequest(fmt.Errorf("the rail is lost (%w), and within %v the peer has not "+
				"said what has arrived there: it must poll, and take what was sent to it",
				cause, q.cfg.FailoverTimeout)))
			return
		}
	}
}

// check panics where the invariant does not hold.
func (f *failover) check(rails *railSet) {
	unflushed, unsettled := 0, 0
	for _, rl := range rails.all {
		switch rl.recovery.stage {
		case railDying:
			unflushed++
			unsettled++
		case railFlushed:
			unsettled++
		}
		if live := rl.recovery.stage == railLive; live == rl.down {
			broken("failover: rail %d is at stage %d, down %v", rl.index(), rl.recovery.stage, rl.down)
		}
	}
	if unflushed != f.unflushed || unsettled != f.unsettled {
		broken("failover: %d and %d rails are to be settled, counted %d and %d", unflushed, unsettled,
			f.unflushed, f.unsettled)
	}
}
