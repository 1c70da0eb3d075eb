package rc

import (
	"encoding/binary"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// This file has the requester's handling of the responder's packets.

// Receive takes a packet that has arrived for the QP. The caller has checked its ICRC, and that it
// comes from the peer. The QP uses the payload only during the call.
func (q *QP) Receive(now int64, h *wire.Header, payload []byte) {
	q.now = now
	switch {
	case h.Opcode == wire.Congestion:
		q.noticed()
	case h.Opcode.IsRequest():
		q.receiveRequest(h, payload)
	case q.State == verbs.StateRTS || q.State == verbs.StateSQD:
		q.receiveAnswer(h, payload)
	}
	if h.Marked { // now the peer's kind may be known
		q.marked(h)
	}
}

// receiveAnswer handles a packet of the responder.
func (q *QP) receiveAnswer(h *wire.Header, payload []byte) {
	r := &q.req
	s := r.una.near(h.PSN)
	if s < r.first || s >= r.next {
		q.answerToNothing(h, s)
		return
	}
	if q.announcing {
		q.answerAnnounces(h, s)
	}
	if s >= r.una && (h.Backward && q.ours || h.Marked && h.Opcode.IsReadResponse()) {
		q.yield()
	}
	if q.ours && s >= r.una && h.Opcode.HasAETH() && h.Syndrome.IsAck() {
		q.granted = h.Syndrome
	}
	switch {
	case h.TellsGap():
		if !q.ours {
			q.stats.Broken++ // no foreign end sends that
			return
		}
		q.acknowledgement(h, s, payload)
	case h.Opcode.IsReadResponse():
		q.readResponse(s, payload)
	case h.Opcode == wire.AtomicAcknowledge:
		q.atomicAnswer(h, s)
	default:
		q.acknowledgement(h, s, payload)
	}
	q.advance()
}

// answerToNothing handles an answer to a number that was not sent. It is from a stranger or for an
// earlier connection, unless the responder reports that it expects the next number: then it has a
// packet that is not from this end, and has carried out everything before that number.
func (q *QP) answerToNothing(h *wire.Header, s seq) {
	isReport := h.Opcode == wire.Acknowledge && h.Syndrome == wire.NakSequence || q.ours && h.TellsGap()
	if s != q.req.next || !isReport {
		q.stats.Unexpected++
		return
	}
	q.stats.NAKs++
	q.acknowledge(s)
	q.advance()
}

// acknowledgement handles an ACK or a NAK for a number.
func (q *QP) acknowledgement(h *wire.Header, s seq, payload []byte) {
	if h.Syndrome.IsAck() {
		q.acknowledge(s + 1)
		q.forgotten(s + 1)
		return
	}
	q.acknowledge(s)
	if h.Syndrome.IsRNR() {
		q.stats.RNRNAKs++
	} else {
		q.stats.NAKs++
	}
	if s < q.req.una || q.req.at(s).state == done {
		return // a late copy: the responder has carried the request out since
	}
	switch {
	case h.Syndrome == wire.NakSequence:
		q.sequenceError(s, payload)
	case h.Syndrome.IsRNR():
		q.receiverNotReady(s, h.Syndrome.Value())
	case h.Syndrome.IsNak():
		q.refusedByPeer(s, h.Syndrome)
	}
}

// acknowledge marks every number before end as done unless it belongs to a read or atomic, which
// needs its answer. Answers come in the order of the requests, so a missing packet of a read before
// end is lost.
func (q *QP) acknowledge(end seq) {
	r := &q.req
	if end <= r.una {
		return
	}
	next := max(r.acked, r.una)
	for i := range r.reads[:r.nreads] {
		if p := &r.reads[i]; next < p.end && p.first < end {
			q.markAllDone(next, p.first)
			next = p.end
		}
	}
	q.markAllDone(next, end)
	r.acked = max(r.acked, end)
	for i := range r.reads[:r.nreads] {
		if p := &r.reads[i]; p.first < end {
			p.kept = false
			q.suspectPart(p, min(p.end, end))
		}
	}
}

// suspectPart marks the missing packets of a read before end as lost, unless they may only be late.
func (q *QP) suspectPart(p *read, end seq) {
	r := &q.req
	for p.low < p.end && (p.low < r.una || r.at(p.low).state == done) {
		p.low++
	}
	for s := p.low; s < end; s++ {
		q.suspect(s)
	}
}

// readOf returns the read or atomic under way to which a number belongs, or nil.
func (r *requester) readOf(s seq) *read {
	for i := range r.reads[:r.nreads] {
		if p := &r.reads[i]; p.first <= s && s < p.end {
			return p
		}
	}
	return nil
}

// sequenceError handles a NAK with the number that the responder still expects. In the payload, an
// end of ours lists the kept numbers behind it. Without a list none are kept, because the responder
// does not know its peer yet.
func (q *QP) sequenceError(expected seq, has []byte) {
	r := &q.req
	if !q.ours || len(has) == 0 {
		q.missed(expected)
		q.goBack(expected)
		return
	}
	highest := expected
	for i, bits := range has {
		for bit := 0; bits != 0; bit, bits = bit+1, bits>>1 {
			s := expected + 1 + seq(8*i+bit)
			if bits&1 == 0 || s >= r.next {
				continue
			}
			highest = s
			switch p := r.readOf(s); {
			case p == nil:
				q.markKept(s)
			case !p.kept && r.at(s).state == flying:
				q.reached(s)
				p.kept = true // all of it: its request is the packet of its first number
			}
		}
	}
	for s := expected; s < highest; s++ {
		if s != expected && has[(s-expected-1)/8]>>((s-expected-1)%8)&1 != 0 {
			continue
		}
		p := r.readOf(s)
		switch {
		case p == nil && r.at(s).state == kept:
			q.markLost(s) // the responder has forgotten it
			continue
		case p != nil && s == p.first:
			p.kept = false
		case p != nil && p.kept:
			continue
		}
		q.suspect(s)
	}
}

// forgotten marks as lost the packets that the responder had kept and has dropped: the one that it
// expects, and those behind it.
func (q *QP) forgotten(expected seq) {
	r := &q.req
	if !q.ours || expected < r.una {
		return
	}
	for s := expected; s < r.next; {
		p := r.readOf(s)
		switch {
		case p == nil && r.at(s).state == kept:
			q.markLost(s)
			s++
		case p != nil && p.kept:
			p.kept = false
			q.markLost(s)
			s = p.end
		default:
			return
		}
	}
}

// goBack marks everything from a number on as lost.
func (q *QP) goBack(from seq) {
	r := &q.req
	for s := max(from, r.una); s < r.next; s++ {
		if p := r.readOf(s); p != nil {
			p.kept = false
		}
		q.markLost(s)
	}
}

// receiverNotReady handles an RNR NAK: the responder had no receive for the message at a number.
func (q *QP) receiverNotReady(s seq, timer uint8) {
	t := &q.req.timers
	if q.now < t.rnr || q.req.at(s).state == lost {
		return // for a packet that was under way at the first NAK, or a copy
	}
	if q.Attr.RNRRetry != verbs.RNRRetryForever {
		if t.rnrTries >= int(q.Attr.RNRRetry) {
			q.failAt(s, verbs.StatusRNRRetryExcErr)
			return
		}
		t.rnrTries++
	}
	t.rnr = q.now + int64(verbs.RNRTimer(timer))
	q.goBack(s)
}

// refusedByPeer handles a NAK that ends the connection.
func (q *QP) refusedByPeer(s seq, why wire.Syndrome) {
	switch why {
	case wire.NakRemoteAccess:
		q.failAt(s, verbs.StatusRemAccessErr)
	case wire.NakRemoteOperation:
		q.failAt(s, verbs.StatusRemOpErr)
	default:
		q.failAt(s, verbs.StatusRemInvReqErr)
	}
}

// failAt fails the request to which a number belongs. If an earlier read still waits for a lost
// answer, the failure is not reported: the peer answers no more, and the read runs out of retries.
func (q *QP) failAt(s seq, status verbs.Status) {
	slot := q.find(s)
	q.failRequest(q.SQ.At(slot), status)
}

// readResponse handles a packet of the answer to a read.
func (q *QP) readResponse(s seq, payload []byte) {
	r := &q.req
	if s < r.una {
		q.stats.Duplicates++
		return
	}
	part := r.readOf(s)
	if part == nil || r.at(s).state == done {
		q.stats.Unexpected++
		return
	}
	// The responder sends answers in order, and has executed all before this one.
	q.acknowledge(part.first)
	if !q.ours && s > r.una && q.missing(part, s) {
		// It comes behind a gap: the missing packets and this one are requested again.
		q.stats.Ahead++
		return
	}
	slot := q.find(s)
	sl := q.SQ.At(slot)
	offset := uint64(s-seq(sl.Mark)) << q.shift
	if sl.Opcode != verbs.OpRDMARead ||
		uint64(len(payload)) != min(sl.Length-offset, q.mtu()) {
		q.stats.Broken++
		q.failAt(s, verbs.StatusBadRespErr)
		return
	}
	if !q.land(slot, offset, payload) {
		q.failAt(s, verbs.StatusLocProtErr)
		return
	}
	q.stats.Received++
	q.suspectPart(part, s)
	q.answered(part, s)
}

// missing reports whether a packet of a read before a number has not arrived. Then that packet and
// everything behind it are lost.
func (q *QP) missing(part *read, s seq) bool {
	n := part.low
	for n < s && (n < q.req.una || q.req.at(n).state == done) {
		n++
	}
	if part.low = n; n == s {
		return false
	}
	q.suspect(n)
	if q.req.at(n).state == lost {
		for ; n < part.end; n++ {
			q.markLost(n)
		}
	}
	return true
}

// atomicAnswer handles the answer to an atomic.
func (q *QP) atomicAnswer(h *wire.Header, s seq) {
	r := &q.req
	if s < r.una {
		q.stats.Duplicates++
		return
	}
	part := r.readOf(s)
	if part == nil || r.at(s).state == done {
		q.stats.Unexpected++
		return
	}
	slot := q.find(s)
	if !q.SQ.At(slot).Opcode.IsAtomic() || !h.Syndrome.IsAck() {
		q.stats.Broken++
		q.failAt(s, verbs.StatusBadRespErr)
		return
	}
	q.acknowledge(part.first)
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], h.Original)
	if !q.land(slot, 0, word[:]) {
		q.failAt(s, verbs.StatusLocProtErr)
		return
	}
	q.stats.Received++
	q.answered(part, s)
}

// answered marks a number of a read or atomic as done. Its place is free only when all before it
// are answered too, because the responder remembers the last ones, answered or not.
func (q *QP) answered(part *read, s seq) {
	r := &q.req
	q.markDone(s)
	part.left--
	n := 0
	for n < r.nreads && r.reads[n].left == 0 {
		n++
	}
	r.nreads = copy(r.reads[:], r.reads[n:r.nreads])
}

// land writes bytes of an answer to the local memory of a request. It returns false if that memory
// is gone.
func (q *QP) land(slot, offset uint64, from []byte) bool {
	return q.scatter(q.SQ.SGL(slot), offset, from)
}

// scatter copies bytes into scatter-gather elements, from an offset on.
func (q *QP) scatter(sgl []verbs.SGE, offset uint64, from []byte) bool {
	for i := range sgl {
		if len(from) == 0 {
			return true
		}
		e := &sgl[i]
		length := uint64(e.Length)
		if offset >= length {
			offset -= length
			continue
		}
		// The region must cover the whole element, even the part that the message does not reach.
		to, ok := q.LocalSlice(e.LKey, e.Addr, length, verbs.AccessLocalWrite)
		if !ok {
			return false
		}
		to = to[offset:][:min(uint64(len(from)), length-offset)]
		nic.Move(to, from[:len(to)])
		from, offset = from[len(to):], 0
	}
	return len(from) == 0
}

// advance moves the window past the numbers that are done, and completes the requests that it has
// passed. A failed request ends the connection once all before it are complete.
func (q *QP) advance() {
	r := &q.req
	if q.State != verbs.StateRTS && q.State != verbs.StateSQD {
		return // it has failed
	}
	for r.una < r.next && r.at(r.una).state == done {
		r.una++
	}
	if q.ours {
		r.window.passed(q.now, r.una)
		if r.una < r.next && r.at(r.una).state == flying && r.order.passes(r.una, r.at(r.una).sentAt) {
			q.findLate()
		}
	}
	for q.SQ.Acked != r.numbered {
		s := q.SQ.At(q.SQ.Acked)
		if s.Status == verbs.StatusSuccess && q.span(s).end > r.una {
			return
		}
		slot, _ := q.SQ.TakeUnended()
		if s.Status != verbs.StatusSuccess {
			q.fail(nic.Send, slot, s.Status)
			q.Fail()
			return
		}
		if q.Signaled(s) {
			q.done = nic.Completion{}
			q.Sent(&q.done, slot, s)
			q.cfg.Sink.Complete(&q.done)
		}
	}
}
