package nic

import (
	"math/rand/v2"

	"ibverbx/verbs"
)

// Completion is a completion, with the fields that Poll needs to free its slot.
type Completion struct {
	WC        verbs.WC
	QP        *QP
	Seq       uint64 // number of the request in its queue
	Dir       Direction
	Solicited bool // raises an event at a queue armed for solicited completions only
}

// begin sets all fields one by one: a literal would be made elsewhere first and then copied.
func (e *Completion) begin(q *QP, dir Direction, seq uint64, solicited bool) {
	e.QP, e.Seq, e.Dir, e.Solicited = q, seq, dir, solicited
	w := &e.WC
	w.Status, w.VendorErr, w.Imm, w.QPNum, w.SrcQP, w.Flags = 0, 0, 0, q.Num, 0, 0
}

// Signaled reports whether the request has a completion if it succeeds.
func (q *QP) Signaled(s *SendSlot) bool { return s.Flags&verbs.SendSignaled != 0 || q.SignalAll }

// Sent makes e the completion of request seq, which succeeded.
func (q *QP) Sent(e *Completion, seq uint64, s *SendSlot) {
	n := uint32(0)
	if s.Answered() {
		n = uint32(s.Length)
	}
	e.begin(q, Send, seq, false)
	w := &e.WC
	w.ID, w.Status, w.Opcode, w.ByteLen = s.ID, verbs.StatusSuccess, s.Opcode.WCOpcode(), n
}

// Message describes a received message for its completion.
type Message struct {
	Opcode    verbs.Opcode // one that consumes a receive
	Length    uint64       // bytes
	Imm       uint32       // only if the opcode has an immediate
	SrcQP     uint32
	Solicited bool
}

// Received makes e the completion of the receive that a message has taken.
func (q *QP) Received(e *Completion, seq uint64, m *Message) {
	e.begin(q, Recv, seq, m.Solicited)
	e.WC.ID, e.WC.ByteLen, e.WC.SrcQP, e.WC.Opcode = q.RQ.At(seq).ID, uint32(m.Length), m.SrcQP, verbs.WCRecv
	if !m.Opcode.IsSend() {
		e.WC.Opcode = verbs.WCRecvRDMAWithImm
	}
	if m.Opcode.HasImm() {
		e.WC.Flags = verbs.WCWithImm
		e.WC.Imm = m.Imm
	}
}

// VendorFlushed is the vendor error of a flushed request, as mlx5 reports it.
const VendorFlushed = 0xf9

// Failed makes e the unsuccessful completion of a request. Fields that the contract leaves
// undefined hold garbage from rng, and the opcode usually belongs to the other direction, so that a
// program that looks at it fails here and not only on a real NIC.
func (q *QP) Failed(e *Completion, dir Direction, seq uint64, status verbs.Status, vendorErr uint32,
	rng *rand.Rand) {
	var id uint64
	if dir == Send {
		id = q.SQ.At(seq).ID
	} else {
		id = q.RQ.At(seq).ID
	}
	opcodes := &sendOpcodes
	if (dir == Send) == (rng.IntN(4) != 0) {
		opcodes = &recvOpcodes
	}
	*e = Completion{QP: q, Seq: seq, Dir: dir, Solicited: true}
	e.WC = verbs.WC{
		ID:        id,
		Status:    status,
		Opcode:    opcodes[rng.IntN(len(opcodes))],
		VendorErr: vendorErr,
		ByteLen:   rng.Uint32(),
		Imm:       rng.Uint32(),
		QPNum:     q.Num,
		SrcQP:     rng.Uint32() & MaxQPNum,
		Flags:     verbs.WCFlags(rng.Uint32()) & verbs.WCWithImm,
	}
}

var (
	sendOpcodes = [...]verbs.WCOpcode{verbs.WCSend, verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCFetchAdd}
	recvOpcodes = [...]verbs.WCOpcode{verbs.WCRecv, verbs.WCRecvRDMAWithImm, verbs.WCRecv, 0xdead}
)

// TakeUnended takes the oldest request of the send queue that has not ended, for the caller to
// flush. It returns false if there is none.
func (s *SendQueue) TakeUnended() (seq uint64, ok bool) {
	if s.Acked == s.Posted {
		return 0, false
	}
	seq = s.Acked
	s.Acked++
	s.Executed = max(s.Executed, s.Acked)
	return seq, true
}

// Take takes the next receive, for a message or to flush it; it returns false if there is none.
func (r *RecvQueue) Take() (seq uint64, ok bool) {
	if r.Empty() {
		return 0, false
	}
	r.Consumed++
	return r.Consumed - 1, true
}
