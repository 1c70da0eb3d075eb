package soft

import "ibverbx/verbs"

// direction selects one of the two queues of a queue pair.
type direction uint8

const (
	dirSend direction = iota
	dirRecv
)

// sendSlot is a request on a send queue. It holds no pointers, so the collector does not look at
// queues.
type sendSlot struct {
	id         uint64
	remoteAddr uint64
	compareAdd uint64
	swap       uint64
	result     uint64 // of an atomic: the value found
	length     uint64 // of the message, bytes
	ackAt      int64  // when the acknowledgement is back; 0 is at once
	opcode     verbs.Opcode
	flags      verbs.SendFlags
	imm        uint32
	rkey       uint32
	status     verbs.Status // once executed: how it ended
	vendorErr  uint32
	sges       uint32 // elements of its scatter-gather list
	local      bool   // once executed: decided on this side, so no acknowledgement has to arrive
}

// answered reports whether the request brings data back: only then does its outcome occupy the
// peer.
func (s *sendSlot) answered() bool { return s.opcode == verbs.OpRDMARead || s.opcode.IsAtomic() }

// minQueue is how many slots a queue begins with. It grows to what is really outstanding, and not
// at once to its limit: with many queue pairs of few requests each, full-length rings do not stay
// in the cache.
const minQueue = 8

// sendQueue is a ring of requests, numbered from 0 in the order of their posting.
//
// Invariant: freed <= acked <= executed <= posted, and posted-freed <= len(slots), limit.
type sendQueue struct {
	slots     []sendSlot // a power of two
	sges      []verbs.SGE
	inline    []byte // made with the first inline send
	limit     uint64
	maxSGE    int
	maxInline int

	posted   uint64 // accepted
	executed uint64 // sent to the peer, or failed; what comes next is the head
	acked    uint64 // ended: their completions, if any, were generated
	freed    uint64 // their slots are free again
}

func newSendQueue(limit, maxSGE, maxInline int) sendQueue {
	n := ceilPow2(min(limit, minQueue))
	return sendQueue{
		slots:     make([]sendSlot, n),
		sges:      make([]verbs.SGE, n*maxSGE),
		limit:     uint64(limit),
		maxSGE:    maxSGE,
		maxInline: maxInline,
	}
}

func (s *sendQueue) index(seq uint64) int { return int(seq & uint64(len(s.slots)-1)) }

func (s *sendQueue) at(seq uint64) *sendSlot { return &s.slots[seq&uint64(len(s.slots)-1)] }

func (s *sendQueue) full() bool { return s.posted-s.freed >= s.limit }

// push copies a request into the queue. The caller has checked it, and that there is room.
func (s *sendQueue) push(wr *verbs.SendWR) {
	if s.posted-s.freed == uint64(len(s.slots)) {
		s.grow()
	}
	i := s.index(s.posted)
	slot := &s.slots[i]
	*slot = sendSlot{
		id:         wr.ID,
		remoteAddr: wr.RemoteAddr,
		compareAdd: wr.CompareAdd,
		swap:       wr.Swap,
		opcode:     wr.Opcode,
		flags:      wr.Flags,
		imm:        wr.Imm,
		rkey:       wr.RKey,
		sges:       uint32(len(wr.SGL)),
	}
	if wr.Flags&verbs.SendInline != 0 {
		if s.inline == nil {
			s.inline = make([]byte, len(s.slots)*s.maxInline)
		}
		copy(s.inline[i*s.maxInline:], wr.Inline)
		slot.length = uint64(len(wr.Inline))
	} else {
		sges := s.sges[i*s.maxSGE:]
		for j := range wr.SGL {
			sges[j] = wr.SGL[j]
			slot.length += uint64(wr.SGL[j].Length)
		}
	}
	s.posted++
}

// grow doubles the ring.
func (s *sendQueue) grow() {
	old := *s
	n := 2 * len(s.slots)
	s.slots, s.sges = make([]sendSlot, n), make([]verbs.SGE, n*s.maxSGE)
	if old.inline != nil {
		s.inline = make([]byte, n*s.maxInline)
	}
	for seq := s.freed; seq != s.posted; seq++ {
		from, to := old.index(seq), s.index(seq)
		s.slots[to] = old.slots[from]
		copy(s.sges[to*s.maxSGE:], old.sges[from*s.maxSGE:][:s.maxSGE])
		if old.inline != nil {
			copy(s.inline[to*s.maxInline:], old.inline[from*s.maxInline:][:s.maxInline])
		}
	}
}

// sgl is the scatter-gather list of a request.
func (s *sendQueue) sgl(seq uint64) []verbs.SGE {
	i := s.index(seq)
	return s.sges[i*s.maxSGE:][:s.slots[i].sges]
}

// inlined is the payload of an inline request.
func (s *sendQueue) inlined(seq uint64) []byte {
	i := s.index(seq)
	return s.inline[i*s.maxInline:][:s.slots[i].length]
}

// free gives back the slots up to and including seq.
func (s *sendQueue) free(seq uint64) { s.freed = max(s.freed, seq+1) }

// reset empties the queue.
func (s *sendQueue) reset() { s.posted, s.executed, s.acked, s.freed = 0, 0, 0, 0 }

// recvSlot is a request on a receive queue.
type recvSlot struct {
	id     uint64
	length uint64 // room, bytes
	sges   uint32
}

// recvQueue is a ring of receives, numbered from 0 in the order of their posting.
//
// Invariant: freed <= consumed <= posted, and posted-freed <= len(slots), limit.
type recvQueue struct {
	slots  []recvSlot
	sges   []verbs.SGE
	limit  uint64
	maxSGE int

	posted   uint64
	consumed uint64 // taken by a message, or flushed
	freed    uint64
}

func newRecvQueue(limit, maxSGE int) recvQueue {
	n := ceilPow2(min(limit, minQueue))
	return recvQueue{slots: make([]recvSlot, n), sges: make([]verbs.SGE, n*maxSGE), limit: uint64(limit),
		maxSGE: maxSGE}
}

func (r *recvQueue) at(seq uint64) *recvSlot { return &r.slots[seq&uint64(len(r.slots)-1)] }

func (r *recvQueue) full() bool { return r.posted-r.freed >= r.limit }

// push copies a receive into the queue. The caller has checked it, and that there is room.
func (r *recvQueue) push(wr *verbs.RecvWR) {
	if r.posted-r.freed == uint64(len(r.slots)) {
		r.grow()
	}
	i := int(r.posted & uint64(len(r.slots)-1))
	slot := &r.slots[i]
	*slot = recvSlot{id: wr.ID, sges: uint32(len(wr.SGL))}
	sges := r.sges[i*r.maxSGE:]
	for j := range wr.SGL {
		sges[j] = wr.SGL[j]
		slot.length += uint64(wr.SGL[j].Length)
	}
	r.posted++
}

// grow doubles the ring.
func (r *recvQueue) grow() {
	old := *r
	n := uint64(2 * len(r.slots))
	r.slots, r.sges = make([]recvSlot, n), make([]verbs.SGE, n*uint64(r.maxSGE))
	for seq := r.freed; seq != r.posted; seq++ {
		to := int(seq & (n - 1))
		r.slots[to] = *old.at(seq)
		copy(r.sges[to*r.maxSGE:], old.sgl(seq))
	}
}

func (r *recvQueue) sgl(seq uint64) []verbs.SGE {
	i := int(seq & uint64(len(r.slots)-1))
	return r.sges[i*r.maxSGE:][:r.slots[i].sges]
}

func (r *recvQueue) free(seq uint64) { r.freed = max(r.freed, seq+1) }

func (r *recvQueue) reset() { r.posted, r.consumed, r.freed = 0, 0, 0 }
