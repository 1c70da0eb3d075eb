package sim

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// find returns the request of a physical one. It uses addresses, not the id, which the library
// chooses.
func (e *end) find(wr *verbs.SendWR) *send {
	switch {
	case e.single:
		return e.byID(wr.ID)
	case wr.Opcode.IsSend() && wr.Imm&markMask == relaxedMark:
		if index := int(wr.Imm &^ markMask); index < len(e.sends) && e.sends[index].relax {
			return e.sends[index]
		}
		return nil
	case wr.Opcode.IsSend():
		if s := e.lostMessage(); s != nil {
			return s
		}
		if len(e.messages) == 0 {
			return nil
		}
		return e.messages[0]
	case isWrite(wr.Opcode), len(wr.SGL) == 0:
		return e.owner(e.peer.host, wr.RemoteAddr, wr)
	}
	return e.owner(e.host, wr.SGL[0].Addr, wr)
}

// owner returns the request of an end that has the memory; nil if such a physical request cannot
// belong to it. A request of no bytes has its own address.
func (e *end) owner(h *lab.Host, addr uint64, wr *verbs.SendWR) *send {
	s, _ := h.Memory.Owner(int(addr - h.MR.Addr())).(*send)
	if s == nil || s.index >= len(e.sends) || e.sends[s.index] != s || s.op.IsSend() ||
		isWrite(s.op) != isWrite(wr.Opcode) || !isWrite(s.op) && (s.length == 0) != (len(wr.SGL) == 0) {
		return nil
	}
	return s
}

// byID returns the request with an ID; nil if the ID names none.
func (e *end) byID(id uint64) *send {
	if e.conn.plan.oneID {
		return nil
	}
	if index := int(uint32(id)); index < len(e.sends) && id == e.id(false, index) {
		return e.sends[index]
	}
	return nil
}

// onWire checks a physical request that a NIC has accepted.
func (e *end) onWire(q *wire, wr *verbs.SendWR) posted {
	e.judgeRefused()
	p := posted{id: wr.ID, remote: wr.RemoteAddr, bytes: wr.Bytes(), place: len(q.out)}
	if e.isControl(q, wr) {
		p.own = true
		e.w.Logf("    on %v: %s", q, wordText(wr.Imm))
		e.putOn(q, nil)
		return p
	}
	s := e.find(wr)
	if s == nil {
		if !e.single { // to drain a single queue pair the library posts its own request
			e.w.Broken(ruleOneForOne, "%v posts on %v what belongs to no request: %v of %d bytes", e, q,
				wr.Opcode, wr.Bytes())
		}
		return p
	}
	p.req = s
	if e.w.Log != nil {
		e.w.Logf("    on %v: %v of %d bytes%s, for %v", q, wr.Opcode, wr.Bytes(), e.immediateText(q, wr), s)
	}
	if e.single {
		return p
	}
	e.mayGoOut(q, s)
	if limit := e.limitOf(q); q.requests() >= limit {
		e.w.Broken(ruleBackpressure, "%v has %d requests on %v: the limit is %d", e, q.requests()+1, q, limit)
	}
	n := int(wr.Bytes())
	if e.conn.failover {
		var again bool
		if p.part, again = e.partOf(q, s, wr); again {
			p.lastStep = p.part.kind == partFinal
			if !p.lastStep {
				s.data++
			}
			e.repeatOnWire(q, s, p.part, wr)
			return p
		}
		e.enterPart(s, p.part)
	}
	switch {
	case s.op.IsSend() && e.plainPeer && !e.conn.hostile && q != e.wires[0]:
		e.w.Broken(ruleWire, "%v: %v goes out on %v: a plain peer takes SENDs on rail 0", e, s, q)
	case s.relax:
		s.data++
		e.relaxedOnWire(q, s, wr, n)
	case wr.Opcode.IsSend():
		p.lastStep = true
		e.lastStepOnWire(s, wr, s.index)
		if n != s.length {
			e.w.Broken(lab.Content, "%v: %v goes out with %d bytes", e, s, n)
		}
		e.messages = e.messages[1:]
	case wr.Opcode == verbs.OpRDMAWriteWithImm && e.vq.Scheme() == ibverbx.Spray:
		p.lastStep = true
		e.lastStepOnWire(s, wr, s.index+1)
		if n != 0 || wr.Imm != s.imm {
			e.w.Broken(ruleWire, "%v: the notification of %v carries %d bytes and immediate %#x", e, s, n,
				wr.Imm)
		}
	default:
		s.data++
		e.dataOnWire(q, s, wr, n)
	}
	s.begun = true
	return p
}

// mayGoOut checks that the request may post something now.
func (e *end) mayGoOut(q *wire, s *send) {
	switch {
	case s.done:
		e.w.Broken(lab.Ownership, "%v: %v goes out after it was reported", e, s)
	case e.state != connected && e.state != draining || s.session != e.sessionNo:
		e.w.Broken(ruleFirstError, "%v is %v: %v goes out", e, e.state, s)
	case s.index >= e.stopAt:
		e.w.Broken(ruleFirstError, "%v: %v goes out on %v, but send %d has failed", e, s, q, e.stopAt-1)
	case e.noneMayBegin && !s.begun:
		e.w.Broken(ruleFirstError, "%v: %v begins on %v, but a receive has failed", e, s, q)
	case s.flags&verbs.SendFence != 0 && !s.begun && e.ackedTo() < s.index && !e.conn.blurred(s.session):
		e.w.Broken(ruleFence, "%v: %v goes out before the data of %v is acknowledged: %v", e, s,
			e.sends[e.acked], e.sends[e.acked].parts)
	}
}

// lastStepOnWire checks the last step of a request: the data of all sends before the index all must
// be acknowledged. With Spray that includes the data of the notifying request itself.
func (e *end) lastStepOnWire(s *send, wr *verbs.SendWR, all int) {
	e.mustSolicit(s, wr)
	if e.ackedTo() < all && !e.conn.blurred(s.session) {
		e.w.Broken(ruleNotification, "%v: the last step of %v goes out before the data of %v is acknowledged",
			e, s, e.sends[e.acked])
	}
	if s.lastStepOut {
		e.w.Broken(ruleNotification, "%v: %v is notified twice", e, s)
	}
	s.lastStepOut = true
}

// relaxedOnWire checks a relaxed SEND: it goes out once and whole, after earlier relaxed SENDs and
// on the same rail, which keeps their order.
func (e *end) relaxedOnWire(q *wire, s *send, wr *verbs.SendWR, n int) {
	e.mustSolicit(s, wr)
	if len(e.relaxed) == 0 || e.relaxed[0] != s {
		e.w.Broken(ruleOrder, "%v: %v goes out, but %v is the next of the relaxed", e, s, e.relaxed)
	}
	e.relaxed = e.relaxed[1:]
	relaxed := func(p *part) bool { return p.of.relax }
	if e.conn.failover && e.lostBefore(s.index, relaxed) != nil {
		e.w.Broken(ruleOrder, "%v: %v goes out, and a relaxed SEND before it is lost", e, s)
	}
	if e.relaxedOn != nil && e.relaxedOn != q.wireLife && !e.relaxedOn.dead() {
		e.w.Broken(ruleWire, "%v: relaxed SENDs on %v and %v", e, e.relaxedOn.q, q)
	}
	e.relaxedOn = q.wireLife
	if n != s.length {
		e.w.Broken(lab.Content, "%v: %v goes out with %d bytes", e, s, n)
	}
}

// mustSolicit checks that the last step requests an event at the peer if and only if the program
// did.
func (e *end) mustSolicit(s *send, wr *verbs.SendWR) {
	if (wr.Flags^s.flags)&verbs.SendSolicited != 0 {
		e.w.Broken(ruleWire, "%v: the last step of %v goes out with flags %v", e, s, wr.Flags)
	}
}

func (e *end) dataOnWire(q *wire, s *send, wr *verbs.SendWR, n int) {
	frag := int(e.vq.Config().FragmentSize)
	s.posted += n
	switch {
	case s.bare:
		e.w.Broken(ruleWire, "%v: data of %v goes out", e, s)
	case s.posted > s.length && !e.conn.blurred(s.session):
		e.w.Broken(lab.Content, "%v: %d bytes of %v go out", e, s.posted, s)
	case s.op.IsAtomic() && n != 8 || n > frag && !s.op.IsAtomic():
		e.w.Broken(ruleWire, "%v: %d bytes of %v in one message of at most %d", e, n, s, frag)
	case s.op.IsAtomic() && e.atomicsOn != nil && e.atomicsOn != q.wireLife && e.atomicsOn.hasAtomics():
		e.w.Broken(ruleWire, "%v: atomics on %v and %v", e, e.atomicsOn.q, q)
	}
	if s.op.IsAtomic() {
		e.atomicsOn = q.wireLife
	}
	if s.everyRail && !e.hasLostRails() {
		rail, rails := uint(1)<<slices.Index(e.wires, q), e.conn.plan.rails
		if s.rails&rail != 0 || n != s.length/rails {
			e.w.Broken(ruleWire, "%v: %d bytes of %v on %v: want one fragment of %d on each rail", e, n, s, q,
				s.length/rails)
		}
		s.rails |= rail
	}
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		e.numberOnWire(q, s, wr, n)
		return
	}
	e.emptyOnWire(s)
	q.plain = q.plain || wr.Opcode != verbs.OpRDMARead
}

// emptyOnWire records the one message of a request without data.
func (e *end) emptyOnWire(s *send) {
	if s.length == 0 && s.emptyOut {
		e.w.Broken(ruleWire, "%v: %v goes out twice", e, s)
	}
	s.emptyOut = s.length == 0
}

// ackedTo returns the index of the first send of this session whose data is not acknowledged.
func (e *end) ackedTo() int {
	for e.acked < len(e.sends) {
		s := e.sends[e.acked]
		if s.session == e.sessionNo && (s.relax || !s.op.IsSend()) &&
			(!s.allOut() || !e.dataEnded(s) || s.failed) {
			break
		}
		e.acked++
	}
	return e.acked
}

// dataEnded reports whether none of a request's posted data is on its way, or lost.
func (e *end) dataEnded(s *send) bool {
	if e.conn.failover {
		return s.partsEnded()
	}
	return s.data == 0
}

// allOut reports whether NICs were given all data of a request. An ordinary SEND counts as a last
// step and has no data.
func (s *send) allOut() bool {
	switch {
	case s.op.IsSend():
		return s.begun || !s.relax
	case s.length == 0:
		return s.bare || s.emptyOut
	}
	return s.posted == s.length
}

// sendSeen records a completion of the send direction that the library sees.
func (e *end) sendSeen(q *wire, p *posted, status verbs.Status) {
	s := p.req
	survived := status != verbs.StatusSuccess && e.survives(status)
	asked := e.flushes && status == verbs.StatusWRFlushErr // a Reset that fails has flushed it
	if status != verbs.StatusSuccess && !survived && !asked && e.firstFailed == nil &&
		(!e.conn.failover || e.vq.Err() == nil) {
		e.firstFailed, e.firstFailedOn = &posted{remote: p.remote, bytes: p.bytes, req: s}, q
	}
	if !p.lastStep && !e.single {
		s.data--
	}
	if status != verbs.StatusSuccess && !survived {
		e.mustFail = e.mustFail || !deadly(status)
		e.failsAt(s)
	}
}

// recvSeen records a completion of the receive direction that the library sees. A flush follows
// from another error.
func (e *end) recvSeen(status verbs.Status) {
	if status != verbs.StatusSuccess && status != verbs.StatusWRFlushErr && !e.survives(status) {
		e.noneMayBegin = true
	}
}

// refusedOnWire records a post that a NIC has refused.
func (e *end) refusedOnWire(q *wire, wr *verbs.SendWR, err error) {
	e.w.Logf("    on %v: refused: %v", q, err)
	if e.single || verbs.IsTransient(err) {
		if verbs.IsTransient(err) && !lab.Injected(err) && !e.single && !e.conn.hostile {
			e.w.Broken(ruleBackpressure, "%v meets a full queue on %v: %v", e, q, err)
		}
		return
	}
	e.judgeRefused()
	s := e.find(wr)
	switch {
	case s == nil:
	case e.conn.failover && diesOf(err) && e.vq.Err() == nil:
		e.refused = s
	case !e.conn.failover || !diesOf(err):
		e.failsAt(s)
	}
}

// judgeRefused decides the fate of the request whose post a dead queue pair refused last: if no
// other queue pair was left to carry it, it has failed.
func (e *end) judgeRefused() {
	if s := e.refused; s != nil && e.vq.Err() != nil {
		e.failsAt(s)
	}
	e.refused = nil
}

// failsAt records that a request has failed.
func (e *end) failsAt(s *send) {
	s.failed = true
	e.stopAt = min(e.stopAt, s.index+1)
}

// recvOnWire finds the receive with memory of a physical one. It returns nil for credits and
// notifications, which have none.
func (e *end) recvOnWire(wr *verbs.RecvWR) *recv {
	if len(wr.SGL) == 0 {
		return nil
	}
	r, _ := e.host.Memory.Owner(int(wr.SGL[0].Addr - e.host.MR.Addr())).(*recv)
	if r == nil || r.index >= len(e.recvs) || e.recvs[r.index] != r {
		e.w.Broken(ruleOneForOne, "%v posts a receive that was not asked for", e)
	}
	return r
}

// limitOf returns how many requests may be on a wire.
func (e *end) limitOf(q *wire) int {
	limit := min(e.conn.plan.cfg[e.index%2].MaxMsgCntPerQP, q.Cap().MaxSendWR)
	if e.conn.raw && !e.conn.hostile && q.isData() {
		limit = min(limit, e.peer.vq.Config().Credits) // the number in its card
	}
	return limit
}

// isData reports whether a wire is a data rail.
func (q *wire) isData() bool { return slices.Index(q.end.wires, q) < q.end.conn.plan.rails }

// mayStop checks that the library may move a rail to ERR: after a failed send, earlier ones must
// have ended if the configuration lets them linger.
func (e *end) mayStop() {
	var failed *ibverbx.FailedError
	if e.single || e.state != connected || e.leaving || e.noneMayBegin || e.recvsRefused || e.conn.hostile ||
		e.conn.plan.cfg[0].Linger < 0 || e.conn.failover || e.w.lingered ||
		!errors.As(e.vq.Err(), &failed) || failed.Recv || !failed.HasID {
		return
	}
	first := e.byID(failed.ID)
	if first == nil || first.session != e.sessionNo {
		return
	}
	for _, s := range e.sends[:min(first.index, e.stopAt-1)] {
		if s.session != e.sessionNo || s.done {
			continue
		}
		owesLastStep := !s.lastStepOut && (s.op.IsSend() && !s.relax || s.op == verbs.OpRDMAWriteWithImm &&
			e.vq.Scheme() == ibverbx.Spray)
		if s.out != 0 || !s.allOut() || owesLastStep {
			e.w.Broken(ruleFirstError, "%v: %v has failed, and %v before it is cut short", e, first, s)
		}
	}
}
