package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/dqplb"
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
	// What is to be posted again, by what carries it: a data rail, the rail of SENDs, that of
	// notifications.
	data, sends, finals lostWork
}

// paused reports whether new requests must wait.
func (q *VirtualQP) paused() bool {
	f := q.over
	return q.waits() || f.data.any() || f.sends.any() || f.finals.any()
}

// waits reports whether something is to be agreed with the peer about rails that are lost.
func (q *VirtualQP) waits() bool {
	f, s := q.over, &q.send.rails
	return f.unsettled != 0 || f.awaits != [roles]*rail{} || s.sendRail != nil && s.sendRail.down ||
		s.finalRail != nil && s.finalRail.down
}

// restart begins a connection.
func (f *failover) restart() { *f = failover{leads: f.leads} }

// offersFailover reports whether the card may offer failover.
func (q *VirtualQP) offersFailover() bool { return q.pass == nil && q.cfg.Failover }

// survives reports whether the connection can do without a rail.
func (q *VirtualQP) survives(rl *rail) bool {
	if q.over == nil || q.ending() || q.line.state != verbs.StateRTS {
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

// refusalLosesRail reports whether a refusal is the fault of the queue pair or its NIC.
func refusalLosesRail(err error) bool {
	return errors.Is(err, verbs.ErrState) || errors.Is(err, verbs.ErrDeviceGone)
}

// lostRail handles a completion that says that its rail is lost, or is of a rail that is. It
// reports false for any other.
func (q *VirtualQP) lostRail(rl *rail, wc *verbs.WC) bool {
	if works := !rl.down || rl.recovery.stage >= railReady; works {
		if !losesRail(wc.Status) || !q.survives(rl) || !q.outstanding(rl, wc.ID) {
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
	switch wridKind(id) {
	case kindRecv:
		n, ok := q.recv.win.Resolve(wridNumber(id), wridNumberMask)
		return ok && rl.recvs != 0 && q.recv.postedOn(rl, n)
	case kindCredit:
		_, ok := rl.inbox.Resolve(wridNumber(id), wridNumberMask, rl.creditsPosted)
		return ok && rl.recvs != 0
	}
	if rl.recovery.stage == railDying {
		return rl.recovery.find(id) != nil
	}
	return rl.log.find(id) != rl.log.tail
}

// loseRail takes a rail out, for which another one can stand in.
func (q *VirtualQP) loseRail(rl *rail, cause error) {
	v, f := rl.recovery, q.over
	if v.stage == railLive {
		v.limit = max(v.limit, rl.limit)
		rl.stats.errors++
		q.railsLost++
		q.announce(rl, cause)
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
	v.controls, v.tell = 0, v.tell[:0]
	q.recv.dropCredits(rl)
	q.send.rails.takeOut(rl)
	rl.toError()
	q.cq.touch(q)
}

// RailEvent says that a queue pair was taken out of service, or has come back.
type RailEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Rail      int    // as in [Stats].Rails
	Device    string
	QPNum     uint32
	Down      bool
	Cause     error // why it was taken out
}

// String is a line for a log.
func (e RailEvent) String() string {
	s := fmt.Sprintf("virtual qp %d: rail %d (%s qp %d) ", e.VirtualQP, e.Rail, e.Device, e.QPNum)
	if !e.Down {
		return s + "is back in service"
	}
	return s + fmt.Sprintf("is out of service: %v", e.Cause)
}

// announce tells the user of a rail that is lost, or back.
func (q *VirtualQP) announce(rl *rail, cause error) {
	if q.cfg.OnRail != nil {
		q.cfg.OnRail(RailEvent{VirtualQP: q.num, Rail: rl.index(), Device: rl.qp.Device().Name(),
			QPNum: rl.num, Down: cause != nil, Cause: cause})
	}
}

// loseRailsOf takes the rails of a device out whose CQ has died: no more completions will come. It
// reports false, and changes nothing, where the connection cannot do without them.
func (q *VirtualQP) loseRailsOf(device uint8, cause error) bool {
	var lost []*rail
	left := [roles]int{}
	for _, rl := range q.send.rails.all {
		switch {
		case rl.device == device:
			lost = append(lost, rl)
		case !rl.down:
			left[rl.role]++
		}
	}
	if q.over == nil {
		return false
	}
	for _, rl := range lost {
		if !q.survives(rl) && !rl.down || left[rl.role] == 0 {
			return false
		}
	}
	for _, rl := range lost {
		v := rl.recovery
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
	v.emptied = v.emptied || rl.recvs != 0
	v.held, rl.recvs = 0, 0
}

// takeLog turns the log of a rail that is being lost into entries; the newest ones, so many as are
// staged, the NIC never had.
func (s *sender) takeLog(rl *rail, staged int) {
	v, l := rl.recovery, &rl.log
	v.entries, v.acked, v.hint = v.entries[:0], l.messages, 0
	for i := l.head; i != l.tail; i++ {
		e := s.entryOf(*l.at(i))
		if i >= l.tail-uint64(staged) {
			e.state = entryUnposted
		}
		if e.isMessage() {
			v.acked--
		}
		v.entries = append(v.entries, e)
	}
	l.clear()
}

// entryOf finds out what an outstanding work request carries.
func (s *sender) entryOf(id uint64) lostEntry {
	e := lostEntry{id: id}
	if id <= doneMessage {
		e.state = entryDone
		return e
	}
	n, _ := s.resolve(id)
	r := s.win.At(n)
	switch wridKind(id) {
	case kindData:
		e.offset, e.size = s.fragment(r, r.index(wridAux(id)))
	case kindNumbered:
		e.imm = wridAux(id)
		if limit := uint64(s.rails.maxFragment); !r.isMarker(e.imm, limit) {
			e.offset, e.size = s.fragment(r, uint64(r.position(id, limit)))
			e.imm |= s.marks(r, e.offset+uint64(e.size))
		}
	}
	return e
}

// index is a plain fragment's place among those of its request, of which the work-request id has
// the low bits. Those outstanding are near the newest.
func (r *sendReq) index(low uint32) uint64 {
	newest := uint64(r.fragments) - 1
	return newest - (newest-uint64(low))&wridAuxMask
}

// fragment is where a fragment of a request begins, and how many bytes it has.
func (s *sender) fragment(r *sendReq, index uint64) (offset uint64, size uint32) {
	limit := s.fragmentLimit(r)
	switch width := s.rails.data[0].maxSGE; {
	case r.plan == planAtomic:
		return 0, 8
	case r.scattered && r.length != 0:
		f := FailedError{Fragment: int(index)}
		r.cut(limit, width, &f)
		return f.RemoteAddr - r.remoteAddr, uint32(f.Length)
	}
	offset = index * limit
	return offset, uint32(min(limit, r.length-offset))
}

// marks are those of the immediate of a numbered fragment that ends at some offset.
func (s *sender) marks(r *sendReq, end uint64) (marks uint32) {
	if end == r.length {
		marks = dqplb.Last
		if s.rawImm && r.imm != 0 {
			marks |= dqplb.Raw
		}
	}
	return marks
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

// returned handles what the NIC of a lost rail gives back: what has arrived all the same, and what
// it has flushed. It reports false when the rail had nothing of the kind.
func (q *VirtualQP) returned(rl *rail, wc *verbs.WC) (known bool) {
	if rl.recovery.stage != railDying || !q.outstanding(rl, wc.ID) {
		return false
	}
	switch kind := wridKind(wc.ID); {
	case kind != kindRecv && kind != kindCredit:
		known = q.sendReturned(rl, wc)
	case wc.Status == verbs.StatusWRFlushErr || kind == kindCredit && wc.Status != verbs.StatusSuccess:
		rl.recvs--
		rl.recovery.unanswered++
		rl.recovery.emptied = rl.recovery.emptied || kind == kindRecv
		known = true
		if kind == kindCredit {
			c, _ := rl.inbox.Resolve(wridNumber(wc.ID), wridNumberMask, rl.creditsPosted)
			rl.inbox.Fail(c)
		}
	case kind == kindCredit:
		known = q.creditCompleted(rl, wc)
	default:
		r := q.recv.completed(&q.send.rails, rl, wc)
		if known = r != nil; known && r.status != verbs.StatusSuccess {
			q.recvEnded(rl, wc, r)
		}
	}
	q.flushedIfAll(rl)
	return known
}

// sendReturned handles what came back of the send queue of a lost rail.
func (q *VirtualQP) sendReturned(rl *rail, wc *verbs.WC) (known bool) {
	v := rl.recovery
	e := v.find(wc.ID)
	if e == nil || v.held == 0 {
		return false
	}
	v.held--
	e.state, e.status = entryReturned, wc.Status
	if e.isControl() || losesRail(wc.Status) {
		return true
	}
	e.state = entryDone
	q.send.acknowledge(wc.ID)
	if wc.Status != verbs.StatusSuccess {
		n, _ := q.send.resolve(wc.ID)
		q.sendFailed(rl, n, wc)
	}
	return true
}

// acknowledge ends a work request that has been carried out, whose rail is lost.
func (s *sender) acknowledge(id uint64) {
	n, ok := s.resolve(id)
	if !ok || wridKind(id) == kindControl {
		return
	}
	r := s.win.At(n)
	switch wridKind(id) {
	case kindFinal:
		r.final = finalDone
		s.sprayed = s.sprayed || r.plan != planNone
	case kindNumbered:
		r.left--
		s.numbers.Ack(wridAux(id))
	default:
		r.left--
	}
	s.advanceDataDone()
}

// flushedIfAll goes on with a lost rail when all that it held has come back: it is certain now what
// has arrived here.
func (q *VirtualQP) flushedIfAll(rl *rail) {
	v := rl.recovery
	if v.stage != railDying || v.held != 0 || rl.recvs != 0 || rl.stopErr != nil {
		return
	}
	v.stage = railFlushed
	q.over.unflushed--
	if rl.inbox.DropPending() {
		v.unanswered++ // the peer sends the message again, with the user's immediate
	}
	q.recv.dropCredits(rl)
	switch {
	case !v.emptied: // the receives are on another rail, or nowhere yet
	case rl.role == roleSends:
		q.recv.rewind(true, &q.recv.nextMessage)
	case rl.role == roleFinals:
		q.recv.rewind(false, &q.recv.nextBare)
	}
	if q.line.dead {
		q.recv.flushWaiting() // the receives that have just come back
	}
	if q.ending() {
		return
	}
	q.dispatchRecvs()
	q.tellAll(word{controlDown, rl.index(), v.epoch, v.arrived()})
	if v.peerDown {
		q.settle(rl)
	}
}

// peerLost handles the peer's word that a rail is lost, and how many messages arrived there.
func (q *VirtualQP) peerLost(rl *rail, w word) {
	v := rl.recovery
	switch {
	case q.ending():
		return
	case w.epoch == (v.epoch+1)&epochMask && v.stage == railSettled && q.over.leads:
		// The follower has lost it again before this end had connected it: nothing was sent there.
		v.epoch++
		v.ownPSN, v.posted, v.unanswered = 0, 0, 0
		q.tellAll(word{controlDown, rl.index(), v.epoch, 0})
		return
	case v.peerDown || w.epoch != v.epoch&epochMask:
		return // it is said on every live rail
	}
	v.peerDown, v.peerArrived = true, w.count
	if v.stage == railLive || v.stage >= railReady {
		if !q.survives(rl) {
			q.recvFailed(rl, noRequest(errPeerLostLast))
			return
		}
		q.loseRail(rl, errPeerLost)
		q.flushedIfAll(rl)
		return
	}
	if v.stage == railFlushed {
		q.settle(rl)
	}
}

var (
	errPeerLost     = errors.New("the peer has lost it")
	errPeerLostLast = errors.New("the peer has lost it, and it was the last one that could carry this")
)

// settle sorts what a lost rail had outstanding: what has arrived at the peer is acknowledged, the
// rest will be posted again on another rail, in its order. Neither end's NIC carries any of it out
// any more.
func (q *VirtualQP) settle(rl *rail) {
	v, s := rl.recovery, &q.send
	q.settled(rl)
	imm, due := s.immOf(rl)
	covered, err := v.covered(due || q.over.data.awaitsImm(rl))
	if err != nil {
		q.recvFailed(rl, noRequest(err))
		return
	}
	var again []lostEntry
	for i := range v.entries {
		e := &v.entries[i]
		if e.state == entryDone || e.isControl() {
			continue
		}
		n, _ := s.resolve(e.id)
		r := s.win.At(n)
		switch {
		case r.plan == planAtomic && e.state != entryUnposted:
			s.failAtomic(r, e)
		case i < covered && r.opcode != verbs.OpRDMARead:
			s.acknowledge(e.id)
		default:
			again = append(again, *e)
		}
	}
	v.entries = v.entries[:0]
	if due {
		again = append(again, imm)
	}
	q.over.lost(rl.role).add(rl, again)
	s.advanceDataDone()
}

// settled counts a lost rail as settled.
func (q *VirtualQP) settled(rl *rail) {
	rl.recovery.stage = railSettled
	q.over.unsettled--
}

// covered is up to which entry of the log all has arrived at the peer: the messages that it has
// counted, and what was posted ahead of them. immDue says that a user's immediate was to follow.
//
// A message that was acknowledged may not have arrived after all: its completion was lost with the
// peer's CQ. It cannot be sent again, since its request may be over.
func (v *recovery) covered(immDue bool) (end int, err error) {
	messages := int16(v.peerArrived - v.acked)
	if messages == -1 {
		// A last fragment counts with the user's immediate behind it, as the peer sees it.
		first := slices.IndexFunc(v.entries, func(e lostEntry) bool {
			return e.isMessage() && !e.isControl() && e.state != entryDone
		})
		if immDue || first >= 0 && wridKind(v.entries[first].id) == kindImm {
			return 0, nil
		}
	}
	if messages < 0 {
		return 0, fmt.Errorf("%d messages that its NIC had acknowledged are lost there", -messages)
	}
	for i := 0; messages > 0; i++ {
		if i == len(v.entries) {
			return 0, fmt.Errorf("it counts %d messages more than were sent on a rail that is lost",
				messages)
		}
		if e := &v.entries[i]; e.isMessage() && e.state != entryUnposted {
			messages--
			end = i + 1
		}
	}
	return end, nil
}

// failAtomic ends an atomic whose answer is lost. Whether it was carried out cannot be known, so
// the request fails; the connection goes on.
func (s *sender) failAtomic(r *sendReq, e *lostEntry) {
	r.left--
	if r.status == verbs.StatusSuccess {
		r.status = verbs.StatusWRFlushErr
		if e.state == entryReturned {
			r.status = e.status
		}
	}
}

// continueFailover does what failover has to do beside the completions.
func (q *VirtualQP) continueFailover() {
	f := q.over
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
	f.degraded = q.paused() || slices.ContainsFunc(q.send.rails.all, func(rl *rail) bool {
		return rl.down || rl.recovery.limit > rl.limit
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
	if q.line.clock().Sub(q.over.since) <= q.cfg.FailoverTimeout {
		return
	}
	for _, rl := range q.send.rails.all {
		if cause := rl.recovery.cause; cause != nil {
			q.recvFailed(rl, noRequest(fmt.Errorf("the rail is lost (%w), and within %v the peer has not "+
				"said what has arrived there: it must poll", cause, q.cfg.FailoverTimeout)))
			return
		}
	}
}

// dropLost ends what lost rails had outstanding, after the connection has failed.
func (q *VirtualQP) dropLost() {
	first := uint64(never)
	drop := func(e *lostEntry) {
		n, ok := q.send.resolve(e.id)
		if !ok || e.state == entryDone || e.isControl() {
			return
		}
		q.send.win.At(n).flushUnlessFailed()
		q.send.acknowledge(e.id)
		first = min(first, n)
	}
	for _, rl := range q.send.rails.all {
		v := rl.recovery
		switch v.stage {
		case railFlushed:
			q.settled(rl)
		case railSettled:
		default:
			continue
		}
		for i := range v.entries {
			drop(&v.entries[i])
		}
		v.entries = v.entries[:0]
	}
	f := q.over
	for _, l := range []*lostWork{&f.data, &f.sends, &f.finals} {
		for _, e := range l.entries {
			drop(&e)
		}
		l.clear()
	}
	if first != never {
		q.stopFrom(first)
	}
}
