package rc

import (
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// requester is the sending side of a QP: it cuts the requests of the send queue into packets and
// tracks those under way.
//
// Invariant: una <= next <= end, and next-una <= len(track). Each number from una to next-1 is
// flying, kept, lost or done; flying and lost are their counts. una is not done.
type requester struct {
	first seq // the first number of the connection
	una   seq // the oldest number that is not done
	next  seq // the first one that was never sent
	end   seq // one past the last packet of the last request posted

	track  []track // the numbers from una to next-1, indexed by their low bits
	flying int     // numbers under way
	lost   int     // numbers to be sent again
	resend seq     // no number before it is lost
	acked  seq     // one past the highest number acknowledged together with all before it

	numbered uint64 // requests whose packets have numbers
	sending  uint64 // the request that next belongs to; equal to numbered if there is none

	reads    [maxReads]read // reads and atomics under way, oldest first
	nreads   int
	quiet    int  // packets sent since the last one that asked for an acknowledgement
	draining bool // SQD: no request begins
	refused  bool // a request has failed and waits for earlier ones: no new request begins
	timers   timers
	order    order
	window   window        // between two ends of ours
	foreign  foreignWindow // towards others
}

// track is the state of one number under way.
type track struct {
	sentAt int64
	state  packetState
	resent bool
}

type packetState uint8

const (
	flying packetState = iota + 1
	kept               // the responder has it, but waits for an earlier one and may still refuse it
	lost
	done
)

// read is a READ or an atomic under way. A READ of many packets is requested in parts, so that its
// answer stays within the window; the peer counts each part as a request.
//
// Invariant: first <= low <= end; everything before low is done.
type read struct {
	first, end seq
	low        seq  // nothing before it is missing
	left       int  // packets of the answer that are missing
	kept       bool // the responder has the request, but waits for an earlier packet
}

const (
	maxReads = 16
	// maxTrack is the most packets under way to an end of this package.
	maxTrack = 1024
	// foreignTrack is the most packets under way to any other peer: rdma_rxe's own limit
	// (RXE_MAX_UNACKED_PSNS).
	foreignTrack = 128
	// readPart is the most packets of answer for one READ request.
	readPart = 64
	// foreignAckEvery and ackEvery are the most packets sent without requesting an acknowledgement.
	foreignAckEvery = 32
	ackEvery        = 60
	// ackWithin is the longest time a rate-limited QP sends without requesting an acknowledgement.
	ackWithin = 4 * int64(time.Millisecond)
)

// start begins a connection whose first packet has the number first.
func (r *requester) start(q *QP, first seq) {
	*r = requester{first: first, una: first, next: first, end: first, resend: first, acked: first,
		numbered: q.SQ.Posted, sending: q.SQ.Posted}
	r.window.start(int(q.mtu()), q.cfg.Window)
	r.foreign.start()
	r.order.at = Never
}

// stop drops everything under way, when the QP fails.
func (r *requester) stop() {
	r.una, r.next, r.resend, r.acked = r.end, r.end, r.end, r.end
	r.flying, r.lost, r.nreads = 0, 0, 0
	r.timers = timers{}
}

func (r *requester) at(s seq) *track { return &r.track[int(s)&(len(r.track)-1)] }

// Posted numbers the packets of the requests added to the queue.
func (q *QP) Posted() {
	if q.State == verbs.StateErr {
		q.flush()
		return
	}
	for r := &q.req; r.numbered != q.SQ.Posted; r.numbered++ {
		s := q.SQ.At(r.numbered)
		s.Mark = int64(r.end)
		r.end = q.span(s).end
	}
}

// span is a range of numbers, from first to end-1.
type span struct{ first, end seq }

// span returns the numbers of a request in the send queue.
func (q *QP) span(s *nic.SendSlot) span {
	n := seq(1)
	if !s.Opcode.IsAtomic() {
		n = seq(q.packets(s.Length))
	}
	return span{seq(s.Mark), seq(s.Mark) + n}
}

// find returns the request to which a number from una to next-1 belongs.
func (q *QP) find(s seq) uint64 {
	lo, hi := q.SQ.Acked, q.req.numbered
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; seq(q.SQ.At(mid).Mark) <= s {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// maySend reports whether requests may leave: the state allows it, and the receiver is not waiting
// out an RNR timer.
func (q *QP) maySend() bool {
	return (q.State == verbs.StateRTS || q.State == verbs.StateSQD) && q.req.timers.isReady(q.now)
}

// transmitRequests adds packets of requests: lost ones, then new ones.
func (q *QP) transmitRequests(b *Batch) {
	if !q.maySend() {
		return
	}
	r := &q.req
	for more := true; more && (r.lost != 0 || r.next != r.end) && !b.full() && q.limiter.allows(q.now); {
		if r.lost != 0 {
			more = q.resendNext(b)
		} else {
			more = q.sendNext(b)
		}
	}
}

// resendNext sends the first lost number again. It returns false if the window is full, or the
// request has failed. The oldest number may leave even if the window is full: its answer shows
// which of the others are lost too.
func (q *QP) resendNext(b *Batch) bool {
	r := &q.req
	for r.resend = max(r.resend, r.una); r.at(r.resend).state != lost; r.resend++ {
	}
	slot := q.find(r.resend)
	s := q.SQ.At(slot)
	if r.resend != r.una && r.flying >= q.windowFor(s) {
		return false
	}
	if r.resend != r.una && q.allowed <= 0 {
		q.heldBack = true
		return false
	}
	n := 1
	if s.Opcode == verbs.OpRDMARead {
		part := r.readOf(r.resend)
		for last := r.resend + 1; last < part.end && r.at(last).state == lost; last++ {
			n++
		}
	}
	if !q.send(b, slot, s, q.span(s), r.resend, n) {
		return false
	}
	for range n {
		t := r.at(r.resend)
		t.state, t.sentAt, t.resent = flying, q.now, true
		r.resend++
	}
	r.lost -= n
	r.flying += n
	q.allowed -= n
	q.stats.Resent += uint64(n)
	return true
}

// sendNext sends the next packet for the first time; for a read, the request for its next part. It
// returns false when that may not leave yet, or the request has failed.
func (q *QP) sendNext(b *Batch) bool {
	r, slot := &q.req, q.req.sending
	s := q.SQ.At(slot)
	sp := q.span(s)
	if s.Status != verbs.StatusSuccess || r.next == sp.first && !q.mayBegin(slot, s) {
		return false
	}
	size, limit := q.windowFor(s), q.trackLimit()
	room := min(min(size, limit)-r.flying, limit-int(r.next-r.una))
	if room <= 0 && r.quiet != 0 && int(r.next-r.una) < limit {
		room = 1 // the window has shrunk: perhaps no packet under way requests an acknowledgement
	}
	n := 1
	if s.Opcode == verbs.OpRDMARead {
		n = int(min(sp.end-r.next, readPart))
	}
	if room < min(n, max(size/2, 1)) {
		return false // wait for room rather than send a much shorter part of a read
	}
	n = min(n, room)
	if s.Answered() {
		if r.nreads == len(r.reads) || r.nreads >= int(q.Attr.MaxRDAtomic) {
			return false
		}
	}
	if q.allowed <= 0 {
		q.heldBack = true
		return false
	}
	n = min(n, q.allowed)
	if !q.send(b, slot, s, sp, r.next, n) {
		return false
	}
	if s.Answered() {
		r.reads[r.nreads] = read{first: r.next, end: r.next + seq(n), low: r.next, left: n}
		r.nreads++
	}
	q.growTrack(int(r.next-r.una) + n)
	if r.una == r.next {
		r.timers.restart(q.now)
	}
	for range n {
		*r.at(r.next) = track{sentAt: q.now, state: flying}
		r.next++
	}
	r.flying += n
	q.allowed -= n
	if r.next == sp.end {
		r.sending++ // before the next send, when its slot may be in use again
	}
	return true
}

// mayBegin reports whether the first packet of a request may leave. A request that is wrong, or
// whose memory is wrong, fails here.
func (q *QP) mayBegin(slot uint64, s *nic.SendSlot) bool {
	r := &q.req
	if r.draining || r.refused || s.Flags&verbs.SendFence != 0 && r.nreads != 0 {
		return false
	}
	if status := q.Local(nil, slot); status != verbs.StatusSuccess {
		q.failRequest(s, status)
		return false
	}
	return true
}

// failRequest gives a request a status. The request, and with it the connection, ends when the
// earlier ones are complete; no later one begins.
func (q *QP) failRequest(s *nic.SendSlot, status verbs.Status) {
	s.Status = status
	q.req.refused = true
	q.advance()
}

// window returns the limit of packets under way.
func (q *QP) window() int {
	if q.ours {
		return int(q.req.window.packets)
	}
	if q.isUnknown() {
		return 1
	}
	return int(q.req.foreign.packets)
}

// IsShrunk reports whether the window is below the one that a connection starts with.
func (q *QP) IsShrunk() bool { return q.window() < startWindow }

// windowFor returns the limit of numbers under way for a packet of a request. The answer to a read
// must also fit into the window that the owner of the QP has set.
func (q *QP) windowFor(s *nic.SendSlot) int {
	if s.Opcode == verbs.OpRDMARead {
		return min(q.window(), int(q.req.window.limit))
	}
	return q.window()
}

// trackLimit returns how many numbers may be tracked.
func (q *QP) trackLimit() int {
	if q.ours {
		return maxTrack
	}
	return foreignTrack
}

// growTrack makes room for n numbers from una on.
func (q *QP) growTrack(n int) {
	r := &q.req
	if n <= len(r.track) {
		return
	}
	size := max(len(r.track), 8)
	for size < n {
		size *= 2
	}
	old := *r
	r.track = make([]track, size)
	for s := r.una; s != r.next; s++ {
		*r.at(s) = *old.at(s)
	}
}

// send adds the packet with a number, or the request for n packets of a read. If the request's
// memory is gone, it fails the request and returns false.
func (q *QP) send(b *Batch, slot uint64, s *nic.SendSlot, sp span, first seq, n int) bool {
	h := wire.Header{PKey: defaultPKey, DestQP: q.Attr.DestQPNum, PSN: first.psn()}
	switch {
	case first != q.req.next:
		if q.ours {
			h.Reserved = wire.Repeated
		}
	case q.announcing:
		h.Reserved = wire.FromRequester
	}
	offset := uint64(first-sp.first) * q.mtu()
	var payload []byte
	switch {
	case s.Opcode == verbs.OpRDMARead:
		h.Opcode, h.AckReq = wire.ReadRequest, true
		h.Addr, h.RKey = s.RemoteAddr+offset, s.RKey
		h.Length = uint32(min(s.Length-offset, uint64(n)*q.mtu()))
	case s.Opcode.IsAtomic():
		h.Opcode, h.AckReq = wire.FetchAdd, true
		h.Addr, h.RKey, h.SwapAdd, h.Compare = s.RemoteAddr, s.RKey, s.CompareAdd, 0
		if s.Opcode == verbs.OpAtomicCmpAndSwp {
			h.Opcode, h.SwapAdd, h.Compare = wire.CompareSwap, s.Swap, s.CompareAdd
		}
	default:
		isFirst, isLast := first == sp.first, first+1 == sp.end
		h.Opcode = dataOpcode(s.Opcode, isFirst, isLast)
		h.Solicited = isLast && s.Flags&verbs.SendSolicited != 0
		h.AckReq = q.wantsAck(s, first, isLast)
		h.Addr, h.RKey, h.Length, h.Imm = s.RemoteAddr, s.RKey, uint32(s.Length), s.Imm
		var ok bool
		if payload, ok = q.payload(b, slot, s, offset, min(s.Length-offset, q.mtu())); !ok {
			q.failRequest(s, verbs.StatusLocProtErr)
			return false
		}
	}
	b.add(&h, payload)
	q.stats.Sent++
	q.limiter.spend(len(payload))
	return true
}

// defaultPKey is the only partition that there is: full membership of the default one.
const defaultPKey = 0xffff

// wantsAck reports whether the packet with a number requests an acknowledgement. These do: the last
// one posted, the last of a signaled request, every so many packets, and packets
// that fill the window or were lost before, because nothing else might be sent behind them.
func (q *QP) wantsAck(s *nic.SendSlot, n seq, isLast bool) bool {
	r := &q.req
	every := foreignAckEvery
	if q.ours {
		every = ackEvery
	}
	every = min(every, max(q.window()/4, 1)) // so that it comes even if the window shrinks
	if q.limiter.rate != 0 {                 // often enough for the acknowledgement timeout
		every = min(every, q.limiter.packetsIn(ackWithin, q.mtu()))
	}
	r.quiet++
	if isLast && (n+1 == r.end || q.Signaled(s)) ||
		n < r.next || r.quiet >= every || q.allowed <= 1 || r.flying+1 >= min(q.window(), q.trackLimit()) ||
		int(n+1-r.una) >= q.trackLimit() {
		r.quiet = 0
		return true
	}
	return false
}

// dataOpcode returns the opcode of a packet of a SEND or WRITE.
func dataOpcode(o verbs.Opcode, isFirst, isLast bool) wire.Opcode {
	opcode := wire.WriteMiddle
	switch {
	case isFirst && isLast:
		opcode = wire.WriteOnly
	case isFirst:
		opcode = wire.WriteFirst
	case isLast:
		opcode = wire.WriteLast
	}
	if isLast && o.HasImm() {
		opcode++ // each opcode with an immediate follows the one without
	}
	if o.IsSend() {
		opcode -= wire.WriteFirst - wire.SendFirst
	}
	return opcode
}

// payload returns n bytes of a request's message from an offset on: a piece of its memory, or a
// copy if they lie in several pieces.
func (q *QP) payload(b *Batch, slot uint64, s *nic.SendSlot, offset, n uint64) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	if s.Flags&verbs.SendInline != 0 {
		return q.SQ.Inlined(slot)[offset : offset+n], true
	}
	var to []byte // the filled part of the copy
	staged := len(b.staging)
	for _, e := range q.SQ.SGL(slot) {
		length := uint64(e.Length)
		if offset >= length {
			offset -= length
			continue
		}
		piece, ok := q.LocalSlice(e.LKey, e.Addr+offset, min(n, length-offset), 0)
		if !ok {
			b.staging = b.staging[:staged]
			return nil, false
		}
		if to == nil {
			if uint64(len(piece)) == n {
				return piece, true
			}
			to = b.stage(int(n))[:0]
		}
		to = append(to, piece...)
		n -= uint64(len(piece))
		if offset = 0; n == 0 {
			break
		}
	}
	return to, true
}
