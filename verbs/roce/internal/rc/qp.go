package rc

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// Config configures a QP.
type Config struct {
	// QP has the queues, the attributes and the state. This package changes all of it except the
	// posted requests.
	QP *nic.QP
	// MaxMsgSize is the longest message, bytes.
	MaxMsgSize uint64
	Sink       Sink
	// Rand draws the fields that a failed completion leaves undefined, and spreads probes.
	Rand *rand.Rand
	// Window is the most bytes under way to an end of this package; 0 means 1 MiB.
	Window int
	// Announce marks packets as those of an end of this package, and recognises a peer that does
	// so. Without it, every peer is foreign unless PeerIsOurs is called.
	Announce bool
	// Rate limits the queue pair to so many bytes of payload a second; 0 is no limit.
	Rate float64
	// Grant is the acknowledgement for an end of this package; it says how much that end's NIC may
	// put under way to this one: see Granted. Nil stands for [wire.Ack], which says nothing.
	Grant *wire.Syndrome
	// Pool has the memory for packets that arrive early; with nil the QP has its own pool.
	Pool *Pool
}

// Sink receives the completions and events of a QP. The only method of the QP that it may call is
// Fail.
type Sink interface {
	// Complete receives each completion, in posting order for each direction. The QP reuses the
	// completion afterwards.
	Complete(*nic.Completion)
	// Raise receives the events of the queue pair.
	Raise(verbs.EventType)
}

// QP is a reliable connection. The package documentation says how to drive it.
type QP struct {
	*nic.QP
	cfg   Config
	shift uint  // the logarithm of the path MTU in bytes
	ours  bool  // the peer is an end of this package
	now   int64 // the time of the call under way, nanoseconds
	turn  bool  // requests come before answers in the next batch
	// announcing is set while requests that are sent for the first time announce this end.
	announcing bool
	// allowed is how many more numbers may be put under way; heldBack is set when this limit has
	// held one back: see Allow.
	allowed  int
	heldBack bool
	granted  wire.Syndrome // by the last acknowledgement; 0 if Granted has returned it
	outcome  Outcome       // since TakeOutcome was called last

	req     requester
	resp    responder
	limiter limiter // for req and resp together
	stats   Stats
	done    nic.Completion // on its way to the sink
}

// Stats counts the events of a QP since it was made.
type Stats struct {
	Sent       uint64 // packets of requests and answers, without acknowledgements
	Received   uint64 // the same
	Resent     uint64 // packets that were sent again
	Timeouts   uint64 // acknowledgement timeouts
	Probes     uint64 // packets sent again because the last ones may be lost
	NAKs       uint64 // received, other than RNR NAKs
	RNRNAKs    uint64 // received
	Duplicates uint64 // packets received a second time
	Ahead      uint64 // packets received ahead of a missing one
	Unexpected uint64 // packets dropped: of another connection, or answers to nothing under way
	Broken     uint64 // packets received that violate the protocol
	Marked     uint64 // packets received with the network's mark of congestion
	CNPsSent   uint64 // congestion notifications sent to foreign peers
	CNPs       uint64 // received
}

// Never is a time that never comes.
const Never = math.MaxInt64

// New makes a QP in RESET.
func New(cfg Config) *QP {
	if cfg.Window == 0 {
		cfg.Window = 1 << 20
	}
	if cfg.Pool == nil {
		cfg.Pool = new(Pool)
	}
	return &QP{QP: cfg.QP, cfg: cfg, allowed: math.MaxInt}
}

// Allow limits how many numbers the calls of Transmit put under way from now on, in addition to the
// window. The oldest lost number may always be sent again. Without Allow there is no limit.
func (q *QP) Allow(numbers int) { q.allowed, q.heldBack = numbers, false }

// HeldBack reports whether the limit of the last Allow has held packets back.
func (q *QP) HeldBack() bool { return q.heldBack }

// Granted returns the peer's last acknowledgement, once. It says how much the NIC of this end may
// put under way to the peer's.
func (q *QP) Granted() (s wire.Syndrome, ok bool) {
	s, q.granted = q.granted, 0
	return s, s != 0
}

// Outcome is what has become of packets since the last call of TakeOutcome.
type Outcome struct {
	Arrived, Missed int   // how many have reached the peer, and how many the network has lost
	Stuck           int   // how many times it has marked some while the window could not shrink
	RoundTrip       int64 // the last one that was measured, nanoseconds; 0 if none was
}

// TakeOutcome returns the outcome since the last call.
func (q *QP) TakeOutcome() (o Outcome) {
	o, q.outcome = q.outcome, o
	return o
}

// UnderWay returns how many numbers are under way, or 0 once the peer was silent for silentProbes
// probes: the QPs that share its room with this one need not wait for it.
func (q *QP) UnderWay() int {
	if q.req.timers.probes+q.req.timers.tries >= silentProbes {
		return 0
	}
	return q.req.flying
}

// Probing reports whether the peer was probed since it last answered.
func (q *QP) Probing() bool { return q.req.timers.probes > 0 }

// silentProbes is some hundred milliseconds.
const silentProbes = 4

// Stats returns the counters.
func (q *QP) Stats() Stats { return q.stats }

// PeerIsOurs declares the peer an end of this package.
func (q *QP) PeerIsOurs() { q.ours = true }

// IsOurs reports whether the peer is known to be an end of this package: it has announced that
// since the last reset, or PeerIsOurs was called.
func (q *QP) IsOurs() bool { return q.ours }

// WantsECT reports whether packets should leave with the code point ECT(0), so that the network
// marks them instead of dropping them. The peer must report marks, which a foreign one might not.
func (q *QP) WantsECT() bool { return q.ours }

// Enter takes the QP to a state after its attributes were applied. The caller has checked that both
// are legal ([nic.QP.CheckModify]).
func (q *QP) Enter(now int64, state verbs.QPState) {
	q.now = now
	if state == q.State {
		if q.Receptive() {
			q.resp.allow(int(q.Attr.MaxDestRDAtomic))
		}
		return
	}
	switch state {
	case verbs.StateReset:
		q.Reset()
		q.resp.stop()
		*q = QP{QP: q.QP, cfg: q.cfg, stats: q.stats, allowed: q.allowed}
		return
	case verbs.StateErr:
		q.Fail()
		return
	case verbs.StateRTR:
		q.announcing = q.cfg.Announce
		q.shift = uint(bits.TrailingZeros(uint(q.Attr.PathMTU.Bytes())))
		q.resp.start(firstSeq(q.Attr.RQPSN), int(q.Attr.MaxDestRDAtomic), q.cfg.Pool)
		q.limiter.start(q.cfg.Rate, now)
	case verbs.StateRTS:
		if q.State == verbs.StateRTR {
			q.req.start(q, firstSeq(q.Attr.SQPSN))
		}
		q.req.draining = false
	case verbs.StateSQD:
		q.req.draining = true
	}
	q.State = state
}

// mtu is the longest payload of a packet, bytes.
func (q *QP) mtu() uint64 { return 1 << q.shift }

// packets is the number of packets of a message of n bytes.
func (q *QP) packets(n uint64) uint64 { return max((n+q.mtu()-1)>>q.shift, 1) }

// Fail takes the QP to ERR: it flushes everything outstanding and sends nothing more.
func (q *QP) Fail() {
	q.toError()
	r := &q.resp
	r.answers.clear()
	r.nak, r.ackDue, r.gapDue = 0, false, false
	r.congested.notice = false
}

// toError takes the QP to ERR; answers due to the peer still leave.
func (q *QP) toError() {
	if q.State == verbs.StateErr || q.State == verbs.StateReset {
		return
	}
	q.State = verbs.StateErr
	q.req.stop()
	q.resp.stop()
	q.flush()
}

// flush ends all requests of a QP in ERR, sends first.
func (q *QP) flush() {
	for {
		slot, ok := q.SQ.TakeUnended()
		if !ok {
			break
		}
		q.fail(nic.Send, slot, verbs.StatusWRFlushErr)
	}
	for {
		slot, ok := q.RQ.Take()
		if !ok {
			return
		}
		q.fail(nic.Recv, slot, verbs.StatusWRFlushErr)
	}
}

// fail completes a request without success.
func (q *QP) fail(dir nic.Direction, slot uint64, status verbs.Status) {
	vendorErr := uint32(0)
	if status == verbs.StatusWRFlushErr {
		vendorErr = nic.VendorFlushed
	}
	q.done = nic.Completion{}
	q.Failed(&q.done, dir, slot, status, vendorErr, q.cfg.Rand)
	q.cfg.Sink.Complete(&q.done)
}

// Transmit adds to b the packets that may leave now. If it reports more, the batch is full: call
// Transmit again with an empty one.
func (q *QP) Transmit(now int64, b *Batch) (more bool) {
	q.now = now
	q.transmitNotice(b)
	// Answers and requests take turns at being first, so that neither starves the other.
	if q.turn = !q.turn; q.turn {
		q.transmitRequests(b)
		q.transmitAnswers(b)
	} else {
		q.transmitAnswers(b)
		q.transmitRequests(b)
	}
	q.transmitAck(b) // last: the peer's program may be waiting for the other packets
	return b.full()
}

// OwesAckAlone reports whether only an acknowledgement is to be sent: it may wait a little, to
// leave with other packets.
func (q *QP) OwesAckAlone() bool {
	r := &q.resp
	return r.ackDue && r.nak == 0 && !r.gapDue && !r.congested.notice && r.answers.empty() &&
		q.req.lost == 0 && q.req.next == q.req.end
}

// Deadline is the time at which Tick must be called; Never if no timer runs.
func (q *QP) Deadline() int64 {
	at := q.requesterDeadline()
	if !q.resp.answers.empty() {
		at = min(at, q.limiter.next(q.now))
	}
	return at
}
