package shm

import (
	"encoding/binary"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// requester is the sending side of a queue pair: it publishes requests in its lane and takes what
// the responder reports.
//
// Invariant: lane.cursor <= published <= lane.cursor+ringSlots, and tail <= head <=
// tail+windowBytes. flights[n%ringSlots] belongs to slot n, from lane.cursor to published.
type requester struct {
	lane      *lane // nil before RTS, and once the queue pair has failed
	flights   []flight
	published uint64 // slots
	// The bytes from tail to head of the window are in use.
	head, tail uint64
	// begun is set while some slots of the head request of the send queue are published, but not
	// all; at bytes of it are.
	begun bool
	at    uint64
	// taken counts the receives of the peer that published messages take.
	taken uint64
	// answered counts reads and atomics whose answers have not come.
	answered int
	// What this end does itself: the peer's grants, as of the versions of wordGrants and of the
	// link's mappings; the last value of wordHold, odd within send only; the bytes since that was
	// stored, and those since the lock was taken.
	grants            []granted
	version, mappings uint64
	holds             uint64
	held, copied      uint64
	// payloads is the number of published slots up to the last one that moves bytes.
	payloads uint64
	// detours counts the requests in a row that have taken the ring only because of those before.
	detours int
	// around is the number, plus one, of a request that takes the ring because its region was
	// withdrawn.
	around uint64
	// asked is the number of published slots up to the last one whose request is signaled.
	asked uint64
	// failed is set once a request has failed at this end. It is the last that was executed; it
	// ends when all before it have.
	failed bool
	// awaitsReceive is set while the head request waits for a receive of the peer.
	awaitsReceive bool
	// orphaned is set once the peer's process has died.
	orphaned bool
	// seen is lane.cursor at the last tick of the timer, and quiet the number of ticks in a row
	// that have found nothing new.
	seen  uint64
	quiet int
}

// flight is what the requester keeps of a published slot.
type flight struct {
	seq  uint64 // the request's number
	at   uint64 // offset of the slot's payload in the message
	end  uint64 // the window's head behind it
	n    uint32
	last bool // it ends the message
	// behind is how many requests after it this end has carried out itself.
	behind uint32
}

// vendorDied is the vendor code where the peer's process has died, or was never there: of the
// verbs.StatusRetryExcErr that ends the oldest request, and of what is flushed behind it.
const vendorDied = 0x53484d01

// send publishes what may leave of the send queue.
func (q *QP) send() {
	o := &q.out
	switch {
	case o.lane == nil:
		return
	case o.lane.link.ended && q.core.SQ.Acked != q.core.SQ.Posted:
		q.die()
		return
	case q.dev.down.Load():
		q.watch()
		return
	}
	l, before := o.lane, o.published
	o.copied = 0
	if l.unfinished.Load() { // to store costs more
		l.unfinished.Store(false)
	}
	beginLanding()
	for sq := &q.core.SQ; q.core.State == verbs.StateRTS && !o.failed && sq.Executed != sq.Posted; {
		if !q.sendSlot() {
			break
		}
	}
	o.release(l)
	endLanding()
	if o.lane == nil {
		return // a completion queue has overrun, and the queue pair failed with it
	}
	if o.published != before {
		o.lane.link.ring()
	}
	if q.waits() {
		if l.calm = 0; !l.wanted.Load() {
			l.wanted.Store(true)
		}
	}
	if o.published != o.lane.cursor || q.core.SQ.Executed != q.core.SQ.Posted && !o.awaitsReceive {
		q.watch()
	}
	if o.failed {
		q.settle()
	}
}

// waits reports whether the peer's report matters now: a request that it ends is signaled, or
// something cannot leave, or soon could not.
func (q *QP) waits() bool {
	o := &q.out
	return o.asked > o.lane.cursor || q.core.SQ.Executed != q.core.SQ.Posted || o.failed ||
		o.published-o.lane.cursor > ringSlots/4
}

// sendSlot publishes the next slot of the head request; false if it must wait, or has failed.
func (q *QP) sendSlot() bool {
	o, d := &q.out, q.dev
	if o.published-o.lane.cursor == ringSlots {
		return false
	}
	seq := q.core.SQ.Executed
	s := q.core.SQ.At(seq)
	answered := s.Answered()
	if !o.begun && !q.mayBegin(s, answered) {
		return false
	}
	pieces := &d.pieces
	pieces.Reset()
	if status := q.core.Local(pieces, seq); status != verbs.StatusSuccess {
		q.failHead(status)
		return false
	}
	inline := s.Length <= inlineBytes && !answered
	if !o.begun {
		switch memory := q.reach(s); {
		case memory == nil:
			o.detours, o.at = 0, 0 // if a part was written directly, the ring begins anew
		case o.hasOrder():
			o.detours = 0
			return q.direct(s, memory)
		case s.Length > inlineBytes || o.detours == mostDetours:
			return false // until the payloads before it have arrived
		default:
			o.detours++
		}
	}
	o.release(o.lane) // before what may take longer than the owner of an arena should wait
	n := min(s.Length-o.at, mostBytes)
	var out slot
	out.op, out.imm, out.addr, out.rkey, out.n = s.Opcode, s.Imm, s.RemoteAddr+o.at, s.RKey, uint32(n)
	if inline {
		out.flags = slotInline
		d.putInline(&out, pieces.Bytes)
	} else {
		at, ok := o.take(n)
		if !ok {
			return false
		}
		if !answered {
			gather(o.lane.window[at:at+n], pieces.Bytes, o.at)
		}
		out.payload = [4]uint64{at, s.Length, s.CompareAdd, s.Swap}
	}
	last := o.at+n == s.Length
	if !o.begun {
		out.flags |= slotFirst
		if takesReceive(s.Opcode) {
			o.taken++
		}
		if answered {
			o.answered++
		}
	}
	if last {
		out.flags |= slotLast
	}
	if s.Flags&verbs.SendSolicited != 0 {
		out.flags |= slotSolicited
	}
	o.flights[o.published%ringSlots] = flight{seq: seq, at: o.at, end: o.head, n: uint32(n), last: last}
	o.lane.publish(o.published, &out)
	o.published++
	if n != 0 {
		o.payloads = o.published
	}
	if q.core.Signaled(s) {
		o.asked = o.published
	}
	o.begun, o.at = !last, o.at+n
	if last {
		o.at = 0
		q.core.SQ.Executed++
	}
	return true
}

// putInline puts a payload into the slot. A word, as most notifications carry, does not take the
// way through memory.
func (d *Device) putInline(s *slot, pieces [][]byte) {
	if s.n == 8 && len(pieces) == 1 {
		s.payload[0] = nic.Load64(pieces[0])
		return
	}
	gather(d.scratch[:s.n], pieces, 0)
	for i := range s.payload {
		s.payload[i] = binary.NativeEndian.Uint64(d.scratch[8*i:])
	}
}

func takesReceive(op verbs.Opcode) bool { return op.IsSend() || op.HasImm() }

// mayBegin reports whether the head request may begin: the peer is there, has a receive if the
// request takes one, and what a fence waits for has ended.
func (q *QP) mayBegin(s *nic.SendSlot, answered bool) bool {
	o := &q.out
	// The words that were seen last suffice mostly. To look at the present ones is to wait for the
	// peer's processor.
	l := o.lane
	if laneState(l.state&stateMask) != laneOpen && laneState(l.load(wordState)&stateMask) != laneOpen {
		return false
	}
	if o.answered != 0 && (s.Flags&verbs.SendFence != 0 ||
		answered && o.answered >= int(q.core.Attr.MaxRDAtomic)) {
		return false
	}
	if !takesReceive(s.Opcode) || l.receives > o.taken || l.load(wordReceives) > o.taken {
		if o.awaitsReceive {
			q.endReceiveWait()
		}
		return true
	}
	// A request that fails at this end fails without a receive too.
	if status := q.core.Local(nil, q.core.SQ.Executed); status != verbs.StatusSuccess {
		q.failHead(status)
		return false
	}
	if o.published != l.cursor {
		return false // the peer may be silent; it is not ready only once it has answered all before
	}
	if !o.awaitsReceive {
		o.awaitsReceive = true
		l.store(wordAwaitsReceive, 1)
		if l.load(wordReceives) > o.taken { // it was posted before the peer could see the word
			q.endReceiveWait()
			return true
		}
		switch tries := q.core.Attr.RNRRetry; tries {
		case verbs.RNRRetryForever:
		case 0:
			q.endReceiveWait()
			q.failHead(verbs.StatusRNRRetryExcErr)
		default:
			pause := verbs.RNRTimer(uint8(l.load(wordState) >> 8 & 31))
			q.dev.timers.arm(&q.rnrTimer, q.dev.now()+int64(pause)*int64(tries))
		}
	}
	return false
}

// endReceiveWait ends the wait for a receive.
func (q *QP) endReceiveWait() {
	q.out.awaitsReceive = false
	q.out.lane.store(wordAwaitsReceive, 0)
	q.dev.timers.heap.Disarm(&q.rnrTimer)
}

// take takes n bytes of the window that lie together.
func (o *requester) take(n uint64) (at uint64, ok bool) {
	at = o.head % windowBytes
	skip := uint64(0)
	if at+n > windowBytes {
		skip, at = windowBytes-at, 0
	}
	size := (n + grain - 1) &^ (grain - 1)
	if o.head+skip+size-o.tail > windowBytes {
		return 0, false
	}
	o.head += skip + size
	return at, true
}

// gather fills dst with a payload from an offset on.
func gather(dst []byte, pieces [][]byte, skip uint64) {
	for _, p := range pieces {
		if skip >= uint64(len(p)) {
			skip -= uint64(len(p))
			continue
		}
		p = p[skip:]
		skip = 0
		n := min(len(dst), len(p))
		nic.Move(dst[:n], p[:n])
		if dst = dst[n:]; len(dst) == 0 {
			return
		}
	}
}

// scatter writes a part of a payload to its place, offset bytes into the memory.
func scatter(pieces [][]byte, offset uint64, from []byte) {
	for _, p := range pieces {
		if offset >= uint64(len(p)) {
			offset -= uint64(len(p))
			continue
		}
		p = p[offset:]
		offset = 0
		n := min(len(from), len(p))
		nic.Move(p[:n], from[:n])
		if from = from[n:]; len(from) == 0 {
			return
		}
	}
}

// failHead fails the head request at this end.
func (q *QP) failHead(status verbs.Status) {
	s := q.core.SQ.At(q.core.SQ.Executed)
	s.Status, s.Local = status, true
	q.core.SQ.Executed++
	q.out.failed, q.out.begun, q.out.at = true, false, 0
}

// settle ends the request that has failed at this end, once all before it have ended.
func (q *QP) settle() {
	if sq := &q.core.SQ; q.out.failed && sq.Acked+1 == sq.Executed {
		q.endWith(sq.At(sq.Acked).Status, 0)
	}
}

// endWith ends the oldest request without success, and the queue pair with it.
func (q *QP) endWith(status verbs.Status, vendor uint32) {
	seq, ok := q.core.SQ.TakeUnended()
	if ok {
		q.completeError(nic.Send, seq, status, vendor)
	}
	told := ok || q.out.orphaned && !q.core.RQ.Empty() // the receives are flushed with vendorDied
	q.toError()
	if !told {
		q.dev.core.Publish(verbs.Event{Type: verbs.EventQPFatal, QPNum: q.core.Num})
	}
}

// collect takes what the responder has reported since the last time. Call it with both locks.
func (q *QP) collect() {
	o, l := &q.out, q.out.lane
	// In this order: what the responder closes or refuses it has counted before.
	state, refusal := l.load(wordState), verbs.Status(l.load(wordRefusal))
	l.receives = l.load(wordReceives)
	done := l.load(wordDone)
	l.state = state
	if laneState(state&stateMask) == laneClosed && o.awaitsReceive {
		q.endReceiveWait() // there will be no receive; the peer is silent
	}
	if done-l.cursor > o.published-l.cursor {
		q.endWith(verbs.StatusBadRespErr, 0) // it counts what was never published, or backwards
		return
	}
	for l.cursor != done {
		f := &o.flights[l.cursor%ringSlots]
		if !q.ended(f) {
			return
		}
		o.tail = f.end
		l.cursor++
	}
	if q.waits() {
		l.calm = 0
	} else if l.calm++; l.calm == calmReports {
		l.wanted.Store(false)
	}
	// A lane that is closed without a refusal is silence, as on every NIC: the timer ends it. The
	// reason may be a request on another queue pair, whose failure the program is to see first.
	if refusal != verbs.StatusSuccess && o.published != l.cursor {
		switch refusal {
		case verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr, verbs.StatusRemOpErr:
		default:
			refusal = verbs.StatusBadRespErr // no responder refuses so
		}
		q.endWith(refusal, 0)
	}
}

// ended handles a slot that the responder has carried out. It returns false if the queue pair has
// failed.
func (q *QP) ended(f *flight) bool {
	o := &q.out
	s := q.core.SQ.At(f.seq)
	if s.Answered() && f.n != 0 {
		pieces := &q.dev.pieces
		pieces.Reset()
		if status := q.core.Landing(pieces, f.seq); status != verbs.StatusSuccess {
			q.endWith(status, 0)
			return false
		}
		at := (f.end - (uint64(f.n)+grain-1)&^(grain-1)) % windowBytes
		scatter(pieces.Bytes, f.at, o.lane.window[at:at+uint64(f.n)])
	}
	if !f.last {
		return true
	}
	if s.Answered() {
		o.answered--
	}
	q.succeeded(f.seq, s)
	for seq := f.seq + 1; f.behind > 0 && q.core.State != verbs.StateErr; seq++ {
		f.behind--
		q.succeeded(seq, q.core.SQ.At(seq))
	}
	return q.core.State != verbs.StateErr
}

// succeeded completes the oldest request.
func (q *QP) succeeded(seq uint64, s *nic.SendSlot) {
	q.core.SQ.Acked++
	if q.core.Signaled(s) {
		if e := q.newCompletion(nic.Send, false); e != nil {
			q.core.Sent(e, seq, s)
		}
	}
}

// quietTicks is how many ticks in a row without an answer end the connection. The time of an answer
// is not kept, because reading a clock costs as much as a request; so the peer gets up to a tick
// more than it is to get. A process that was stopped counts one tick.
const quietTicks = 8

// watch sets the timer for the peer's answers, unless it is set.
func (q *QP) watch() {
	if a := &q.core.Attr; !q.ackTimer.IsArmed() && a.Timeout != 0 {
		q.out.quiet, q.out.seen = 0, q.out.lane.cursor
		q.armTick()
	}
}

func (q *QP) armTick() {
	q.dev.timers.arm(&q.ackTimer, q.dev.now()+int64(q.patience()/quietTicks))
}

// patience is how long the peer may be silent.
func (q *QP) patience() time.Duration {
	a := &q.core.Attr
	return verbs.AckTimeout(a.Timeout) * time.Duration(a.RetryCount+1)
}

// tick counts how long the peer has been silent, and ends the connection if that is too long.
func (q *QP) tick() {
	o := &q.out
	if o.lane == nil {
		return
	}
	waits := q.core.State == verbs.StateRTS && q.core.SQ.Executed != q.core.SQ.Posted && !o.awaitsReceive
	switch isOpen := laneState(o.lane.state&stateMask) == laneOpen; {
	case o.published == o.lane.cursor && !waits:
		return // nothing is to be answered
	case o.seen != o.lane.cursor, o.published == o.lane.cursor && isOpen && !q.dev.down.Load():
		o.quiet, o.seen = 0, o.lane.cursor // it has answered, or waits for something at this end
	default:
		o.quiet++
	}
	if o.quiet == quietTicks {
		q.endWith(verbs.StatusRetryExcErr, 0)
		return
	}
	q.armTick()
}

// receiveOverdue handles the end of the wait for a receive.
func (q *QP) receiveOverdue() {
	if q.out.awaitsReceive {
		q.endReceiveWait()
		q.failHead(verbs.StatusRNRRetryExcErr)
		q.settle()
	}
}
