package layers

import (
	"fmt"
	"slices"
	"strings"
)

// Layer is what moves the messages: virtual queue pairs, or a layer above them.
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

// The operations of virtual queue pairs, and those of the layers above them. Some have one name.
const (
	Write    Op = "write"
	WriteImm Op = "write-imm"
	Read     Op = "read"
	CmpSwap  Op = "cmp-swap"

	AM        Op = "am"
	Put       Op = "put"
	PutPoll   Op = "put-poll" // the target sees it by looking at its memory, and answers likewise
	PutSignal Op = "put-signal"
	Get       Op = "get"
	FetchAdd  Op = "fetch-add"
	Send      Op = "send"
	SendSync  Op = "send-sync"
)

// Atomic says whether the operation is on a number of eight bytes.
func (o Op) Atomic() bool { return o == FetchAdd || o == CmpSwap }

// Kind is how the bytes of a message are moved.
type Kind string

// The kinds. Auto chooses by the size.
const (
	Auto       Kind = "auto"
	Short      Kind = "short"
	Bcopy      Kind = "bcopy"
	Zcopy      Kind = "zcopy"
	Eager      Kind = "eager"
	Rendezvous Kind = "rendezvous"
)

// Shape is an operation of a layer, and what is particular about it.
type Shape struct {
	Layer Layer
	Op    Op
	Name  string // for people
	Kinds []Kind // besides auto
	// Seen: the target sees each message; when latency is measured it answers it.
	Seen bool
	// Atomic: on a number of eight bytes in the target's memory.
	Atomic bool
	// Reads: bytes travel from the target to the initiator.
	Reads bool
	// LatencyOnly: one message at a time.
	LatencyOnly bool
	// Longest is the largest message in bytes; 0 for no limit.
	Longest int
	// Queue pair's operation that does the same without the layer.
	Beneath string
}

const (
	// longestAM is how long an active message may be made by larger buffers.
	longestAM = 64 << 10
	// longestShort is what goes into a work request at most. NICs may take less.
	longestShort = 128
)

// qpShapes are the operations of virtual queue pairs.
func qpShapes() []Shape {
	return []Shape{
		{Layer: QP, Op: Write},
		{Layer: QP, Op: WriteImm, Seen: true},
		{Layer: QP, Op: Read, Reads: true},
		{Layer: QP, Op: Send, Seen: true},
		{Layer: QP, Op: FetchAdd, Atomic: true},
		{Layer: QP, Op: CmpSwap, Atomic: true},
	}
}

// Shapes are the operations of the layers above queue pairs, in the order in which they are listed.
func Shapes() []Shape {
	copies := []Kind{Short, Bcopy, Zcopy}
	ways := []Kind{Eager, Rendezvous}
	return []Shape{
		{Layer: Transport, Op: AM, Name: "active message", Kinds: copies, Seen: true, Longest: longestAM,
			Beneath: "send"},
		{Layer: Transport, Op: Put, Name: "put", Kinds: copies, Beneath: "write"},
		{Layer: Transport, Op: PutPoll, Name: "put and poll", Kinds: copies, Seen: true, LatencyOnly: true,
			Beneath: "write-imm"},
		{Layer: Transport, Op: Get, Name: "get", Kinds: []Kind{Bcopy, Zcopy}, Reads: true, Beneath: "read"},
		{Layer: Transport, Op: FetchAdd, Name: "fetch-and-add", Atomic: true, Beneath: "fetch-add"},
		{Layer: Tagged, Op: Send, Name: "tagged message", Kinds: ways, Seen: true, Beneath: "send"},
		{Layer: Tagged, Op: SendSync, Name: "synchronous tagged message", Kinds: ways, Seen: true,
			Beneath: "send"},
		{Layer: SHMEM, Op: Put, Name: "put", Beneath: "write"},
		{Layer: SHMEM, Op: PutSignal, Name: "put with signal", Seen: true, LatencyOnly: true,
			Beneath: "write-imm"},
		{Layer: SHMEM, Op: Get, Name: "get", Reads: true, Beneath: "read"},
		{Layer: SHMEM, Op: FetchAdd, Name: "fetch-and-add", Atomic: true, Beneath: "fetch-add"},
	}
}

// Find is the shape of an operation of a layer. The error says what there is.
func Find(layer Layer, op Op) (Shape, error) {
	var ops []string
	for _, s := range slices.Concat(qpShapes(), Shapes()) {
		if s.Layer != layer {
			continue
		}
		if s.Op == op {
			return s, nil
		}
		ops = append(ops, string(s.Op))
	}
	switch {
	case layer == QP:
		return Shape{}, fmt.Errorf("--op %.20q: have %s", string(op), strings.Join(ops, ", "))
	case ops == nil:
		return Shape{}, fmt.Errorf("--layer %.20q: have qp, %s, %s, %s", string(layer), Transport, Tagged,
			SHMEM)
	}
	return Shape{}, fmt.Errorf("--op %.20q: --layer %s has %s", string(op), layer, strings.Join(ops, ", "))
}

// DefaultOp is the operation measured where none is named.
func DefaultOp(layer Layer) Op {
	for _, s := range slices.Concat(qpShapes(), Shapes()) {
		if s.Layer == layer {
			return s.Op
		}
	}
	return ""
}

// LongestOf is the largest message in bytes of a kind; 0 for no limit. NICs may have lower ones.
func (s *Shape) LongestOf(k Kind) int {
	switch {
	case k == Short:
		return longestShort
	case k == Bcopy && s.Op != AM:
		return defaultBuffer
	}
	return s.Longest
}

// CheckKind says whether the shape has a kind.
func (s *Shape) CheckKind(k Kind) error {
	if k == Auto || slices.Contains(s.Kinds, k) {
		return nil
	}
	if len(s.Kinds) == 0 {
		return fmt.Errorf("--kind %.20q: --op %s of --layer %s has no kinds: drop --kind", string(k), s.Op,
			s.Layer)
	}
	names := []string{string(Auto)}
	for _, k := range s.Kinds {
		names = append(names, string(k))
	}
	return fmt.Errorf("--kind %.20q: --op %s of --layer %s has %s", string(k), s.Op, s.Layer,
		strings.Join(names, ", "))
}
