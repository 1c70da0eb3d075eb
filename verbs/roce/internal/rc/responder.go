package rc

import (
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// responder is the receiving side of a QP: it carries out the peer's requests in the order of their
// numbers.
//
// Invariant: everything before expected was carried out, once, and nothing behind it. While silent,
// a NAK for expected was sent or is due, and packets ahead of it cause no other one: those of a
// foreign peer are dropped, those of an end of ours are kept.
type responder struct {
	first    seq // the first number of the connection
	expected seq
	msn      uint32 // messages carried out
	message  message
	silent   bool

	ackDue  bool // an acknowledgement of the number ackAt is due
	ackAt   seq
	gapDue  bool          // a NAK for expected is due that lists the kept packets
	nak     wire.Syndrome // a NAK of the number nakAt that is due; 0 is none
	nakAt   seq
	answers answerQueue    // they leave before acknowledgements and NAKs
	atomics []atomicResult // the last ones, in case the peer asks again
	ahead   reorderBuffer
	// congested holds the reports due to the peer about packets that the network has marked.
	congested echo
	// announced is the end of the numbers whose answers announce this end, to a peer that has
	// announced itself.
	announced seq
}

// message is a message of the peer that has partly arrived.
type message struct {
	kind   messageKind
	at     uint64 // bytes that have arrived
	length uint64 // length of a WRITE
	addr   uint64
	rkey   uint32
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// atomicResult is the value that an atomic found.
type atomicResult struct {
	s        seq
	original uint64
}

// start begins to expect a number.
func (r *responder) start(first seq, reads int, pool *Pool) {
	*r = responder{first: first, expected: first, ahead: reorderBuffer{pool: pool}}
	r.allow(reads)
}

// allow sets how many reads and atomics the peer may have outstanding.
func (r *responder) allow(reads int) {
	r.answers.limit = reads
	if reads > cap(r.atomics) {
		r.atomics = append(make([]atomicResult, 0, reads), r.atomics...)
	}
}

// stop drops the message that has partly arrived, and the packets kept.
func (r *responder) stop() {
	r.message = message{}
	r.ahead.dropFrom(0)
}

// receiveRequest handles a packet of the requester.
func (q *QP) receiveRequest(h *wire.Header, payload []byte) {
	switch q.State {
	case verbs.StateRTR, verbs.StateRTS, verbs.StateSQD:
	default:
		// As if it had never arrived (IBTA 9.7.5.1, C9-80): a queue pair in ERR is silent, even if
		// the NAK that it has sent was lost. NICs and rdma_rxe do the same, and their requesters
		// expect no second answer.
		return
	}
	r := &q.resp
	s := r.expected.near(h.PSN)
	switch {
	case s < r.first: // another connection's, or the ends disagree on the first number
		q.stats.Unexpected++
		return
	case s < r.expected:
		q.stats.Duplicates++
		q.duplicate(h, s)
		return
	case s > r.expected && uint64(len(payload)) > q.mtu():
		q.stats.Broken++
		return // the memory for kept packets is bounded
	}
	forgot := r.ahead.n != 0 && h.Reserved != wire.Repeated && r.ahead.doubt(q.now, s)
	if s > r.expected {
		q.stats.Ahead++
		q.early(h, s, payload)
		return
	}
	q.carryOut(h, payload)
	for q.isReceiving() {
		early := r.ahead.take(r.expected)
		if early == nil {
			break
		}
		q.carryOut(&early.header, early.payload)
		r.ahead.pool.put(early)
	}
	r.gapDue = r.ahead.n != 0 && q.isReceiving()
	if forgot && q.isReceiving() {
		r.ackDue = true // the number shows the peer what was dropped
	}
}

// isReceiving reports whether the next packet can be carried out.
func (q *QP) isReceiving() bool { return q.State != verbs.StateErr && !q.resp.silent }

// early handles a packet ahead of the one that is expected. If the peer is an end of ours, the
// packet is kept and the gap is reported.
func (q *QP) early(h *wire.Header, s seq, payload []byte) {
	r := &q.resp
	if q.ours {
		if r.ahead.keep(q.now, r.expected, s, h, payload) && !r.silent {
			r.gapDue = r.ahead.n != 0 // of two with one number none is kept
		}
		return
	}
	if !r.silent {
		r.silent = true
		r.nak, r.nakAt = wire.NakSequence, r.expected
	}
}

// duplicate handles a packet that was carried out before: a packet that needs no answer is
// acknowledged again, a read is read again, and an atomic is answered with the value that it found
// (IBTA 9.7.5.1.2). A packet that cannot have been carried out before is not the peer's and is
// dropped.
//
// A foreign peer gets the acknowledgement for the packet itself. The last number carried out may
// belong to a read whose answer was lost, and rdma_rxe completes an acknowledged read without its
// data.
func (q *QP) duplicate(h *wire.Header, s seq) {
	r := &q.resp
	switch {
	case h.Opcode.IsRead():
		n := q.packets(uint64(h.Length))
		if q.Permits(verbs.OpRDMARead) == verbs.StatusSuccess && !q.tooLong(h) &&
			s+seq(n) <= r.expected {
			r.answers.addAgain(answer{next: s, packets: n, addr: h.Addr, rkey: h.RKey,
				length: uint64(h.Length)}, q.shift)
		}
	case h.Opcode.IsAtomic():
		for i := range r.atomics {
			if a := &r.atomics[i]; a.s == s {
				r.answers.addAgain(answer{atomic: true, next: s, packets: 1, original: a.original}, q.shift)
			}
		}
	default:
		if !r.ackDue || s > r.ackAt {
			r.ackDue, r.ackAt = true, s
		}
	}
}

func (q *QP) tooLong(h *wire.Header) bool { return uint64(h.Length) > q.cfg.MaxMsgSize }

// carryOut carries out the expected packet.
func (q *QP) carryOut(h *wire.Header, payload []byte) {
	r := &q.resp
	r.silent, r.nak = false, 0
	if why := q.checkPacket(h, len(payload)); why != 0 {
		q.stats.Broken++
		q.deny(why)
		return
	}
	q.stats.Received++
	switch {
	case h.Opcode.IsSend():
		q.receiveSend(h, payload)
	case h.Opcode.IsWrite():
		q.receiveWrite(h, payload)
	case h.Opcode.IsRead():
		q.receiveRead(h)
	default:
		q.receiveAtomic(h)
	}
}

// checkPacket checks that a packet continues the message under way, or begins one, and has the
// length that its place demands (IBTA 9.7.4.1). It returns the NAK for a wrong one, or 0.
func (q *QP) checkPacket(h *wire.Header, n int) wire.Syndrome {
	kind := noMessage
	switch {
	case h.Opcode.IsSend():
		kind = sendMessage
	case h.Opcode.IsWrite():
		kind = writeMessage
	}
	under := q.resp.message.kind
	if h.Opcode.Begins() != (under == noMessage) || under != noMessage && kind != under {
		return wire.NakInvalidRequest
	}
	mtu := int(q.mtu())
	switch {
	case kind == noMessage:
	case h.Opcode.IsFirst() || h.Opcode.IsMiddle():
		if n != mtu {
			return wire.NakInvalidRequest
		}
	case n > mtu || n == 0 && h.Opcode.IsLast():
		return wire.NakInvalidRequest
	}
	return 0
}

// proceed moves past the packet that was carried out.
func (q *QP) proceed(h *wire.Header, packets uint64) {
	r := &q.resp
	if h.Reserved != 0 {
		q.requestAnnounces(h)
	}
	r.expected += seq(packets)
	if h.Opcode.Ends() {
		r.msn = (r.msn + 1) & psnMask
		r.message = message{}
	}
	if h.AckReq {
		r.ackDue, r.ackAt = true, r.expected-1
	}
}

// notReady answers that no receive is posted. The peer must send the message again.
func (q *QP) notReady() {
	r := &q.resp
	r.silent = true
	r.nak, r.nakAt = wire.RNRNak(q.Attr.MinRNRTimer), r.expected
}

// receiveSend lands a packet of a SEND in the oldest receive.
func (q *QP) receiveSend(h *wire.Header, payload []byte) {
	r, rq := &q.resp, &q.RQ
	if rq.Consumed == rq.Posted {
		q.notReady()
		return
	}
	m := &r.message
	m.kind = sendMessage
	slot := rq.At(rq.Consumed)
	if m.at+uint64(len(payload)) > slot.Length || m.at+uint64(len(payload)) > q.cfg.MaxMsgSize {
		q.denyReceive(wire.NakInvalidRequest, verbs.StatusLocLenErr)
		return
	}
	if !q.scatter(rq.SGL(rq.Consumed), m.at, payload) {
		q.denyReceive(wire.NakRemoteOperation, verbs.StatusLocProtErr)
		return
	}
	m.at += uint64(len(payload))
	if h.Opcode.Ends() && !q.completeRecv(h, m.at) {
		return
	}
	q.proceed(h, 1)
}

// receiveWrite lands a packet of a WRITE at the address in its first packet. The order of the
// checks is that of [nic.QP.Permits]: the queue pair's rights, then a receive, then the key.
func (q *QP) receiveWrite(h *wire.Header, payload []byte) {
	m := &q.resp.message
	n := uint64(len(payload))
	begins := h.Opcode.Begins()
	length := m.length
	if begins {
		length = uint64(h.Length)
		if q.tooLong(h) || q.Permits(verbs.OpRDMAWrite) != verbs.StatusSuccess {
			q.deny(wire.NakInvalidRequest)
			return
		}
	}
	switch {
	case h.Opcode.HasImm() && q.RQ.Consumed == q.RQ.Posted:
		q.notReady()
		return
	case m.at+n > length, h.Opcode.Ends() && m.at+n != length:
		q.deny(wire.NakInvalidRequest)
		return
	}
	if begins {
		if length != 0 && !h.Opcode.IsOnly() { // a single packet is checked with its payload
			if _, ok := q.RemoteSlice(h.RKey, h.Addr, length, verbs.AccessRemoteWrite); !ok {
				q.deny(wire.NakRemoteAccess)
				return
			}
		}
		*m = message{kind: writeMessage, addr: h.Addr, rkey: h.RKey, length: length}
	}
	if n != 0 {
		to, ok := q.RemoteSlice(m.rkey, m.addr+m.at, n, verbs.AccessRemoteWrite)
		if !ok {
			q.deny(wire.NakRemoteAccess)
			return
		}
		nic.Move(to, payload)
	}
	m.at += n
	if h.Opcode.HasImm() && !q.completeRecv(h, length) {
		return
	}
	q.proceed(h, 1)
}

// completeRecv completes the oldest receive. It returns false if the completion was lost, as when
// the completion queue overruns: then the QP has failed, and the message is not acknowledged.
func (q *QP) completeRecv(h *wire.Header, n uint64) bool {
	m := nic.Message{Opcode: verbs.OpSend, Length: n, Imm: h.Imm, SrcQP: q.Attr.DestQPNum,
		Solicited: h.Solicited}
	switch {
	case h.Opcode.IsWrite():
		m.Opcode = verbs.OpRDMAWriteWithImm
	case h.Opcode.HasImm():
		m.Opcode = verbs.OpSendWithImm
	}
	slot, _ := q.RQ.Take()
	q.done = nic.Completion{}
	q.Received(&q.done, slot, &m)
	q.cfg.Sink.Complete(&q.done)
	return q.State != verbs.StateErr
}

// receiveRead queues the answer to a READ.
func (q *QP) receiveRead(h *wire.Header) {
	r, n := &q.resp, uint64(h.Length)
	switch {
	case q.tooLong(h), q.Permits(verbs.OpRDMARead) != verbs.StatusSuccess,
		r.answers.full(): // more than MaxDestRDAtomic of them (IBTA 9.7.4.1.4)
		q.deny(wire.NakInvalidRequest)
		return
	case n != 0:
		if _, ok := q.RemoteSlice(h.RKey, h.Addr, n, verbs.AccessRemoteRead); !ok {
			q.deny(wire.NakRemoteAccess)
			return
		}
	}
	packets := q.packets(n)
	r.ahead.dropBetween(r.expected+1, r.expected+seq(packets)) // the answer has these numbers
	r.answers.add(answer{next: r.expected, packets: packets, addr: h.Addr, rkey: h.RKey, length: n})
	q.proceed(h, packets)
	r.ackDue = false // the answer acknowledges it
}

// receiveAtomic carries out an atomic, and queues the answer.
func (q *QP) receiveAtomic(h *wire.Header) {
	r := &q.resp
	op, compareAdd := verbs.OpAtomicFetchAdd, h.SwapAdd
	if h.Opcode == wire.CompareSwap {
		op, compareAdd = verbs.OpAtomicCmpAndSwp, h.Compare
	}
	if h.Addr%8 != 0 || r.answers.full() || q.Permits(op) != verbs.StatusSuccess {
		q.deny(wire.NakInvalidRequest)
		return
	}
	word, ok := q.RemoteSlice(h.RKey, h.Addr, 8, verbs.AccessRemoteAtomic)
	if !ok {
		q.deny(wire.NakRemoteAccess)
		return
	}
	original := nic.FetchAndChange(op, compareAdd, h.SwapAdd, word)
	if len(r.atomics) == cap(r.atomics) {
		copy(r.atomics, r.atomics[1:])
		r.atomics = r.atomics[:len(r.atomics)-1]
	}
	r.atomics = append(r.atomics, atomicResult{r.expected, original})
	r.answers.add(answer{atomic: true, next: r.expected, packets: 1, original: original})
	q.proceed(h, 1)
	r.ackDue = false
}

// deny refuses the expected packet.
func (q *QP) deny(why wire.Syndrome) { q.reject(q.resp.expected, why) }

// reject answers a number with a NAK that ends the connection, and fails the QP: the peer broke the
// protocol, or has no right to its request. Answers that are due still leave, and the NAK behind
// them.
func (q *QP) reject(s seq, why wire.Syndrome) {
	event := verbs.EventQPReqErr
	if why == wire.NakRemoteAccess {
		event = verbs.EventQPAccessErr
	}
	q.resp.nak, q.resp.nakAt = why, s
	if q.State != verbs.StateErr {
		q.toError()
		q.cfg.Sink.Raise(event)
	}
}

// denyReceive is deny for a SEND that does not fit the oldest receive. The receive fails too, in
// place of an event.
func (q *QP) denyReceive(why wire.Syndrome, status verbs.Status) {
	q.resp.nak, q.resp.nakAt = why, q.resp.expected
	slot, _ := q.RQ.Take()
	q.fail(nic.Recv, slot, status)
	q.toError()
}

// gap returns the payload of a NAK between our own ends, which lists the kept packets: a bit for
// each number behind the expected one, from the lowest bit of the first byte on.
func (q *QP) gap(b *Batch) []byte {
	r := &q.resp
	bits := b.stage(int(r.ahead.highest-r.expected+31) / 32 * 4)
	clear(bits)
	for s := r.expected + 1; s <= r.ahead.highest; s++ {
		if r.ahead.find(s) != nil {
			i := int(s - r.expected - 1)
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}
