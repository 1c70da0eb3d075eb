package sim

import (
	"fmt"
	"math"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// end is a virtual queue pair and what the model knows of it.
type end struct {
	w       *world
	conn    *conn
	cq      *vcq
	host    *lab.Host
	peer    *end
	index   int
	name    string
	vq      *ibverbx.VirtualQP
	wires   []*wire
	single  bool
	state   endState
	leaving bool // the program resets or closes it
	renewed bool // it was reset since it last had a card
	beyond  bool // a NIC or CQ is lost to it: no reset brings it back
	life    int  // counts connections
	stale   bool // completions were invented for it
	most    int  // sends that were outstanding at a time

	sends    []*send
	sendHead int // the next to complete
	recvs    []*recv
	recvHead int
	expect   [messageKinds][]*send // what the peer has sent, by kind, and no receive has taken
	checked  int                   // the peer's writes before this one were seen to be here

	sendTorn, recvTorn torn
	firstErr           string  // what Err said first
	broke              *posted // the first send that has failed on a wire,
	brokeOn            *wire   // which is this
	offended           bool    // the peer has sent what no peer may

	// What the wires have shown.
	writes  []*send      // that have a remote address of their own, by that address
	locals  []*send      // that have a local one: reads and atomics
	mail    []*send      // SENDs not yet on the wire, but for
	relaxed []*send      // relaxed ones
	buffers []*recv      // receives with memory, by address
	acked   int          // all before it have their data acknowledged
	stop    int          // sends from this one on must not go out any more
	halt    bool         // nor any that has not begun
	noRecvs bool         // a NIC has refused a receive for good
	numbers []bool       // DQPLB: numbers used, from the first
	arrived map[int]bool // DQPLB: numbers that have arrived, likewise
	used    int          // how many
	atomics *wire        // that carries them
	carrier *wire        // of relaxed SENDs
	words   []*word
}

// torn is the life in which a completion of a direction reported an error, and that in which one
// reported more than a flush.
type torn struct{ life, told int }

type endState uint8

const (
	unconnected endState = iota
	connected
	draining
	drained
	closed
)

func (s endState) String() string {
	return [...]string{"unconnected", "connected", "draining", "drained", "closed"}[s]
}

// The kinds of what a receive takes. With a single queue pair there is only one. Relaxed SENDs go
// to the receives of the others, in an order of their own.
const (
	kindNote = iota
	kindMessage
	kindRelaxed
	messageKinds
)

// Immediates of relaxed SENDs, and no other's, begin with relaxedMark and end with the index of
// their request: that is how they are known on the wire and where they arrive.
const relaxedMark, markMask = 0x52 << 24, 0xff << 24

// send is a request of the send direction.
type send struct {
	index  int
	life   int
	op     verbs.Opcode
	flags  verbs.SendFlags
	imm    uint32
	raw    bool // the connection carries the immediate in DQPLB
	relax  bool // a relaxed SEND, of several queue pairs
	every  bool // one fragment on each rail
	length int
	local  []lab.Span // pieces, at this end
	remote lab.Span   // at the peer
	key    int        // the noise that it carries or fetches
	word   *word      // of an atomic
	first  uint64     // operands
	second uint64

	begun  bool // something was on the wire
	posted int  // bytes that were
	data   int  // work requests of its data on NICs
	rails  uint // that have carried a fragment, as bits
	out    int  // work requests on NICs in all
	noted  bool // its last step was on the wire
	failed bool // one of them has failed
	landed bool // its data was seen at the target
	done   bool
}

// recv is a receive.
type recv struct {
	index   int
	life    int
	message bool // has memory
	buffer  lab.Span
	out     int
}

// word is memory for atomics, at the peer. Atomics of one virtual queue pair keep their order, so
// what each finds is known.
type word struct {
	at      lab.Span
	value   uint64 // after all that have completed
	planned uint64 // after all that were posted
	sure    bool
}

const forever = math.MaxInt

// Work-request ids tell the model who is concerned.
func (e *end) id(recv bool, index int) uint64 {
	id := uint64(e.index+1)<<40 | uint64(index)
	if recv {
		id |= 1 << 32
	}
	return id
}

func (e *end) String() string { return e.name }

func (s *send) String() string {
	t := fmt.Sprintf("send %d (%v, %d bytes", s.index, s.op, s.length)
	if len(s.local) > 1 {
		t += fmt.Sprintf(" in %d pieces", len(s.local))
	}
	if s.flags&verbs.SendInline != 0 {
		t += " inline"
	}
	if s.flags&verbs.SendFence != 0 {
		t += " fenced"
	}
	if s.flags&verbs.SendSignaled == 0 {
		t += " unsignaled"
	}
	if s.relax {
		t += " relaxed"
	}
	if s.every {
		t += " over every rail"
	}
	return t + ")"
}

func (r *recv) String() string {
	if r.message {
		return fmt.Sprintf("receive %d (of %d bytes)", r.index, r.buffer.N)
	}
	return fmt.Sprintf("receive %d (of a notification)", r.index)
}

// isWrite says whether the operation writes to memory that the sender names.
func isWrite(op verbs.Opcode) bool { return op == verbs.OpRDMAWrite || op == verbs.OpRDMAWriteWithImm }
