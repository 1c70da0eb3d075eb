package soft

import (
	"encoding/binary"

	"ibverbx/verbs"
)

// outcome is the result of an attempt to execute the head of a send queue.
type outcome uint8

const (
	done outcome = iota // executed, with success or without
	// Not executed: it waits for a receive, for the peer, or for a fault's delay or removal; or a
	// fault has ended it.
	held
	copying // the caller unlocks, calls q.run.xfer.copy, locks, and calls landed
)

// head is the request to execute next. There has to be one.
func (q *QP) head() *sendSlot { return q.sq.at(q.sq.executed) }

// runnable reports whether the head request may be executed now.
func (q *QP) runnable() bool {
	r := &q.run
	if q.sq.executed == q.sq.posted || q.state != verbs.StateRTS || r.busy || r.failed ||
		r.wait != waitNone || r.stall != nil {
		return false
	}
	if r.reads > 0 {
		s := q.head()
		if s.flags&verbs.SendFence != 0 || s.answered() && r.reads >= int(q.attr.MaxRDAtomic) {
			return false
		}
	}
	return true
}

// execute carries out the head request of q, which has to be runnable: the requester's part, then
// the responder's.
func (f *Fabric) execute(q *QP) outcome {
	s := q.head()
	x := &q.run.xfer
	x.reset()
	if len(f.injections) != 0 && !f.strike(q) {
		return held
	}
	if status := q.prepare(s, x); status != verbs.StatusSuccess {
		f.fail(q, status, 0)
		return done
	}
	p := q.reach()
	if p == nil {
		f.awaitPeer(q)
		return held
	}
	status, ready := p.respond(s, x)
	if !ready {
		if !f.awaitReceive(q, p) {
			f.fail(q, verbs.StatusRNRRetryExcErr, 0)
			return done
		}
		return held
	}
	if status != verbs.StatusSuccess {
		f.reject(q, p, s, status)
		return done
	}
	switch {
	case s.length == 0:
	case s.opcode.IsAtomic():
		s.result = fetchAndChange(s, x.src[0])
	case f.stepped && s.opcode == verbs.OpRDMARead:
		q.fetchLate(x)
	case s.length <= smallCopy || f.stepped:
		x.copy()
	default:
		x.pin()
		x.peer = p
		q.run.busy, p.run.inbound = true, true
		return copying
	}
	f.finish(q, p, s)
	return done
}

// prepare checks the requester's side of a request and collects its memory.
func (q *QP) prepare(s *sendSlot, x *transfer) verbs.Status {
	if s.length > uint64(q.dev.cfg.MaxMsgSize) {
		return verbs.StatusLocLenErr
	}
	if s.flags&verbs.SendInline != 0 {
		if s.length > 0 {
			x.src = append(x.src, q.sq.inlined(q.sq.executed))
		}
		return verbs.StatusSuccess
	}
	var ok bool
	sges := q.sq.sgl(q.sq.executed)
	if !s.answered() {
		x.src, ok = x.gather(x.src, q.pd, sges, s.length, 0)
	} else {
		if s.opcode.IsAtomic() && s.length != 8 {
			return verbs.StatusLocLenErr
		}
		if q.attr.MaxRDAtomic == 0 {
			return verbs.StatusLocQPOpErr // the requester has no resources for any
		}
		x.dst, ok = x.gather(x.dst, q.pd, sges, s.length, verbs.AccessLocalWrite)
	}
	if !ok {
		return verbs.StatusLocProtErr
	}
	return verbs.StatusSuccess
}

const psnMask = 1<<24 - 1

// reach finds the peer, or nil when packets to it would vanish: the path is down, there is no such
// queue pair, it is not ready to receive, it is connected to another one, or its packet sequence
// numbers do not fit. Real NICs number packets. Here one message counts as one packet, which also
// distinguishes a connection from an earlier one.
func (q *QP) reach() *QP {
	if !q.linked() {
		return nil
	}
	p := q.partner()
	if p == nil || !p.receptive() || p.dest != q.dev || p.attr.DestQPNum != q.num || p.recvPSN != q.sendPSN {
		return nil
	}
	return p
}

// partner is the queue pair that q is connected to, in whatever state, or nil.
func (q *QP) partner() *QP {
	if p := q.peer; p != nil && !p.closed {
		return p
	}
	q.peer = nil
	if q.dest != nil {
		q.peer = q.dest.qpByNum[q.attr.DestQPNum]
	}
	return q.peer
}

// linked reports whether the path to the peer's NIC is up.
func (q *QP) linked() bool { return q.dest != nil && q.dev.up() && q.dest.up() }

// receptive reports whether the state accepts messages.
func (q *QP) receptive() bool {
	return q.state == verbs.StateRTS || q.state == verbs.StateRTR || q.state == verbs.StateSQD
}

// finish ends the execution of the head request after its payload has moved.
func (f *Fabric) finish(q, p *QP, s *sendSlot) {
	r := &q.run
	arrive, ack := f.engine.transmit(q, p, s)
	r.xfer.arrive, s.ackAt = arrive, ack
	fault := r.fault
	q.advance()
	q.sendPSN = (q.sendPSN + 1) & psnMask
	p.recvPSN = q.sendPSN
	if fault != nil {
		s.status, s.vendorErr, s.local = fault.fault.Status, fault.fault.VendorErr, true
		r.failed = true
	} else if s.opcode.IsSend() || s.opcode.HasImm() {
		f.receive(q, p, s)
	}
	if s.answered() && !r.failed {
		r.reads++
		if s.opcode.IsAtomic() && !f.stepped {
			q.landAtomic(s)
		}
	}
	f.engine.executed(q)
}

// landAtomic writes what an atomic found to the requester's memory.
func (q *QP) landAtomic(s *sendSlot) {
	word := q.run.word[:]
	binary.NativeEndian.PutUint64(word, s.result)
	x := &q.run.xfer
	x.src = append(x.src[:0], word)
	x.copy()
}

// landed follows a copy outside of the lock. Either side may have failed in the meantime.
func (f *Fabric) landed(q *QP) {
	p := q.run.xfer.peer
	q.run.xfer.unpin()
	q.run.busy, p.run.inbound = false, false
	switch {
	case q.state != verbs.StateRTS && q.state != verbs.StateSQD:
	case q.reach() != p:
		f.awaitPeer(q)
	default:
		f.finish(q, p, q.head())
	}
	f.settle(q)
	f.settle(p)
	f.wakeQuiet()
}

// advance moves past the head request.
func (q *QP) advance() {
	q.sq.executed++
	q.run.fault = nil
	q.run.tries, q.run.rnrTries = 0, 0
}

// fail ends the head request on this side, without the peer.
func (f *Fabric) fail(q *QP, status verbs.Status, vendorErr uint32) {
	s := q.head()
	s.status, s.vendorErr, s.local, s.ackAt = status, vendorErr, true, 0
	q.run.failed = true
	q.advance()
	f.engine.executed(q)
}

// reject ends the head request with the peer's refusal. Both queue pairs fail: a responder that
// answers with a fatal NAK goes to ERR itself (IBTA 9.9.3, responder class C; the kernel's
// do_class_ac_error).
func (f *Fabric) reject(q, p *QP, s *sendSlot, status verbs.Status) {
	_, s.ackAt = f.engine.transmit(q, p, s)
	s.status, s.local = status, false
	q.run.failed = true
	q.advance()
	isSend := s.opcode.IsSend()
	f.engine.executed(q)
	switch {
	case !isSend || !p.receptive(): // not receptive: a queue pair connected to itself
		f.failWithEvent(p, refusalEvent(status))
	case status == verbs.StatusRemOpErr:
		f.consumeFailed(p, verbs.StatusLocProtErr, 0)
	default:
		f.consumeFailed(p, verbs.StatusLocLenErr, 0)
	}
}
