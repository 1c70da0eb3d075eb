package sim

import (
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// postSends posts a batch whose last request may be spoilt: those before it are accepted.
func (e *end) postSends(n int) {
	var wrs []ibverbx.SendWR
	for range n {
		wr, ok := e.makeSend()
		if !ok {
			break
		}
		wrs = append(wrs, wr)
	}
	good := len(wrs)
	if e.w.Rng.IntN(20) == 0 {
		wrs = append(wrs, e.spoiltSend())
	}
	e.postAll(wrs, good)
}

// postAll posts requests, the first good ones of which are valid. The model has recorded them
// before, because the taps see them during the call.
func (e *end) postAll(wrs []ibverbx.SendWR, good int) {
	b := batch{what: "send", first: len(e.sends) - good, good: good, all: len(wrs),
		post:    func() (int, error) { return e.vq.PostSend(wrs...) },
		counted: func() uint64 { return e.vq.Stats().Sends },
		posted:  func(i int) any { return e.sends[i] },
		keep:    e.keepSends, full: e.sendQueueFull}
	if e.post(&b); b.all == b.good && b.all != 0 {
		e.mustNotWait()
	}
}

// mustNotWait checks that no relaxed SEND waits when everything posted before it is out and its
// queue pair has room.
func (e *end) mustNotWait() {
	if len(e.relaxed) == 0 || e.state != connected || e.vq.Err() != nil || e.noneMayBegin ||
		e.stopAt != forever || e.hasLostRails() ||
		e.conn.hostile {
		return
	}
	s, q := e.relaxed[0], e.wires[0]
	switch {
	case e.conn.failover:
		q = e.wires[slices.IndexFunc(e.wires, func(q *wire) bool { return q.kind() == wireSends })]
	case e.vq.Scheme() == ibverbx.DQPLB && !e.plainPeer:
		q = e.wires[e.conn.plan.rails]
	}
	for _, t := range e.sends[e.sendHead:s.index] {
		// A notification may need one more message, and a fence holds back everything after it.
		if t.session != e.sessionNo || !t.allOut() || t.op.HasImm() && isWrite(t.op) ||
			t.flags&verbs.SendFence != 0 && !t.begun {
			return
		}
	}
	refused := func(q *wire) bool { return q.refused }
	if s.flags&verbs.SendFence != 0 || len(q.sends) >= e.limitOf(q) || slices.ContainsFunc(e.wires, refused) {
		return
	}
	e.w.Broken(lab.Liveness, "%v: %v waits, and nothing is in its way: %s", e, s, e.stats())
}

// refusal returns the error that a post must return now; nil if it must be accepted.
func (e *end) refusal() error {
	switch {
	case e.state == closed:
		return ibverbx.ErrClosed
	case e.vq.Err() != nil:
		return ibverbx.ErrFailed
	case e.state == draining, e.state == drained:
		return ibverbx.ErrDraining
	case e.state == unconnected:
		return ibverbx.ErrNotConnected
	}
	return nil
}

// keepSends drops the requests from index n on, which were refused. No NIC may have received any
// part of them.
func (e *end) keepSends(n int) {
	for _, s := range e.sends[n:] {
		if s.begun || s.out != 0 {
			e.w.Broken(ruleOneForOne, "%v: %v was refused, and goes out", e, s)
		}
		if s.word != nil {
			s.word.known = false
		}
	}
	e.sends = e.sends[:n]
	e.messages, e.relaxed = keep(e.messages, n), keep(e.relaxed, n)
	for i := range e.peer.expect {
		e.peer.expect[i] = keep(e.peer.expect[i], n)
	}
}

func keep(list []*send, n int) []*send {
	for len(list) != 0 && list[len(list)-1].index >= n {
		list = list[:len(list)-1]
	}
	return list
}

func (e *end) newSend(op verbs.Opcode, imm uint32) *send {
	return &send{index: len(e.sends), session: e.sessionNo, op: op, flags: verbs.SendSignaled, imm: imm}
}

// makeSend draws a request and records it.
func (e *end) makeSend() (ibverbx.SendWR, bool) {
	op := e.drawOpcode()
	s := e.newSend(op, uint32(e.w.Rng.IntN(3))*e.w.Rng.Uint32())
	if e.w.Rng.IntN(8) == 0 {
		s.flags |= verbs.SendFence
	}
	if e.w.Rng.IntN(8) == 0 {
		s.flags |= verbs.SendSolicited
	}
	if e.single && e.w.Rng.IntN(4) == 0 && e.mayBeUnsignaled() {
		s.flags &^= verbs.SendSignaled
	}
	s.length = e.drawLength(op)
	e.drawOrder(s)
	wr := ibverbx.SendWR{ID: e.id(false, s.index), Opcode: s.op, Imm: s.imm}
	if !e.giveMemory(s, &wr) {
		return wr, false
	}
	// A single queue pair keeps every order anyway.
	wr.Flags, wr.Relaxed, wr.EveryRail = s.flags, s.relax || e.single && op.IsSend() && s.index%2 == 0,
		s.everyRail
	e.enter(s)
	return wr, true
}

// drawOrder makes some SENDs relaxed, and sends some reads and writes over every rail.
func (e *end) drawOrder(s *send) {
	rng, rails := e.w.Rng, e.conn.plan.rails
	s.relax = !e.single && s.op.IsSend() && rng.IntN(3) == 0
	switch {
	case s.relax:
		s.op, s.imm = verbs.OpSendWithImm, relaxedMark|uint32(s.index)
	case s.imm&markMask == relaxedMark:
		s.imm ^= 1 << 31
	}
	if s.op == verbs.OpRDMARead && rng.IntN(3) == 0 || s.op == verbs.OpRDMAWrite && rng.IntN(12) == 0 {
		frag := int(e.conn.plan.cfg[0].FragmentSize)
		s.everyRail = true
		s.length = rails * min([...]int{1, frag, 1 + rng.IntN(frag)}[rng.IntN(3)], lab.MaxNoise/rails)
	}
}

// mayBeUnsignaled reports whether another unsignaled request may follow: a queue that is full of
// them never has room again.
func (e *end) mayBeUnsignaled() bool {
	n := len(e.sends)
	for n > e.sendHead && e.sends[n-1].flags&verbs.SendSignaled == 0 {
		n--
	}
	return len(e.sends)-n+1 < e.wires[0].Cap().MaxSendWR
}

func (e *end) drawOpcode() verbs.Opcode {
	ops := []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWrite, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp, verbs.OpSend, verbs.OpSendWithImm,
	}
	if !e.takesMessages() {
		ops = ops[:9]
	}
	if e.conn.plan.short && e.w.Rng.IntN(4) != 0 {
		ops = ops[:6]
	}
	op := ops[e.w.Rng.IntN(len(ops))]
	if op == verbs.OpRDMAWriteWithImm && !e.notifies() {
		if op = verbs.OpSend; !e.takesMessages() {
			op = verbs.OpRDMAWrite
		}
	}
	return op
}

// takesMessages reports whether the connection carries SENDs: DQPLB needs a notify queue pair for
// them, unless the peer is plain.
func (e *end) takesMessages() bool {
	cfg := &e.conn.plan.cfg[0]
	return e.single || e.conn.plan.small != 0 && (cfg.Scheme == ibverbx.Spray || !cfg.NoNotifyQP ||
		e.plainPeer)
}

// notifies reports whether the program sends notifications.
func (e *end) notifies() bool { return (!e.plainPeer || e.conn.plan.small == 0) && !e.mute() }

// mute reports whether no rail carries notifications: Spray needs a notify queue pair for them.
func (e *end) mute() bool {
	cfg := &e.conn.plan.cfg[0]
	return !e.single && cfg.Scheme == ibverbx.Spray && cfg.NoNotifyQP
}

// drawLength draws a length, often next to a boundary: zero, a fragment, one fragment on each rail,
// everything that the rails hold.
func (e *end) drawLength(op verbs.Opcode) int {
	rng := e.w.Rng
	switch {
	case op.IsAtomic():
		return 8
	case op.IsSend():
		return rng.IntN(e.conn.plan.small + 1)
	}
	if rng.IntN(8) == 0 {
		return 0
	}
	cfg := &e.conn.plan.cfg[e.index%2]
	frag, rails := int(cfg.FragmentSize), e.conn.plan.rails
	if e.conn.plan.short && rng.IntN(6) != 0 {
		return 1 + rng.IntN(frag)
	}
	lengths := [...]int{1, frag - 1, frag, frag + 1, 2 * frag, 2*frag + 1, rails * frag, rails*frag + 1,
		rails * cfg.MaxMsgCntPerQP * frag, (rails*cfg.MaxMsgCntPerQP + 1) * frag, 1 + rng.IntN(5*frag)}
	return min(max(lengths[rng.IntN(len(lengths))], 1), 3000, 60*frag)
}

// enter records a request.
func (e *end) enter(s *send) {
	s.raw = e.conn.raw
	s.bare = s.length == 0 && !e.single && s.op == verbs.OpRDMAWriteWithImm &&
		e.vq.Scheme() == ibverbx.Spray
	e.sends = append(e.sends, s)
	e.most = max(e.most, len(e.sends)-e.sendHead)
	kind := -1
	switch {
	case s.relax:
		e.relaxed = append(e.relaxed, s)
		kind = kindRelaxed
	case s.op.IsSend():
		e.messages = append(e.messages, s)
		kind = kindMessage
	case isWrite(s.op) && s.op.HasImm():
		kind = kindNotification
	}
	if kind >= 0 {
		if e.single {
			kind = kindNotification
		}
		e.peer.expect[kind] = append(e.peer.expect[kind], s)
	}
}

// burst posts more sends at once than any queue, or a ring of the initial size, holds.
func (e *end) burst() {
	var wrs []ibverbx.SendWR
	for range 60 + e.w.Rng.IntN(80) {
		s := e.newSend(verbs.OpRDMAWrite, 1)
		s.length = 1 + e.w.Rng.IntN(8)
		if e.w.Rng.IntN(8) == 0 && e.notifies() {
			s.op = verbs.OpRDMAWriteWithImm
		}
		wr := ibverbx.SendWR{ID: e.id(false, s.index), Opcode: s.op, Flags: s.flags, Imm: s.imm}
		local, ok := e.host.Memory.Alloc(s.length, s)
		remote, ok2 := e.peer.host.Memory.Alloc(s.length, s)
		if !ok || !ok2 {
			break
		}
		s.local, s.remote, s.key = []lab.Span{local}, remote, e.host.Memory.FillDrawn(local, e.w.Rng)
		wr.Local, wr.Remote = e.host.Segment(local), e.peer.host.RemoteSegment(remote)
		e.enter(s)
		wrs = append(wrs, wr)
	}
	e.postAll(wrs, len(wrs))
}

// postRecvs posts receives of both kinds.
func (e *end) postRecvs(n int) {
	if e.conn.plan.lazy[e.index%2] && e.w.Rng.IntN(10) != 0 || e.mute() && !e.takesMessages() {
		return
	}
	var wrs []ibverbx.RecvWR
	for range n {
		message := e.single || e.takesMessages() && (e.w.Rng.IntN(3) == 0 || e.plainPeer || e.mute())
		wr, ok := e.makeRecv(message)
		if !ok {
			break
		}
		wrs = append(wrs, wr)
	}
	good := len(wrs)
	if e.w.Rng.IntN(20) == 0 {
		wrs = append(wrs, e.spoiltRecv())
	}
	e.postAllRecvs(wrs, good)
}

func (e *end) makeRecv(message bool) (ibverbx.RecvWR, bool) {
	r := &recv{index: len(e.recvs), session: e.sessionNo, message: message && e.conn.plan.small != 0}
	wr := ibverbx.RecvWR{ID: e.id(true, r.index)}
	if r.message {
		var ok bool
		if r.buffer, ok = e.host.Memory.Alloc(e.conn.plan.small, r); !ok {
			return wr, false
		}
		wr.Local = e.host.Segment(r.buffer)
		if cut := e.w.Rng.IntN(r.buffer.N); e.w.Rng.IntN(4) == 0 && cut != 0 &&
			e.conn.plan.cfg[e.index%2].MaxSGE > 1 {
			head, tail := r.buffer.Split(cut)
			wr.Local, wr.SGL = ibverbx.Segment{}, e.host.Segments([]lab.Span{head, tail})
		}
	}
	e.recvs = append(e.recvs, r)
	return wr, true
}

// postAllRecvs posts receives, the first good ones of which are valid.
func (e *end) postAllRecvs(wrs []ibverbx.RecvWR, good int) {
	e.post(&batch{what: "receive", first: len(e.recvs) - good, good: good, all: len(wrs),
		post:    func() (int, error) { return e.vq.PostRecv(wrs...) },
		counted: func() uint64 { return e.vq.Stats().Recvs },
		posted:  func(i int) any { return e.recvs[i] },
		keep:    e.keepRecvs, full: e.recvQueueFull})
}

// keepRecvs drops the receives from index n on, which were refused.
func (e *end) keepRecvs(n int) {
	for _, r := range e.recvs[n:] {
		if r.out != 0 {
			e.w.Broken(ruleOneForOne, "%v: %v was refused, and is on a NIC", e, r)
		}
	}
	e.recvs = e.recvs[:n]
}
