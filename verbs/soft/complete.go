package soft

import "ibverbx/verbs"

// acknowledge ends the oldest executed request of q; there must be one. The data of a read or
// atomic lands, the completion is raised if the request has one, and an error takes the queue pair
// to ERR.
func (f *Fabric) acknowledge(q *QP) {
	seq := q.sq.acked
	s := q.sq.at(seq)
	if s.answered() && (s.status == verbs.StatusSuccess) {
		q.run.reads--
		if f.stepped {
			s.status = f.landLate(q, s, seq)
		}
	}
	q.sq.acked++
	q.run.tries = 0
	if s.status != verbs.StatusSuccess {
		f.completeError(q, dirSend, seq, s.id, s.status, s.vendorErr)
		f.toError(q)
		return
	}
	if s.flags&verbs.SendSignaled == 0 && !q.signalAll {
		return
	}
	e := cqe{qp: q, seq: seq, dir: dirSend}
	e.wc = verbs.WC{ID: s.id, Opcode: s.opcode.WCOpcode(), QPNum: q.num}
	if s.answered() {
		e.wc.ByteLen = uint32(s.length)
	}
	f.complete(&e)
}

// complete adds a completion to its queue, visible or not yet.
func (f *Fabric) complete(e *cqe) {
	q := e.qp
	c := q.cqs[e.dir]
	if c.dead {
		return
	}
	if c.full() || e.dir == dirSend && len(f.injections) != 0 && f.strikeCompletion(q, e.seq) {
		c.overrun()
		return
	}
	if f.engine.hide(q, e.dir, e.due) {
		q.hidden[e.dir] = append(q.hidden[e.dir], *e)
		c.hidden++
		return
	}
	c.add(e)
}

// reveal makes hidden completion number i of a queue visible.
func (f *Fabric) reveal(q *QP, dir direction, i int) {
	list := q.hidden[dir]
	e := list[i]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = cqe{}
	q.hidden[dir] = list[:len(list)-1]
	c := q.cqs[dir]
	c.hidden--
	c.add(&e)
}

// vendorFlushed is the vendor error of a flushed request, as mlx5 reports it.
const vendorFlushed = 0xf9

// completeError raises an unsuccessful completion. Fields that the contract leaves undefined hold
// garbage, and the opcode is usually one of the other direction: a program that looks at it fails
// here, and not first on a real NIC.
func (f *Fabric) completeError(q *QP, dir direction, seq, id uint64, status verbs.Status, vendorErr uint32) {
	e := cqe{qp: q, seq: seq, dir: dir, solicited: true}
	opcodes := &sendOpcodes
	if (dir == dirSend) == (f.rng.IntN(4) != 0) {
		opcodes = &recvOpcodes
	}
	e.wc = verbs.WC{
		ID:        id,
		Status:    status,
		Opcode:    opcodes[f.rng.IntN(len(opcodes))],
		VendorErr: vendorErr,
		ByteLen:   f.rng.Uint32(),
		Imm:       f.rng.Uint32(),
		QPNum:     q.num,
		SrcQP:     f.rng.Uint32() & maxQPNum,
		Flags:     verbs.WCFlags(f.rng.Uint32()) & verbs.WCWithImm,
	}
	f.complete(&e)
}

var (
	sendOpcodes = [...]verbs.WCOpcode{verbs.WCSend, verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCFetchAdd}
	recvOpcodes = [...]verbs.WCOpcode{verbs.WCRecv, verbs.WCRecvRDMAWithImm, verbs.WCRecv, 0xdead}
)

// toError takes a queue pair to ERR. What is outstanding is flushed at once, except what a copy
// outside of the lock still uses.
func (f *Fabric) toError(q *QP) {
	if q.state == verbs.StateErr || q.state == verbs.StateReset {
		return
	}
	q.state = verbs.StateErr
	f.engine.stopTimers(q)
	q.run.wait = waitNone
	f.settle(q)
}

// settle flushes what can be flushed of a queue pair in ERR: first the send queue in order, then
// the receive queue.
func (f *Fabric) settle(q *QP) {
	if q.state != verbs.StateErr {
		return
	}
	if !q.run.busy {
		q.run.reads, q.run.late = 0, nil
		for s := &q.sq; s.acked != s.posted; {
			seq := s.acked
			s.acked++
			s.executed = max(s.executed, s.acked)
			f.completeError(q, dirSend, seq, s.at(seq).id, verbs.StatusWRFlushErr, vendorFlushed)
		}
	}
	if !q.run.inbound {
		for r := &q.rq; r.consumed != r.posted; {
			seq := r.consumed
			r.consumed++
			f.completeError(q, dirRecv, seq, r.at(seq).id, verbs.StatusWRFlushErr, vendorFlushed)
		}
	}
}
