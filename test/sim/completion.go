package sim

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// take checks a completion that the program has polled.
func (e *end) take(wc *ibverbx.WC) {
	e.w.Logf("  %v: %s", e, describe(wc))
	e.excused = false
	switch id := wc.ID; {
	case e.conn.plan.oneID && id == sharedID && wc.Opcode.IsRecv(): // it must be the next
		e.takeRecv(wc, e.recvHead)
	case e.conn.plan.oneID && id == sharedID:
		e.takeSend(wc, e.sendHead)
	case id == e.id(false, int(uint32(id))):
		e.takeSend(wc, int(uint32(id)))
	case id == e.id(true, int(uint32(id))):
		e.takeRecv(wc, int(uint32(id)))
	default:
		e.w.Broken(ruleRouting, "%v completes id %#x, which it has never posted", e, id)
	}
	if wc.Status != verbs.StatusSuccess && e.state == connected && e.vq.Err() == nil &&
		e.sessionNo == e.lastSession() && !e.excused {
		e.w.Broken(ruleFirstError, "%v: %v, and Err says nothing", e, wc.Status)
	}
}

// lastSession returns the session of the last completed request.
func (e *end) lastSession() int {
	session := 0
	if e.sendHead > 0 {
		session = e.sends[e.sendHead-1].session
	}
	if e.recvHead > 0 {
		session = max(session, e.recvs[e.recvHead-1].session)
	}
	return session
}

func (e *end) takeSend(wc *ibverbx.WC, index int) {
	if e.single {
		e.skipUnsignaled(index, true)
	}
	e.mustBeNext("send", index, e.sendHead, len(e.sends))
	s := e.sends[index]
	e.sendHead++
	if s.out != 0 {
		e.w.Broken(lab.Ownership, "%v: %v is reported while %d of its work requests are on NICs", e, s, s.out)
	}
	if !e.single || wc.Status == verbs.StatusSuccess {
		if wc.Opcode != s.op.WCOpcode() {
			e.w.Broken(ruleRouting, "%v: %v completes as %v", e, s, wc.Opcode)
		}
	}
	if !e.single && wc.ByteLen != uint64(s.length) {
		e.w.Broken(lab.Content, "%v: %v completes with %d bytes", e, s, wc.ByteLen)
	}
	e.checkFields(wc)
	e.checkReported(wc, s.session)
	if e.mayNotLand(s); e.lostAtomic(s, wc.Status) {
		e.excused, e.sendErrors.excused = true, s.session
	} else {
		e.checkStatus("send", s.session, &e.sendErrors, wc)
	}
	e.release(s, wc.Status == verbs.StatusSuccess)
}

// mustBeNext checks that requests complete in the order in which they were posted.
func (e *end) mustBeNext(what string, index, next, posted int) {
	switch {
	case index >= posted:
		e.w.Broken(ruleOneForOne, "%v completes %s %d of %d", e, what, index, posted)
	case index < next:
		e.w.Broken(ruleOneForOne, "%v completes %s %d again", e, what, index)
	case index > next:
		e.w.Broken(ruleOrder, "%v completes %s %d before %d", e, what, index, next)
	}
}

// skipUnsignaled ends the unsignaled requests before an index. If vouched, a later completion shows
// that they have succeeded. At the end of a session their outcome is unknown.
func (e *end) skipUnsignaled(index int, vouched bool) {
	for e.sendHead < min(index, len(e.sends)) && e.sends[e.sendHead].flags&verbs.SendSignaled == 0 {
		s := e.sends[e.sendHead]
		e.sendHead++
		e.release(s, vouched && e.sendErrors.any != s.session && s.session == e.sessionNo && !e.ended())
	}
}

// ended reports whether the program has reset, drained or closed the end.
func (e *end) ended() bool { return e.state != connected && e.state != draining }

// checkStatus checks that a failure has a cause, that nothing succeeds after it, and that only one
// completion reports the error: all later ones are flushed.
func (e *end) checkStatus(what string, session int, t *errorsSeen, wc *ibverbx.WC) {
	if wc.Status == verbs.StatusSuccess {
		if t.any == session {
			e.w.Broken(ruleFirstError, "%v: a %s succeeds after an error: %s", e, what, describe(wc))
		}
		return
	}
	t.any = session
	if wc.Status != verbs.StatusWRFlushErr {
		if t.own == session {
			e.w.Broken(ruleFirstError, "%v: a second error: %s", e, describe(wc))
		}
		t.own = session
	}
	e.conn.causeInCQ()
	if e.conn.Blame == "" && session == e.sessionNo && !e.ended() {
		e.w.Broken(lab.Isolation, "%v: %s without a cause: %v", e, describe(wc), e.vq.Err())
	}
}

// checkFields checks that a send completes without an immediate, and with a vendor code only if a
// physical completion had it.
func (e *end) checkFields(wc *ibverbx.WC) {
	if wc.Imm != 0 || wc.Flags != 0 || wc.Status == verbs.StatusSuccess && wc.VendorErr != 0 {
		e.w.Broken(lab.Content, "%v: a send has fields that do not apply: %+v", e, *wc)
	}
	if wc.VendorErr == 0 {
		return
	}
	seen := func(bad verbs.WC) bool { return bad.Status == wc.Status && bad.VendorErr == wc.VendorErr }
	for _, q := range e.wires {
		if slices.ContainsFunc(q.bad, seen) {
			return
		}
	}
	e.w.Broken(lab.Content, "%v: no completion had this vendor code: %+v", e, *wc)
}

// checkReported checks that the request that Err names as the first to fail completes with that
// error.
func (e *end) checkReported(wc *ibverbx.WC, session int) {
	var first *ibverbx.FailedError
	var status verbs.Status
	if e.conn.plan.oneID || // the ID names no request
		session != e.sessionNo || e.ended() || e.sendErrors.own == session ||
		e.sendErrors.excused == session ||
		!errors.As(e.vq.Err(), &first) ||
		first.Recv || !first.HasID || first.ID != wc.ID {
		return
	}
	if errors.As(first.Err, &status) && (status != wc.Status || first.VendorErr != wc.VendorErr) {
		e.w.Broken(ruleFirstError, "%v: %s, and Err says %v", e, describe(wc), first)
	}
}

// release records the contents of a completed request's memory from now on: the program overwrites
// sources, and targets must not change.
func (e *end) release(s *send, ok bool) {
	s.done = true
	if ok && !e.single && s.length == 0 && !s.op.IsSend() && !s.emptyOut && !s.bare {
		e.w.Broken(lab.Content, "%v: %v is done, and nothing of it went out", e, s)
	}
	own, peers := e.host.Memory, e.peer.host.Memory
	switch {
	case isWrite(s.op):
		e.releaseSource(s)
		switch {
		case ok && s.still:
		case ok && e.conn.plan.late && !s.landed:
			e.unplaced = append(e.unplaced, s)
		case ok:
			e.mustHaveLanded(s)
			e.settleTarget(s)
		case e.w.plan.net == nil && !e.conn.stray && !e.conn.plan.late: // none of it is on its way
			s.still = true
			peers.Settle(s.remote, lab.AsItIs)
		}
	case s.op.IsSend():
		e.releaseSource(s)
	case s.op == verbs.OpRDMARead:
		off := 0
		for _, piece := range s.local {
			// If a forged message counts as sent, a write before it may be missing.
			missing := s.reread && e.conn.blurred(s.session)
			if ok && !missing && !own.Holds(piece, s.key+off) {
				e.w.Broken(lab.Content, "%v: %v is done, and what it has read is not there", e, s)
			}
			own.Settle(piece, lab.AsItIs)
			off += piece.N
		}
	default:
		e.releaseAtomic(s, ok)
		own.Settle(s.local[0], lab.AsItIs)
	}
}

func (e *end) releaseSource(s *send) {
	for _, piece := range s.local {
		e.host.Memory.Reuse(piece)
	}
}

// releaseAtomic compares the value that an atomic has found with the one that earlier atomics left.
func (e *end) releaseAtomic(s *send, ok bool) {
	found := e.host.Memory.Word(s.local[0].Off)
	if !ok {
		s.word.known = false // its value is no longer known
		return
	}
	if !s.word.known {
		return
	}
	if found != s.word.value {
		e.w.Broken(lab.Content, "%v: %v has found %#x where %#x must be", e, s, found, s.word.value)
	}
	s.word.value = s.word.after(s, found)
}

// after returns the value that an atomic leaves in a word, given the one that it found.
func (w *word) after(s *send, found uint64) uint64 {
	switch {
	case s.op == verbs.OpAtomicFetchAdd:
		return found + s.first
	case found == s.first:
		return s.second
	}
	return found
}

// settleTarget records that a write's target must not change any more. With failover the peer's
// program reuses it at once, so that a late copy shows.
func (e *end) settleTarget(s *send) {
	s.still = true
	if !e.conn.failover || s.reread || s.length == 0 {
		key := s.key
		if e.conn.blurred(s.session) && !e.peer.host.Memory.Holds(s.remote, key) {
			key = lab.AsItIs // it may be missing: see mustHaveLanded
		}
		e.peer.host.Memory.Settle(s.remote, key)
		return
	}
	s.taken = true
	e.peer.host.Memory.Reuse(s.remote)
}

// mustHaveLanded checks that a write of e is in its peer's memory.
func (e *end) mustHaveLanded(s *send) {
	if s.landed {
		return
	}
	// With failover a forged message counts as sent.
	if !e.conn.blurred(s.session) && !e.peer.host.Memory.Holds(s.remote, s.key) {
		e.w.Broken(lab.Content, "%v: %v is done, and its data is not there", e, s)
	}
	s.landed = true
}

func (e *end) takeRecv(wc *ibverbx.WC, index int) {
	e.mustBeNext("receive", index, e.recvHead, len(e.recvs))
	r := e.recvs[index]
	e.recvHead++
	if r.out != 0 {
		e.w.Broken(lab.Ownership, "%v: %v is reported while it is on a NIC", e, r)
	}
	e.checkStatus("receive", r.session, &e.recvErrors, wc)
	switch {
	case wc.Status == verbs.StatusSuccess && !slices.Contains(e.conn.hostileIn, r.session):
		e.match(r, wc)
	case wc.Status != verbs.StatusSuccess && (wc.ByteLen != 0 || wc.Imm != 0 || wc.Flags != 0):
		e.w.Broken(lab.Content, "%v: %v has failed, and says what has arrived: %s", e, r, describe(wc))
	case !r.message && !e.single && wc.Opcode != verbs.WCRecvRDMAWithImm, r.message && !e.single &&
		wc.Opcode != verbs.WCRecv:
		e.w.Broken(ruleRouting, "%v: %v completes as %v", e, r, wc.Opcode)
	}
	e.host.Memory.Settle(r.buffer, lab.AsItIs)
}

// match checks a successful receive against what the peer has sent.
func (e *end) match(r *recv, wc *ibverbx.WC) {
	kind := kindNotification
	if r.message && !e.single {
		kind = kindMessage
		if wc.Imm&markMask == relaxedMark {
			kind = kindRelaxed
		}
	}
	list := e.expect[kind]
	for len(list) != 0 && list[0].session < r.session {
		list = list[1:]
	}
	if len(list) == 0 || list[0].session != r.session {
		e.w.Broken(ruleNotification, "%v: %v completes, and nothing was sent", e, r)
	}
	s := list[0]
	e.expect[kind] = list[1:]
	if s.op.IsSend() {
		e.matchMessage(r, s, wc)
	} else {
		e.matchNotification(r, s, wc)
	}
	// A relaxed SEND does not wait for writes. Other SENDs prove that writes were acknowledged, not
	// that they are in memory.
	if !s.relax && (!e.conn.plan.late || !s.op.IsSend()) {
		e.seeWrites(s)
	}
}

func (e *end) matchMessage(r *recv, s *send, wc *ibverbx.WC) {
	want := ibverbx.WC{ID: wc.ID, QPNum: wc.QPNum, Opcode: verbs.WCRecv, ByteLen: uint64(s.length)}
	if s.op == verbs.OpSendWithImm {
		want.Imm, want.Flags = s.imm, verbs.WCWithImm
	}
	if *wc != want {
		e.w.Broken(lab.Content, "%v: %v completes as %+v, want %+v of %v", e, r, *wc, want, s)
	}
	got, rest := r.buffer.Split(s.length)
	if m := e.host.Memory; !m.Holds(got, s.key) || !m.Untouched(rest) {
		e.w.Broken(lab.Content, "%v: %v does not hold %v", e, r, s)
	}
}

func (e *end) matchNotification(r *recv, s *send, wc *ibverbx.WC) {
	want := ibverbx.WC{ID: wc.ID, QPNum: wc.QPNum, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm,
		Imm: s.imm, ByteLen: uint64(s.length)}
	if !e.single && e.vq.Scheme() == ibverbx.Spray {
		want.ByteLen = 0 // Spray does not carry the length
	} else if !e.single && !s.raw {
		want.Imm = 0
	}
	if *wc != want {
		e.w.Broken(lab.Content, "%v: %v completes as %+v, want %+v of %v", e, r, *wc, want, s)
	}
}

// seeWrites checks that all writes that the peer posted before a notification have landed.
func (e *end) seeWrites(s *send) {
	for ; e.checked <= s.index; e.checked++ {
		t := e.peer.sends[e.checked]
		if t.session != s.session || !isWrite(t.op) || t.landed {
			continue
		}
		if !e.host.Memory.Holds(t.remote, t.key) {
			e.w.Broken(ruleNotification, "%v has been notified of %v, and %v is not there", e, s, t)
		}
		e.peer.mustBeProved(t, s)
		if t.landed = true; e.conn.failover && !t.still {
			e.peer.settleTarget(t)
		}
	}
}

// describe writes a completion for the trace.
func describe(wc *ibverbx.WC) string {
	what := "send"
	if wc.ID>>32&1 != 0 || wc.Opcode.IsRecv() {
		what = "receive"
	}
	return sprintf("completes %s %d: %s, %v, %d bytes, imm %#x", what, uint32(wc.ID), wc.Status.Name(),
		wc.Opcode, wc.ByteLen, wc.Imm)
}
