package layers

import (
	"fmt"
	"slices"
	"strings"

	"ibverbx/internal/collperf"
	"ibverbx/verbs"
)

// Layer names what moves the messages: virtual queue pairs, or a layer above them.
type Layer string

// The layers.
const (
	QP        Layer = "qp"
	Transport Layer = "transport"
	Tagged    Layer = "tagged"
	SHMEM     Layer = "shmem"
)

// Op is an operation of a layer.
type Op string

// The operations. Some layers share a name.
const (
	Write     Op = "write"
	WriteImm  Op = "write-imm"
	Read      Op = "read"
	Send      Op = "send"
	FetchAdd  Op = "fetch-add"
	CmpSwap   Op = "cmp-swap"
	AM        Op = "am"
	Put       Op = "put"
	PutSignal Op = "put-signal"
	Get       Op = "get"
)

// Atomic reports whether the operation is on a number of eight bytes.
func (o Op) Atomic() bool { return o == FetchAdd || o == CmpSwap }

// Shape is an operation of a layer, with its properties.
type Shape struct {
	Layer Layer
	Op    Op
	Name  string // for people
	// Seen: the target sees each message; in latency measurements it answers.
	Seen bool
	// Reads: bytes travel from the target to the initiator.
	Reads bool
	// LatencyOnly: one message at a time.
	LatencyOnly bool
	// Longest is the largest message in bytes; 0 for no limit.
	Longest int

	opcode verbs.Opcode // of virtual queue pairs
}

// Shapes returns all operations in the order in which they are listed. The first one of a layer is
// its default.
func Shapes() []Shape {
	return []Shape{
		{Layer: QP, Op: Write, Name: "RDMA write", opcode: verbs.OpRDMAWrite},
		{Layer: QP, Op: WriteImm, Name: "RDMA write with immediate", Seen: true,
			opcode: verbs.OpRDMAWriteWithImm},
		{Layer: QP, Op: Read, Name: "RDMA read", Reads: true, opcode: verbs.OpRDMARead},
		{Layer: QP, Op: Send, Name: "send", Seen: true, opcode: verbs.OpSend},
		{Layer: QP, Op: FetchAdd, Name: "fetch-and-add", opcode: verbs.OpAtomicFetchAdd},
		{Layer: QP, Op: CmpSwap, Name: "compare-and-swap", opcode: verbs.OpAtomicCmpAndSwp},
		{Layer: Transport, Op: AM, Name: "active message", Seen: true, Longest: 4 << 10},
		{Layer: Transport, Op: Put, Name: "put"},
		{Layer: Transport, Op: Get, Name: "get", Reads: true},
		{Layer: Transport, Op: FetchAdd, Name: "fetch-and-add"},
		{Layer: Tagged, Op: Send, Name: "tagged message", Seen: true},
		{Layer: SHMEM, Op: Put, Name: "put"},
		{Layer: SHMEM, Op: PutSignal, Name: "put with signal", Seen: true, LatencyOnly: true},
		{Layer: SHMEM, Op: Get, Name: "get", Reads: true},
		{Layer: SHMEM, Op: FetchAdd, Name: "fetch-and-add"},
	}
}

// Find returns the shape of an operation of a layer; without op, that of the first one. The error
// lists the choices.
func Find(layer Layer, op Op) (Shape, error) {
	var ops, all []string
	for _, s := range Shapes() {
		if name := string(s.Layer); !slices.Contains(all, name) {
			all = append(all, name)
		}
		if s.Layer != layer {
			continue
		}
		if s.Op == op || op == "" {
			return s, nil
		}
		ops = append(ops, string(s.Op))
	}
	if ops == nil {
		return Shape{}, fmt.Errorf("--layer %.20q: have %s", string(layer), strings.Join(all, ", "))
	}
	if layer == SHMEM { // what the command measures without a shape
		for _, call := range collperf.Ops() {
			ops = append(ops, string(call))
		}
	}
	return Shape{}, fmt.Errorf("--op %.20q: --layer %s has %s", string(op), layer, strings.Join(ops, ", "))
}

// The message for a slot starts at one of Shifts places of the source, ShiftStep bytes (a cache
// line) apart, so that data of an earlier round in a slot is as wrong as a missing message.
const (
	Shifts    = 1024
	ShiftStep = 64
)

// Round determines the contents of a round's messages, which have one size. Message i goes to slot
// i of the target, modulo Slots.
type Round struct {
	Number uint64 // no two rounds of a run have the same
	Seed   uint64
	Size   int // of a message, in bytes
	Slots  int // 0: as many as messages
}

// slot returns the slot of message i.
func (r Round) slot(i int) int {
	if r.Slots == 0 || i < r.Slots {
		return i
	}
	return i % r.Slots
}

// Source returns the offset of message i in the source. The shift differs from any of the last
// thousand rounds, so data of an earlier round in the slot is never right.
func (r Round) Source(i int) int {
	slot := r.slot(i)
	shift := (r.Number + 37*uint64(slot) + r.Seed) % Shifts
	return slot*r.Size + int(shift)*ShiftStep
}

// Counter returns the value of the counter after n atomics: the ends set it before the round, and
// each atomic adds two more than the one before it.
func (r Round) Counter(n int) uint64 {
	i := uint64(n)
	return r.Number<<32 + 2*r.Number*i + i*i
}

// Target returns the offset of message i in the target.
func (r Round) Target(i int) int { return r.slot(i) * r.Size }
