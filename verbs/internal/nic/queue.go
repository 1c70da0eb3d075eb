package nic

import "ibverbx/verbs"

// Direction selects one of the two queues of a queue pair.
type Direction uint8

// The queues.
const (
	Send Direction = iota
	Recv
)

// SendSlot is a request on a send queue. It holds no pointers, so the collector does not look at
// queues.
type SendSlot struct {
	ID         uint64
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	Length     uint64 // length of the message, bytes
	Opcode     verbs.Opcode
	Flags      verbs.SendFlags
	Imm        uint32
	RKey       uint32
	sges       uint32 // elements of its scatter-gather list

	// The provider owns these fields, which are zero at first.

	VendorErr uint32
	Status    verbs.Status // how the request ended; set when it is executed
	Local     bool         // the request ended on this side, so no acknowledgement will arrive; set likewise
	Result    uint64       // atomic: the value found
	Mark      int64        // a time, or a packet sequence number
}

// Answered reports whether the request brings data back, as reads and atomics do.
func (s *SendSlot) Answered() bool { return s.Opcode == verbs.OpRDMARead || s.Opcode.IsAtomic() }

// minQueue is the number of slots of a new queue. A queue grows with the requests outstanding, not
// at once to its limit: with many queue pairs of few requests each, full-length rings would not
// stay in the cache.
const minQueue = 8

// SendQueue is a ring of requests, numbered from 0 in the order of their posting.
//
// Invariant: freed <= Acked <= Executed <= Posted, and Posted-freed <= len(slots), limit.
type SendQueue struct {
	slots     []SendSlot // a power of two
	sges      []verbs.SGE
	inline    []byte // made with the first inline send
	limit     uint64
	maxSGE    int
	maxInline int

	Posted   uint64 // accepted
	Executed uint64 // sent to the peer, or failed; the next one is the head
	Acked    uint64 // ended: their completions, if any, were generated
	freed    uint64 // their slots are free again
}

func newSendQueue(limit, maxSGE, maxInline int) SendQueue {
	n := ceilPow2(min(limit, minQueue))
	return SendQueue{
		slots:     make([]SendSlot, n),
		sges:      make([]verbs.SGE, n*maxSGE),
		limit:     uint64(limit),
		maxSGE:    maxSGE,
		maxInline: maxInline,
	}
}

func (s *SendQueue) index(seq uint64) int { return int(seq & uint64(len(s.slots)-1)) }

// At returns the slot of a request.
func (s *SendQueue) At(seq uint64) *SendSlot { return &s.slots[seq&uint64(len(s.slots)-1)] }

func (s *SendQueue) full() bool { return s.Posted-s.freed >= s.limit }

// Push copies a request into the queue. It must have passed CheckSend.
func (s *SendQueue) Push(wr *verbs.SendWR) {
	if s.Posted-s.freed == uint64(len(s.slots)) {
		s.grow()
	}
	i := s.index(s.Posted)
	// Field by field, because a literal is made on the stack and then copied by 16 bytes, and the
	// processor waits for narrower stores that such a load spans.
	slot := &s.slots[i]
	*slot = SendSlot{}
	slot.ID, slot.Opcode, slot.Flags, slot.Imm = wr.ID, wr.Opcode, wr.Flags, wr.Imm
	slot.RemoteAddr, slot.RKey = wr.RemoteAddr, wr.RKey
	slot.CompareAdd, slot.Swap = wr.CompareAdd, wr.Swap
	slot.sges = uint32(len(wr.SGL))
	if wr.Flags&verbs.SendInline != 0 {
		if s.inline == nil {
			s.inline = make([]byte, len(s.slots)*s.maxInline)
		}
		copy(s.inline[i*s.maxInline:], wr.Inline)
		slot.Length = uint64(len(wr.Inline))
	} else {
		sges := s.sges[i*s.maxSGE:]
		for j := range wr.SGL {
			sges[j] = wr.SGL[j]
			slot.Length += uint64(wr.SGL[j].Length)
		}
	}
	s.Posted++
}

// grow doubles the ring.
func (s *SendQueue) grow() {
	old := *s
	n := 2 * len(s.slots)
	s.slots, s.sges = make([]SendSlot, n), make([]verbs.SGE, n*s.maxSGE)
	if old.inline != nil {
		s.inline = make([]byte, n*s.maxInline)
	}
	for seq := s.freed; seq != s.Posted; seq++ {
		from, to := old.index(seq), s.index(seq)
		s.slots[to] = old.slots[from]
		copy(s.sges[to*s.maxSGE:], old.sges[from*s.maxSGE:][:s.maxSGE])
		if old.inline != nil {
			copy(s.inline[to*s.maxInline:], old.inline[from*s.maxInline:][:s.maxInline])
		}
	}
}

// SGL returns the scatter-gather list of a request.
func (s *SendQueue) SGL(seq uint64) []verbs.SGE {
	i := s.index(seq)
	return s.sges[i*s.maxSGE:][:s.slots[i].sges]
}

// Inlined returns the payload of an inline request.
func (s *SendQueue) Inlined(seq uint64) []byte {
	i := s.index(seq)
	return s.inline[i*s.maxInline:][:s.slots[i].Length]
}

// free frees the slots up to and including seq.
func (s *SendQueue) free(seq uint64) { s.freed = max(s.freed, seq+1) }

// reset empties the queue.
func (s *SendQueue) reset() { s.Posted, s.Executed, s.Acked, s.freed = 0, 0, 0, 0 }

// RecvSlot is a request on a receive queue.
type RecvSlot struct {
	ID     uint64
	Length uint64 // room, bytes
	sges   uint32
}

// RecvQueue is a ring of receives, numbered from 0 in the order of their posting.
//
// Invariant: freed <= Consumed <= Posted, and Posted-freed <= len(slots), limit.
type RecvQueue struct {
	slots  []RecvSlot
	sges   []verbs.SGE
	limit  uint64
	maxSGE int

	Posted   uint64
	Consumed uint64 // taken by a message, or flushed
	freed    uint64
}

func newRecvQueue(limit, maxSGE int) RecvQueue {
	n := ceilPow2(min(limit, minQueue))
	return RecvQueue{slots: make([]RecvSlot, n), sges: make([]verbs.SGE, n*maxSGE), limit: uint64(limit),
		maxSGE: maxSGE}
}

// At returns the slot of a receive.
func (r *RecvQueue) At(seq uint64) *RecvSlot { return &r.slots[seq&uint64(len(r.slots)-1)] }

// Empty reports whether there is no receive for a message to take.
func (r *RecvQueue) Empty() bool { return r.Consumed == r.Posted }

func (r *RecvQueue) full() bool { return r.Posted-r.freed >= r.limit }

// Push copies a receive into the queue. It must have passed CheckRecv.
func (r *RecvQueue) Push(wr *verbs.RecvWR) {
	if r.Posted-r.freed == uint64(len(r.slots)) {
		r.grow()
	}
	i := int(r.Posted & uint64(len(r.slots)-1))
	slot := &r.slots[i]
	slot.ID, slot.Length, slot.sges = wr.ID, 0, uint32(len(wr.SGL)) // as in SendQueue.Push
	sges := r.sges[i*r.maxSGE:]
	for j := range wr.SGL {
		sges[j] = wr.SGL[j]
		slot.Length += uint64(wr.SGL[j].Length)
	}
	r.Posted++
}

// grow doubles the ring.
func (r *RecvQueue) grow() {
	old := *r
	n := uint64(2 * len(r.slots))
	r.slots, r.sges = make([]RecvSlot, n), make([]verbs.SGE, n*uint64(r.maxSGE))
	for seq := r.freed; seq != r.Posted; seq++ {
		to := int(seq & (n - 1))
		r.slots[to] = *old.At(seq)
		copy(r.sges[to*r.maxSGE:], old.SGL(seq))
	}
}

// SGL returns the scatter-gather list of a receive.
func (r *RecvQueue) SGL(seq uint64) []verbs.SGE {
	i := int(seq & uint64(len(r.slots)-1))
	return r.sges[i*r.maxSGE:][:r.slots[i].sges]
}

func (r *RecvQueue) free(seq uint64) { r.freed = max(r.freed, seq+1) }

func (r *RecvQueue) reset() { r.Posted, r.Consumed, r.freed = 0, 0, 0 }
