package sim

import (
	"fmt"
	"math"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// end is a virtual queue pair and the model's knowledge of it.
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
	flushes bool   // and it has made its queue pairs flush
	renewed bool   // it was reset since its last card
	lostNIC bool   // it has lost a NIC or CQ: Reset fails from now on
	stale   bool   // it got invented completions
	over    bool   // failover is in force here
	repeats uint64 // how many physical requests went out again
	fell    uint64 // how many events have reported a lost rail
	rose    uint64 // and how many one that has come back
	excused bool   // the completion under way is of an atomic lost with its rail
	requests
	session
}

// requests is everything posted to an end.
type requests struct {
	sends    []*send
	sendHead int // index of the next to complete
	recvs    []*recv
	recvHead int
	most     int                   // largest number of sends that were outstanding at a time
	expect   [messageKinds][]*send // by kind: messages of the peer that no receive has taken

	unplaced []*send // completed writes that may not be in memory yet
	words    []*word // for atomics

	sendErrors, recvErrors errorsSeen
}

// session is the model's knowledge of an end since it was last connected.
type session struct {
	sessionNo     int     // its number, as the connection counts them
	down          uint64  // the rails that are out of service, by the events, as bits
	settled       uint64  // of these, those whose failover is settled, by the events
	firstErr      string  // the first text of Err; "" while it is nil
	firstFailed   *posted // the first physical send that has failed
	firstFailedOn *wire   // on this queue pair
	peerViolated  bool    // the peer has sent a message that no peer may
	recvsRefused  bool    // a NIC has refused a receive permanently
	mustFail      bool    // a request has failed by its own fault

	acked        int     // the data of all sends before this index is acknowledged
	checked      int     // all writes of the peer before this index have landed
	stopAt       int     // sends from this index on post nothing more: an earlier one has failed
	noneMayBegin bool    // no send may begin any more, because a receive has failed
	refused      *send   // with failover: a dead queue pair has refused a part of it; nil for none
	messages     []*send // ordinary SENDs that no NIC has been given yet
	relaxed      []*send // relaxed SENDs, likewise
	// plainPeer says that the peer's card was one of the C++ original's kind, in DQPLB: then SENDs
	// travel on rail 0, and credits come with the first receive for a notification. In a program
	// that sends both on one connection, SENDs use up credits; so each program here sends only one
	// kind.
	plainPeer bool
	atomicsOn *wireLife // the rail that carries atomics; nil before the first
	relaxedOn *wireLife // the rail that carries relaxed SENDs; nil before the first

	// DQPLB. Numbers are counted from the first.
	numbers []bool       // which were used
	used    int          // how many
	arrived map[int]bool // which numbers of the peer have arrived
}

// errorsSeen has the last sessions in which a completion of a direction reported an error, one
// other than a flush, and an atomic that failed with its rail.
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

// These are the kinds of messages that receives take. A single queue pair has one order for all,
// under kindNotification. Receives for ordinary SENDs also take relaxed ones, which have their own
// order.
const (
	kindNotification = iota
	kindMessage
	kindRelaxed
	messageKinds
)

// Only the immediates of relaxed SENDs begin with relaxedMark; they end with the index of their
// request. So relaxed SENDs are recognized on the wire and on arrival.
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
	parts  []*part // with failover: all its parts that went out
	reread bool    // of a write: a read fetches its target; of a read: it fetches a write's target
	taken  bool    // its target was reused
	still  bool    // its target must not change any more

	landed bool // its data was seen at the target
	done   bool // its completion was polled
}

// operands are the operands of atomics.
type operands struct {
	word          *word
	first, second uint64 // to add; or to compare with, and to swap in
}

// outgoing counts the parts of a send that NICs were given.
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
// the model knows the value that each finds.
type word struct {
	at      lab.Span
	value   uint64 // after all atomics that have completed
	planned uint64 // after all that were posted
	known   bool   // no atomic has failed here: a failed one may have been carried out
}

const forever = math.MaxInt

// sharedID is the ID of all requests and receives in worlds with oneID.
const sharedID = 7

// id returns the work-request id of a send or receive. It contains the end and the index, unless
// all have one ID.
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
