package shm

import (
	"encoding/binary"
	"slices"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// responder is the receiving side of a queue pair: it carries out the peer's slots, in order.
type responder struct {
	lane    *lane // nil while the peer's has not come
	message message
}

// message is a message of the peer of which some slots, but not all, are carried out.
type message struct {
	under bool
	op    verbs.Opcode
	rkey  uint32
	addr  uint64
	total uint64 // bytes
	at    uint64 // bytes carried out
}

// Bounds of what one pass carries out of a lane, so that the device's lock is free in between.
const (
	passSlots = 64
	passBytes = 4 * mostBytes
	// fewSlots are so few that their report may wait.
	fewSlots = 4
)

// carryOut carries out slots that the peer has published, up to a bound, and reports them. Call it
// with both locks. With hold the report of a few messages waits for the program's answer, or its
// next poll: the stores take the processor from the peer a line that it looks at all the time, and
// an answer would wait for that.
func (q *QP) carryOut(hold bool) {
	l := q.in.lane
	first, receives := l.cursor, q.core.RQ.Consumed
	bytes, reported := 0, 0
	var s slot
	for l.cursor-first < passSlots && bytes < passBytes && q.core.Receptive() && l.hasNext() {
		l.take(&s)
		bytes += int(s.n)
		if status := q.execute(&s); status != verbs.StatusSuccess {
			q.refuse(s.op, status)
			return
		}
		if q.in.lane == nil {
			return // its completion queue has overrun, and the queue pair failed with it
		}
		l.cursor++
		if bytes-reported >= mostBytes { // the requester may fill that part of the window again
			q.report(l)
			reported = bytes
		}
	}
	switch {
	case hold && l.cursor-first <= fewSlots && q.core.RQ.Consumed != receives:
		q.dev.owe(l)
		q.dev.poll.owes = true // a poll looks at it, so this needs no atomic store
	default:
		q.report(l)
	}
}

// owe notes that a lane's report is due. The caller sees to it that a poll notices.
func (d *Device) owe(l *lane) {
	if !l.owes {
		l.owes = true
		d.owed = append(d.owed, l)
	}
}

// payReports makes the oldest n reports that are due. Call it locked.
func (d *Device) payReports(n int) {
	if n == 0 {
		return
	}
	for _, l := range d.owed[:n] {
		if l.owes = false; l.qp != nil {
			l.qp.report(l)
		}
	}
	d.owed = slices.Delete(d.owed, 0, n)
	if len(d.owed) == 0 && d.owes.Load() {
		d.owes.Store(false)
	}
}

// report tells the requester what is carried out, and how many receives are posted.
func (q *QP) report(l *lane) {
	if posted := q.core.RQ.Posted; posted != l.posted {
		l.posted = posted
		l.store(wordReceives, posted)
	}
	if l.done != l.cursor {
		l.done = l.cursor
		l.store(wordDone, l.cursor)
		l.link.ring()
	} else if l.load(wordAwaitsReceive) != 0 {
		l.link.ring()
	}
}

// execute carries out a slot. A status other than success refuses the message.
func (q *QP) execute(s *slot) verbs.Status {
	m := &q.in.message
	if !s.wellFormed() || s.flags&slotFirst != 0 == m.under || m.under && s.op != m.op {
		return verbs.StatusRemInvReqErr
	}
	if s.flags&slotFirst != 0 {
		*m = message{under: true, op: s.op, rkey: s.rkey, addr: s.addr, total: s.total()}
		if status := q.begin(m, s.flags&slotLast != 0); status != verbs.StatusSuccess {
			return status
		}
	}
	if s.flags&slotPlaced != 0 {
		m.under = false
		status := q.core.Target(nil, m.op, m.rkey, m.addr, m.total)
		if status == verbs.StatusSuccess {
			q.received(s, m.total)
		}
		return status
	}
	n := uint64(s.n)
	last := s.flags&slotLast != 0
	if n > m.total-m.at || last != (m.at+n == m.total) {
		return verbs.StatusRemInvReqErr
	}
	if status := q.move(m, s); status != verbs.StatusSuccess {
		return status
	}
	m.at += n
	if last {
		m.under = false
		if takesReceive(s.op) {
			q.received(s, m.total)
		}
	}
	return verbs.StatusSuccess
}

// begin checks a message before its first byte moves, in the order of [nic.QP.Permits]: the queue
// pair's rights, a receive, the memory. Of a message that is a single slot, move checks the memory.
func (q *QP) begin(m *message, whole bool) verbs.Status {
	if m.total > uint64(q.dev.core.Limits.MaxMsgSize) {
		return verbs.StatusRemInvReqErr
	}
	if status := q.core.Permits(m.op); status != verbs.StatusSuccess {
		return status
	}
	// A peer that keeps to wordReceives finds one.
	if takesReceive(m.op) && q.core.RQ.Empty() {
		return verbs.StatusRemInvReqErr
	}
	if whole {
		return verbs.StatusSuccess
	}
	if m.op.IsSend() {
		return q.core.Accept(nil, m.total)
	}
	return q.core.Target(nil, m.op, m.rkey, m.addr, m.total)
}

// move moves the payload of a slot. The memory is looked up for each: a region may have been closed
// since the message began.
func (q *QP) move(m *message, s *slot) verbs.Status {
	n := uint64(s.n)
	if n == 0 {
		return verbs.StatusSuccess
	}
	d := q.dev
	payload := d.scratch[:]
	if s.flags&slotInline == 0 {
		payload = q.in.lane.window[s.payload[0]:]
	} else {
		for i, w := range s.payload {
			binary.NativeEndian.PutUint64(d.scratch[8*i:], w)
		}
	}
	payload = payload[:n]
	pieces := &d.pieces
	pieces.Reset()
	if s.op.IsSend() {
		if status := q.core.Accept(pieces, m.total); status != verbs.StatusSuccess {
			return status
		}
		scatter(pieces.Bytes, m.at, payload)
		return verbs.StatusSuccess
	}
	if status := q.core.Target(pieces, s.op, m.rkey, m.addr+m.at, n); status != verbs.StatusSuccess {
		return status
	}
	if m.rkey != q.in.lane.considered && len(d.shared) != 0 {
		q.consider(m.rkey)
	}
	memory := pieces.Bytes[0]
	if guard.Race {
		memory = d.unseen(m.rkey, memory)
	}
	switch {
	case s.op.IsAtomic():
		was := nic.FetchAndChange(s.op, s.payload[2], s.payload[3], memory)
		binary.NativeEndian.PutUint64(payload, was)
	case s.op == verbs.OpRDMARead:
		nic.Move(payload, memory)
	default:
		nic.Move(memory, payload)
	}
	return verbs.StatusSuccess
}

// received completes the oldest receive.
func (q *QP) received(s *slot, total uint64) {
	seq, _ := q.core.RQ.Take()
	m := nic.Message{Opcode: s.op, Length: total, Imm: s.imm, SrcQP: q.core.Attr.DestQPNum,
		Solicited: s.flags&slotSolicited != 0}
	if e := q.newCompletion(nic.Recv, m.Solicited); e != nil {
		q.core.Received(e, seq, &m)
	}
}

// refuse ends the connection with the status that the peer's request ends in. The queue pair fails
// too, as after a NAK (IBTA 9.9.3). A SEND that does not fit a receive fails that receive, anything
// else raises an event.
func (q *QP) refuse(op verbs.Opcode, status verbs.Status) {
	l := q.in.lane
	q.report(l)
	l.store(wordRefusal, uint64(status))
	if op.IsSend() && !q.core.RQ.Empty() {
		seq, _ := q.core.RQ.Take()
		own := verbs.StatusLocLenErr
		if status == verbs.StatusRemOpErr {
			own = verbs.StatusLocProtErr
		}
		q.completeError(nic.Recv, seq, own, 0)
		q.toError()
		return
	}
	event := verbs.EventQPReqErr
	if status == verbs.StatusRemAccessErr {
		event = verbs.EventQPAccessErr
	}
	q.toError()
	q.dev.core.Publish(verbs.Event{Type: event, QPNum: q.core.Num})
}
