package rc

import (
	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// answer is a read or atomic of the peer that is to be answered.
type answer struct {
	next     seq    // the number of the next packet to send
	sent     uint64 // packets sent so far
	packets  uint64 // packets in all
	addr     uint64 // of a read
	length   uint64 // read: bytes
	original uint64 // atomic: the value found
	rkey     uint32 // of a read
	atomic   bool
	again    bool // the peer has asked for it again
}

// answerQueue holds answers in the order of the requests.
//
// Invariant: at most limit of them answer requests that came for the first time. The number of
// repeated ones is bounded too, so a peer that asks and never reads costs no more memory.
type answerQueue struct {
	list  []answer
	first int // index in list of the first answer that is not sent
	fresh int // answers that the peer has not asked for again
	limit int
}

func (a *answerQueue) full() bool { return a.fresh >= a.limit }

func (a *answerQueue) empty() bool { return a.first == len(a.list) }

// add adds the answer to a new request. There must be room.
func (a *answerQueue) add(v answer) {
	a.fresh++
	a.push(v)
}

// addAgain adds an answer that the peer asks for again. The part of it that still waits to be sent
// is not queued twice: a peer that repeats its request during a long answer would get more and more
// of it. If too many answers wait, nothing is added: the peer will ask again.
func (a *answerQueue) addAgain(v answer, shift uint) {
	for i := a.first; i < len(a.list); i++ {
		p := &a.list[i]
		switch {
		case p.includes(&v, shift):
			return
		case v.includes(p, shift): // the part of p that was sent is lost
			v.again = p.again
			*p = v
			return
		}
	}
	if len(a.list)-a.first < 2*a.limit+2 {
		v.again = true
		a.push(v)
	}
}

// includes reports whether a still has everything that v must send: the same numbers with the same
// bytes.
func (a *answer) includes(v *answer, shift uint) bool {
	if a.atomic || v.atomic {
		return a.atomic && v.atomic && a.next == v.next
	}
	at, vAt := a.addr+a.sent<<shift, v.addr+v.sent<<shift
	return a.next <= v.next && a.rkey == v.rkey && vAt-at == uint64(v.next-a.next)<<shift &&
		v.next+seq(v.packets-v.sent) <= a.next+seq(a.packets-a.sent) && v.addr+v.length <= a.addr+a.length
}

func (a *answerQueue) clear() { a.list, a.first, a.fresh = a.list[:0], 0, 0 }

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

// transmitAnswers adds the answers that are due.
func (q *QP) transmitAnswers(b *Batch) {
	for r := &q.resp; !r.answers.empty() && !b.full() && q.limiter.allows(q.now); {
		q.answerNext(b, &r.answers.list[r.answers.first])
	}
}

// transmitAck adds a NAK or an acknowledgement, once the answers before it have left.
func (q *QP) transmitAck(b *Batch) {
	r := &q.resp
	if !r.answers.empty() || b.full() {
		return
	}
	switch {
	case r.nak != 0:
		h := q.reply(wire.Acknowledge, r.nakAt)
		h.Syndrome = r.nak
		b.add(&h, nil)
	case r.gapDue:
		// Nothing behind the expected packet is acknowledged, because kept packets may still be
		// refused.
		h := q.reply(wire.ReadResponseOnly, r.expected)
		h.Syndrome = wire.NakSequence // see wire.Header.TellsGap
		if q.cfg.Announce {
			h.Reserved = wire.FromResponder
		}
		b.add(&h, q.gap(b))
	case r.ackDue:
		if q.ours {
			r.ackAt = r.expected - 1
		}
		h := q.reply(wire.Acknowledge, r.ackAt)
		b.add(&h, nil)
	}
	r.nak, r.gapDue, r.ackDue = 0, false, false
}

// reply returns the header of a packet of the responder.
func (q *QP) reply(opcode wire.Opcode, s seq) wire.Header {
	h := wire.Header{Opcode: opcode, PKey: defaultPKey, DestQP: q.Attr.DestQPNum, PSN: s.psn(),
		Syndrome: wire.Ack, MSN: q.resp.msn, Backward: q.resp.congested.echoes}
	q.resp.congested.echoes = false
	if q.ours && q.cfg.Grant != nil {
		h.Syndrome = *q.cfg.Grant
	}
	if s < q.resp.announced {
		h.Reserved = wire.FromResponder
	}
	return h
}

// answerNext adds the next packet of the oldest answer.
func (q *QP) answerNext(b *Batch, a *answer) {
	var h wire.Header
	var payload []byte
	if a.atomic {
		h = q.reply(wire.AtomicAcknowledge, a.next)
		h.Original = a.original
	} else {
		offset := a.sent << q.shift
		if n := min(a.length-offset, q.mtu()); n != 0 {
			var ok bool
			payload, ok = q.RemoteSlice(a.rkey, a.addr+offset, n, verbs.AccessRemoteRead)
			if !ok {
				q.answerGone(a)
				return
			}
			if guard.Race && a.again {
				payload = b.unseen(payload) // the peer may have completed the read
			}
		}
		h = q.reply(readOpcode(a.sent == 0, a.sent+1 == a.packets), a.next)
	}
	b.add(&h, payload)
	q.limiter.spend(len(payload))
	q.stats.Sent++
	a.sent++
	a.next++
	if a.sent == a.packets {
		q.resp.answers.pop()
	}
}

// answerGone handles an answer whose region was closed since it was asked for.
func (q *QP) answerGone(a *answer) {
	if a.again {
		q.resp.answers.pop() // a forger that has seen a packet of the connection can ask again
		return
	}
	at := a.next
	q.resp.answers.clear()
	q.reject(at, wire.NakRemoteAccess)
}

// readOpcode returns the opcode of a packet of the answer to a read.
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
