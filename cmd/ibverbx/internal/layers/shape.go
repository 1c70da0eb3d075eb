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

// Shape is an operation of a layer, and what is particular about it.
type Shape struct {
	Layer Layer
	Op    Op
	Name  string // for people
	// Seen: the target sees each message; when latency is measured it answers it.
	Seen bool
	// Reads: bytes travel from the target to the initiator.
	Reads bool
	// LatencyOnly: one message at a time.
	LatencyOnly bool
	// Longest is the largest message in bytes; 0 for no limit.
	Longest int
}

// Shapes returns all operations in the order in which they are listed. The first one of a layer is
// its default.
func Shapes() []Shape {
	return []Shape{
		{Layer: QP, Op: Write, Name: "RDMA write"},
		{Layer: QP, Op: WriteImm, Name: "RDMA write with immediate", Seen: true},
		{Layer: QP, Op: Read, Name: "RDMA read", Reads: true},
		{Layer: QP, Op: Send, Name: "send", Seen: true},
		{Layer: QP, Op: FetchAdd, Name: "fetch-and-add"},
		{Layer: QP, Op: CmpSwap, Name: "compare-and-swap"},
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

// Find returns the shape of an operation of a layer, without op that of the first one. The error
// says what there is.
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
	return Shape{}, fmt.Errorf("--op %.20q: --layer %s has %s", string(op), layer, strings.Join(ops, ", "))
}
