package rc

import (
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// answer is what is owed to the requester for a read or an atomic, or a NAK.
type answer struct {
	kind     answerKind
	syndrome wire.Syndrome // of a NAK
	next     seq           // the number of the next packet to send
	sent     uint64        // packets of the answer to a read that were sent
	packets  uint64        // of all of it
	addr     uint64        // of a read
	length   uint64
	original uint64 // of an atomic: what it found
	rkey     uint32
	again    bool // the peer asked again
}

type answerKind uint8

const (
	readAnswer answerKind = iota
	atomicAnswer
	nakAnswer
)

// answerQueue holds answers in the order of the requests.
//
// Invariant: no more than limit of them are of requests that were asked for the first time.
type answerQueue struct {
	list  []answer
	first int // of those in list that are not sent
	fresh int // reads and atomics that were not asked for again
	limit int
}

func (a *answerQueue) full() bool { return a.fresh >= a.limit }

func (a *answerQueue) empty() bool { return a.first == len(a.list) }

// add adds an answer. It returns false if the peer has more reads and atomics under way than it
// may. What it asks for again is left out when there is too much of it: it will ask once more.
func (a *answerQueue) add(v answer, again bool) bool {
	switch {
	case again && len(a.list)-a.first >= 2*a.limit+2:
		return true
	case !again && a.full():
		return false
	case !again:
		a.fresh++
	}
	v.again = again
	a.push(v)
	return true
}

func (a *answerQueue) addNak(s seq, why wire.Syndrome) {
	a.push(answer{kind: nakAnswer, next: s, syndrome: why, packets: 1, again: true})
}

func (a *answerQueue) push(v answer) {
	if a.first != 0 && len(a.list) == cap(a.list) {
		a.list = a.list[:copy(a.list, a.list[a.first:])]
		a.first = 0
	}
	a.list = append(a.list, v)
}

// pop removes the oldest answer.
func (a *answerQueue) pop() {
	if !a.list[a.first].again {
		a.fresh--
	}
	if a.first++; a.first == len(a.list) {
		a.list, a.first = a.list[:0], 0
	}
}

// transmitAnswers adds the answers that are due, and then acknowledgements.
func (q *QP) transmitAnswers(b *Batch) {
	r := &q.resp
	for !b.full() && !r.answers.empty() {
		if a := &r.answers.list[r.answers.first]; q.answerNext(b, a) {
			r.answers.pop()
		}
	}
	if b.full() || !r.answers.empty() {
		return
	}
	switch {
	case r.gapDue:
		// Nothing behind the expected packet is acknowledged: what was kept may yet be refused.
		h := q.reply(wire.Acknowledge, r.expected)
		h.Syndrome = wire.NakSequence
		b.add(&h, q.gap(b))
	case r.ackDue:
		h := q.reply(wire.Acknowledge, r.expected-1)
		b.add(&h, nil)
	}
	r.gapDue, r.ackDue = false, false
}

// reply is the header of a packet of the responder.
func (q *QP) reply(opcode wire.Opcode, s seq) wire.Header {
	return wire.Header{Opcode: opcode, PKey: defaultPKey, DestQP: q.Attr.DestQPNum, PSN: s.psn(),
		Syndrome: wire.Ack, MSN: q.resp.msn}
}

// answerNext adds the next packet of an answer, and reports whether it is the last one.
func (q *QP) answerNext(b *Batch, a *answer) (all bool) {
	switch a.kind {
	case nakAnswer:
		h := q.reply(wire.Acknowledge, a.next)
		h.Syndrome = a.syndrome
		b.add(&h, nil)
		return true
	case atomicAnswer:
		h := q.reply(wire.AtomicAcknowledge, a.next)
		h.Original = a.original
		b.add(&h, nil)
		q.stats.Sent++
		return true
	}
	offset := a.sent * q.mtu()
	n := min(a.length-offset, q.mtu())
	var payload []byte
	if n != 0 {
		var ok bool
		payload, ok = q.RemoteSlice(a.rkey, a.addr+offset, n, verbs.AccessRemoteRead)
		if !ok { // the region is gone since
			if a.again && a.sent == 0 {
				return true
			}
			*a = answer{kind: nakAnswer, next: a.next, syndrome: wire.NakRemoteAccess, again: a.again}
			if q.State != verbs.StateErr {
				q.Fail()
				q.cfg.Sink.Raise(verbs.EventQPAccessErr)
			}
			return false
		}
	}
	h := q.reply(readOpcode(a.sent == 0, a.sent+1 == a.packets), a.next)
	b.add(&h, payload)
	q.stats.Sent++
	a.sent++
	a.next++
	return a.sent == a.packets
}

// readOpcode is the opcode of a packet of the answer to a read.
func readOpcode(isFirst, isLast bool) wire.Opcode {
	switch {
	case isFirst && isLast:
		return wire.ReadResponseOnly
	case isFirst:
		return wire.ReadResponseFirst
	case isLast:
		return wire.ReadResponseLast
	}
	return wire.ReadResponseMiddle
}
