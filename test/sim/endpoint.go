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
	w      *world
	conn   *conn
	cq     *vcq
	host   *lab.Host
	peer   *end
	index  int
	name   string
	vq     *ibverbx.VirtualQP
	wires  []*wire // its rails and notify queue pair, in the library's order
	single bool    // it has one queue pair

	state   endState
	leaving bool   // a Reset, Close or Shutdown is under way
	flushes bool   // and it has had its queue pairs flush what they hold
	renewed bool   // it was reset since its last card
	lostNIC bool   // it has lost a NIC or CQ: Reset fails from now on
	stale   bool   // completions were invented for it
	over    bool   // failover is in force here
	repeats uint64 // how many physical requests went out again
	fell    uint64 // how many events have told of a rail that was lost
	rose    uint64 // and how many of one that has come back
	excused bool   // the completion under way is of an atomic that went with its rail
	requests
	session
}

// requests is all that was posted to an end.
type requests struct {
	sends    []*send
	sendHead int // index of the next to complete
	recvs    []*recv
	recvHead int
	most     int                   // largest number of sends that were outstanding at a time
	expect   [messageKinds][]*send // by kind: what the peer has sent and no receive has taken

	unplaced []*send // writes that are done and may not be in memory yet
	words    []*word // for atomics

	sendErrors, recvErrors errorsSeen
}

// session is what the model knows of an end since it was last connected.
type session struct {
	sessionNo     int     // its number, as the connection counts them
	down          uint64  // the rails that are out of service, by the events, as bits
	firstErr      string  // what Err said first; "" while it is nil
	firstFailed   *posted // the first physical send that has failed
	firstFailedOn *wire   // on this queue pair
	peerViolated  bool    // the peer has sent what no peer may
	recvsRefused  bool    // a NIC has refused a receive permanently
	mustFail      bool    // a request has failed by its own fault

	acked        int     // the data of all sends before this index is acknowledged
	checked      int     // all writes of the peer before this index have landed
	stopAt       int     // sends from this index on post nothing more: an earlier one has failed
	noneMayBegin bool    // no send may begin any more, because a receive has failed
	refused      *send   // with failover: a dead queue pair has refused to take some of it; nil for none
	messages     []*send // ordinary SENDs that no NIC has been given yet
	relaxed      []*send // relaxed SENDs, likewise
	// plainPeer says that the peer's card was one of the C++ original's kind, in DQPLB: then SENDs
	// travel on rail 0, and credits come with the first receive for a notification. A program that
	// sends both on one connection has SENDs eat credits; so each here sends one kind only.
	plainPeer bool
	atomicsOn *wireLife // the rail that carries atomics; nil before the first
	relaxedOn *wireLife // the rail that carries relaxed SENDs; nil before the first

	// DQPLB. Numbers are counted from the first.
	numbers []bool       // which were used
	used    int          // how many
	arrived map[int]bool // which numbers of the peer have arrived
}

// errorsSeen says in which session a completion of a direction last reported an error, and in which
// one last reported more than a flush; and in which one an atomic last failed with its rail.
type errorsSeen struct{ any, own, excused int }

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

// What a receive takes. A single queue pair has one order of all, under kindNotification. Relaxed
// SENDs are taken by the receives of ordinary ones, but have an order of their own.
const (
	kindNotification = iota
	kindMessage
	kindRelaxed
	messageKinds
)

// The immediates of relaxed SENDs, and no others, begin with relaxedMark and end with the index of
// their request. So they are recognized on the wire and where they arrive.
const relaxedMark, markMask = 0x52 << 24, 0xff << 24

// send is a request of the send direction.
type send struct {
	index     int
	session   int
	op        verbs.Opcode
	flags     verbs.SendFlags
	imm       uint32
	raw       bool // the connection carries the immediate in DQPLB
	relax     bool // a relaxed SEND, of several queue pairs
	everyRail bool // one fragment on each rail
	bare      bool // a notification of Spray without data
	length    int
	local     []lab.Span // its pieces of memory at this end
	remote    lab.Span   // its memory at the peer
	key       int        // the noise that it carries or fetches
	operands
	outgoing
	parts  []*part // with failover: all of it that went out
	reread bool    // of a write: a read fetches its target; of a read: it does that
	taken  bool    // its target was used for something else
	still  bool    // its target must not change any more

	landed bool // its data was seen at the target
	done   bool // its completion was polled
}

// operands is what only atomics have.
type operands struct {
	word          *word
	first, second uint64 // to add; or to compare with, and to swap in
}

// outgoing is what NICs were given of a send.
type outgoing struct {
	begun       bool // anything of it
	posted      int  // bytes of its data
	emptyOut    bool // the message of a request without data, markers apart
	rails       uint // the rails that have carried a fragment, as bits
	lastStepOut bool // its last step: a notification or an ordinary SEND
	data        int  // work requests with its data that are on NICs
	out         int  // all of its work requests that are on NICs
	failed      bool // one of them has failed
}

// recv is a receive.
type recv struct {
	index   int
	session int
	message bool // it has memory, for a SEND
	buffer  lab.Span
	out     int
}

// word is memory for atomics at the peer. Atomics of one virtual queue pair keep their order, so
// the value that each finds is known.
type word struct {
	at      lab.Span
	value   uint64 // after all atomics that have completed
	planned uint64 // after all that were posted
	known   bool   // no atomic has failed here, which may have been carried out or not
}

const forever = math.MaxInt

// sharedID is the ID of all requests and receives where they have one.
const sharedID = 7

// id is the work-request id of a send or receive. It names the end and the index, unless all have
// one ID.
func (e *end) id(recv bool, index int) uint64 {
	if e.conn.plan.oneID {
		return sharedID
	}
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
	if s.everyRail {
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

// isWrite reports whether the operation writes to memory that the sender names.
func isWrite(op verbs.Opcode) bool { return op == verbs.OpRDMAWrite || op == verbs.OpRDMAWriteWithImm }
