package soft

import (
	"encoding/binary"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// outcome is the result of an attempt to execute the head of a send queue.
type outcome uint8

const (
	done outcome = iota // executed, successfully or not
	// Not executed: the request waits for a receive, for the peer, or for a fault's delay or
	// removal, or a fault has ended it.
	held
	copying // the caller unlocks, calls q.run.xfer.copy, locks, and calls landed
)

// head returns the request to execute next, which must exist.
func (q *QP) head() *nic.SendSlot { return q.core.SQ.At(q.core.SQ.Executed) }

// runnable reports whether the head request may be executed now.
func (q *QP) runnable() bool {
	r := &q.run
	if q.core.SQ.Executed == q.core.SQ.Posted || q.core.State != verbs.StateRTS || r.busy || r.failed ||
		r.wait != waitNone || r.stall != nil {
		return false
	}
	if r.reads > 0 {
		s := q.head()
		if s.Flags&verbs.SendFence != 0 || s.Answered() && r.reads >= int(q.core.Attr.MaxRDAtomic) {
			return false
		}
	}
	return true
}

// execute carries out the head request of q, which must be runnable: the requester's part, then the
// responder's.
func (f *Fabric) execute(q *QP) outcome {
	s := q.head()
	x := &q.run.xfer
	x.reset()
	if len(f.injections) != 0 && !f.strike(q) {
		return held
	}
	here, there := &x.src, &x.dst
	if s.Answered() {
		here, there = there, here
	}
	if status := q.core.Local(here, q.core.SQ.Executed); status != verbs.StatusSuccess {
		f.fail(q, status, 0)
		return done
	}
	p := q.reach()
	if p == nil {
		f.awaitPeer(q)
		return held
	}
	status := p.core.Permits(s.Opcode)
	if status == verbs.StatusSuccess {
		isSend := s.Opcode.IsSend()
		if p.core.RQ.Empty() && (isSend || s.Opcode.HasImm()) {
			return f.notReady(q, p)
		}
		if isSend {
			status = p.core.Accept(there, s.Length)
		} else {
			status = p.core.Target(there, s.Opcode, s.RKey, s.RemoteAddr, s.Length)
		}
	}
	if status != verbs.StatusSuccess {
		f.reject(q, p, s, status)
		return done
	}
	if s.Opcode != verbs.OpRDMAWrite {
		f.placeAll(p)
	}
	switch {
	case s.Length == 0:
	case s.Opcode == verbs.OpRDMAWrite && (len(p.late.placements) != 0 ||
		q.run.fault != nil && q.run.fault.fault.Kind == PlaceLate):
		f.postpone(q, p, s)
	case s.Opcode.IsAtomic():
		s.Result = nic.FetchAndChange(s.Opcode, s.CompareAdd, s.Swap, x.src.Bytes[0])
	case f.stepped && s.Opcode == verbs.OpRDMARead:
		q.fetchLate(x)
	case s.Length <= smallCopy || f.stepped:
		x.copy()
	default:
		x.hold()
		x.peer = p
		q.run.busy, p.run.inbound = true, true
		return copying
	}
	f.finish(q, p, s)
	return done
}

// notReady holds the head request of q back, or fails it: p has no receive posted for it.
func (f *Fabric) notReady(q, p *QP) outcome {
	if f.awaitReceive(q, p) {
		return held
	}
	f.fail(q, verbs.StatusRNRRetryExcErr, 0)
	return done
}

// reach returns the peer, or nil if packets to it would be lost: the path is down, the queue pair
// does not exist, is not ready to receive, or is connected to another one, or its packet sequence
// numbers do not fit. Real NICs number packets; here a message counts as one packet, which also
// tells a connection from an earlier one.
func (q *QP) reach() *QP {
	if !q.linked() {
		return nil
	}
	p := q.partner()
	if p == nil || !p.core.Receptive() || p.dest != q.dev || p.core.Attr.DestQPNum != q.core.Num ||
		p.recvPSN != q.sendPSN {
		return nil
	}
	return p
}

// partner returns the queue pair that q is connected to, in any state, or nil.
func (q *QP) partner() *QP {
	if p := q.peer; p != nil && !p.core.Closed {
		return p
	}
	q.peer = nil
	if q.dest != nil {
		q.peer = q.dest.qps.Find(q.core.Attr.DestQPNum)
	}
	return q.peer
}

// linked reports whether the path to the peer's NIC is up.
func (q *QP) linked() bool { return q.dest != nil && q.dev.up() && q.dest.up() }

// finish ends the execution of the head request after its payload has moved.
func (f *Fabric) finish(q, p *QP, s *nic.SendSlot) {
	r := &q.run
	arrive, ack := f.engine.transmit(q, p, s)
	r.xfer.arrive, s.Mark = arrive, ack
	fault := r.fault
	q.advance()
	q.sendPSN = (q.sendPSN + 1) & nic.PSNMask
	p.recvPSN = q.sendPSN
	if fault != nil && fault.fault.Kind == FailAfterData {
		s.Status, s.VendorErr, s.Local = fault.fault.Status, fault.fault.VendorErr, true
		r.failed = true
	} else if s.Opcode.IsSend() || s.Opcode.HasImm() {
		f.receive(q, p, s)
	}
	if s.Answered() && !r.failed {
		r.reads++
		if s.Opcode.IsAtomic() && !f.stepped {
			q.landAtomic(s)
		}
	}
	f.engine.executed(q)
}

// landAtomic writes the value that an atomic found to the requester's memory.
func (q *QP) landAtomic(s *nic.SendSlot) {
	word := q.run.word[:]
	binary.NativeEndian.PutUint64(word, s.Result)
	x := &q.run.xfer
	x.src.Reset()
	x.src.Add(word)
	x.copy()
}

// landed continues after a copy outside the lock. Either side may have failed in the meantime.
func (f *Fabric) landed(q *QP) {
	p := q.run.xfer.peer
	q.run.xfer.release()
	q.run.busy, p.run.inbound = false, false
	switch {
	case q.core.State != verbs.StateRTS && q.core.State != verbs.StateSQD:
	case q.reach() != p:
		f.awaitPeer(q)
	default:
		f.finish(q, p, q.head())
	}
	f.settle(q)
	f.settle(p)
	f.mu.WakeQuiet()
}

// advance moves past the head request.
func (q *QP) advance() {
	q.core.SQ.Executed++
	q.run.fault = nil
	q.run.tries, q.run.rnrTries = 0, 0
}

// fail ends the head request on this side, without the peer.
func (f *Fabric) fail(q *QP, status verbs.Status, vendorErr uint32) {
	s := q.head()
	s.Status, s.VendorErr, s.Local, s.Mark = status, vendorErr, true, 0
	q.run.failed = true
	q.advance()
	f.engine.executed(q)
}

// reject ends the head request with the peer's refusal. Both queue pairs fail: a responder that
// answers with a fatal NAK goes to ERR itself (IBTA 9.9.3, responder class C; the kernel's
// do_class_ac_error).
func (f *Fabric) reject(q, p *QP, s *nic.SendSlot, status verbs.Status) {
	_, s.Mark = f.engine.transmit(q, p, s)
	s.Status, s.Local = status, false
	q.run.failed = true
	q.advance()
	op := s.Opcode
	f.engine.executed(q)
	f.refused(p, op, status)
}

// refused takes p to ERR after it has refused its peer's request.
func (f *Fabric) refused(p *QP, op verbs.Opcode, status verbs.Status) {
	switch {
	case !op.IsSend() || !p.core.Receptive(): // not receptive: a queue pair connected to itself
		f.failWithEvent(p, refusalEvent(status))
	case status == verbs.StatusRemOpErr:
		f.consumeFailed(p, verbs.StatusLocProtErr, 0)
	default:
		f.consumeFailed(p, verbs.StatusLocLenErr, 0)
	}
}

// smallCopy is the longest payload that is copied under the lock: some 0.3 µs here, less than two
// handovers of a contended mutex cost.
const smallCopy = 8 << 10

// copyChunk bounds one call of copy, in bytes. A copy cannot be preempted, so the garbage collector
// would wait for it. From 1 MiB Go's copy bypasses the caches, which takes 1.3 times as long for
// data that fits into them.
const copyChunk = 512 << 10

// transfer is the copy of one request's payload, from the pieces of src, in order, to those of dst.
// Their regions are held while the copy runs outside the lock.
type transfer struct {
	src, dst nic.Pieces
	at       copyCursor
	peer     *QP   // the other side of a copy outside the lock
	arrive   int64 // when the message reaches the peer, from the engine's transmit; 0 means at once
}

// copyCursor is the position of a copy: the next byte comes from offset from of piece src, and goes
// to offset to of piece dst.
type copyCursor struct{ src, from, dst, to int }

func (x *transfer) reset() {
	x.src.Reset()
	x.dst.Reset()
	x.at = copyCursor{}
	x.arrive = 0
}

// copy copies the payload.
func (x *transfer) copy() {
	src, dst := x.src.Bytes, x.dst.Bytes
	if len(src) == 1 && len(dst) == 1 && len(src[0]) <= copyChunk {
		nic.Move(dst[0], src[0])
		return
	}
	if len(src) == 1 && len(src[0]) <= maxWord || len(dst) == 1 && len(dst[0]) <= maxWord {
		x.copyWord()
		return
	}
	for !x.copySome(copyChunk) {
	}
}

// copySome copies the next bytes of the payload, at most limit, and reports whether that was all.
func (x *transfer) copySome(limit int) (all bool) {
	c := &x.at
	from, to := x.src.Bytes, x.dst.Bytes
	for c.src < len(from) && c.dst < len(to) {
		if limit == 0 {
			return false
		}
		src, dst := from[c.src], to[c.dst]
		n := copy(dst[c.to:], src[c.from:min(len(src), c.from+min(limit, copyChunk))])
		limit -= n
		c.from += n
		c.to += n
		if c.from == len(src) {
			c.src, c.from = c.src+1, 0
		}
		if c.to == len(dst) {
			c.dst, c.to = c.dst+1, 0
		}
	}
	return true
}

// maxWord is the longest payload that is copied in one access to memory, in bytes.
const maxWord = 8

// copyWord copies a payload that may be a word at one end and in pieces at the other.
func (x *transfer) copyWord() {
	var word [maxWord]byte
	n := 0
	for _, b := range x.src.Bytes {
		nic.Move(word[n:n+len(b)], b)
		n += len(b)
	}
	n = 0
	for _, b := range x.dst.Bytes {
		nic.Move(b, word[n:n+len(b)])
		n += len(b)
	}
}

// hold keeps the regions from being deregistered.
func (x *transfer) hold() {
	x.src.Hold()
	x.dst.Hold()
}

// release undoes hold, and clears the pieces.
func (x *transfer) release() {
	x.src.Release()
	x.dst.Release()
	x.peer = nil
}
