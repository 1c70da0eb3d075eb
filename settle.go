package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// returned handles what the NIC of a lost rail gives back: what has arrived all the same, and what
// it has flushed. It reports false when the rail had nothing of the kind.
func (q *VirtualQP) returned(rl *rail, wc *verbs.WC) (known bool) {
	if rl.recovery.stage != railDying || !q.outstanding(rl, wc.ID) {
		return false
	}
	switch kind := wrid.Kind(wc.ID); {
	case kind != wrid.Recv && kind != wrid.Credit:
		known = q.sendReturned(rl, wc)
	case losesRail(wc.Status):
		rl.recvs--
		rl.recovery.unanswered++
		rl.recovery.emptied = rl.recovery.emptied || kind == wrid.Recv
		known = true
		if kind == wrid.Credit {
			c, _ := rl.inbox.Resolve(wrid.Number(wc.ID), wrid.NumberMask, rl.creditsPosted)
			rl.inbox.Fail(c)
		}
	case kind == wrid.Credit:
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
	if !ok || wrid.Kind(id) == wrid.Control {
		return
	}
	r := s.win.At(n)
	switch wrid.Kind(id) {
	case wrid.Final:
		r.final = finalDone
		s.sprayed = s.sprayed || r.plan != planNone
	case wrid.Numbered:
		r.left--
		s.numbers.Ack(wrid.Aux(id))
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
	q.failover.unflushed--
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
	case w.epoch == (v.epoch+1)&epochMask && v.stage == railSettled && q.failover.leads:
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
	covered, err := v.covered(due || q.failover.data.awaitsImm(rl))
	if err != nil {
		if due {
			v.entries = append(v.entries, imm) // to be flushed with them
		}
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
	q.failover.lost(rl.role).add(rl, again)
	s.advanceDataDone()
}

// settled counts a lost rail as settled.
func (q *VirtualQP) settled(rl *rail) {
	rl.recovery.stage = railSettled
	q.failover.unsettled--
}

// covered is up to which entry of the log all has arrived at the peer: the messages that it has
// counted, and what was posted ahead of them. immDue says that a user's immediate was to follow.
//
// A message that was acknowledged may not have arrived after all: its completion was lost with the
// peer's CQ. It cannot be sent again, since its request may be over.
func (v *recovery) covered(immDue bool) (end int, err error) {
	messages, lost := int16(v.peerArrived-uint16(v.acked)), 0
	for ; messages < 0; messages++ {
		if !slices.Contains(v.words, v.acked+uint64(messages)) {
			lost++ // a word that was lost with the CQ was said over other rails too
		}
	}
	if lost > 1 || lost == 1 && !v.announces(-1, immDue) {
		return 0, errLostThere(lost)
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
	for i := end; i < len(v.entries); i++ {
		e := &v.entries[i]
		if e.state == entryDone && e.isMessage() && !e.isControl() && !v.announces(i, immDue) {
			return 0, errLostThere(1)
		}
	}
	return end, nil
}

// errLostThere is why a connection ends whose peer has lost messages with a CQ.
func errLostThere(messages int) error {
	return fmt.Errorf("messages that its NIC had acknowledged are lost there: %d", messages)
}

// announces reports whether entry i, or what was acknowledged before the first with i = -1, is a
// last fragment whose immediate has not arrived: the peer counts it together with that.
func (v *recovery) announces(i int, immDue bool) bool {
	for i++; i < len(v.entries); i++ {
		if e := &v.entries[i]; e.isMessage() && !e.isControl() {
			return wrid.Kind(e.id) == wrid.Imm && e.state != entryDone
		}
	}
	return immDue
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
	f := q.failover
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
