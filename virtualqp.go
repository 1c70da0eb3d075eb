package ibverbx

import (
	"fmt"
	"math"
	"slices"
	"time"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// VirtualQP is one reliable connection over one or many physical queue pairs.
//
// It and its [VirtualCQ] are owned by one goroutine at a time: no two of their methods may run at
// once, whichever virtual queue pairs of the CQ they concern. Builds with the race detector panic
// when that is violated.
//
// The cursors count requests by number and only move forward:
//
//	send.head <= noted <= dataDone <= next <= send.tail
//	  |           |         |           |        |
//	  |           |         |           |        number of the next request
//	  |           |         |           all before it are wholly handed to the rails
//	  |           |         all before it have their data acknowledged
//	  |           all before it have had their notification (or SEND) posted, if they need one
//	  all before it were reported
type VirtualQP struct {
	cfg    Config
	num    uint32
	cq     *VirtualCQ
	dom    *Domain // set when NewQP created the queue pairs
	single bool
	closed bool
	phase  drainPhase
	state  verbs.QPState

	rails  []*rail // data rails
	notify *rail   // nil if there is none
	all    []*rail // the data rails, then the notify QP
	sendOn *rail   // the rail that carries SEND and its receives
	noteOn *rail   // the rail that carries Spray's notifications and their receives; nil in DQPLB

	localDevs, peerDevs uint64 // devices whose keys a request must have
	maxInline           int    // the least of all rails

	send                  ring.Window[sendReq]
	next, dataDone, noted uint64
	notes                 int     // live requests that need a notification or are a SEND
	free                  int     // send slots free on all data rails
	turn                  int     // data rail whose turn it is
	freed                 *rail   // rail that freed a slot while requests waited: served first
	blocked               bool    // a transient refusal left work staged
	staged                []*rail // rails that have something to post, and maybe some that have not any more

	numbers numberSender // DQPLB, sender
	rawImm  bool         // DQPLB: both ends carry the user's immediate

	recv    recvSide
	arrived numberReceiver // DQPLB, receiver
	scratch []verbs.RecvWR // for posting receives in batches
	owed    int            // credits to post again, of all rails

	failure *FailedError
	ports   map[uint8]localPort // by device, while a connection is set up
	suspect *rail               // its receives were flushed, and nothing else has failed yet
	failed  uint64              // the request that failed first; 0 for none
	since   time.Time           // when that was
	told    bool                // a send was reported with an error of its own; all others are flushed
	stopAt  uint64              // requests from here on post nothing more; never if the line runs
	killed  bool                // the rails were moved to ERR

	inflight int // single QP: requests accepted less completions, which unsignaled successes do not have

	own                ownRequests // single QP
	touched            bool
	ownsCQ, ownsDomain bool
	counters           qpCounters
}

// never is a request number that is not reached.
const never = math.MaxUint64

type qpCounters struct {
	sends, recvs, sendsDone, recvsDone, stale, markers, banked uint64
}

// NewVirtualQP makes a virtual queue pair of physical ones. qps are the data queue pairs, one or
// more, on any of the CQ's devices; notify may be nil where the configuration can do without. All
// must be in RESET and must complete on the physical CQs of cq, which must have room for them. The
// virtual queue pair owns the physical ones from then on.
//
// With one data queue pair and no notify QP, requests pass straight through: the user's own ID
// travels on the wire request, nothing is tracked, nothing queued, and limits and refusals are the
// NIC's own.
//
// [Domain.NewQP] creates the physical queue pairs too.
func NewVirtualQP(cq *VirtualCQ, qps []verbs.QP, notify verbs.QP, cfg Config) (*VirtualQP, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cq == nil || cq.closed {
		return nil, fmt.Errorf("ibverbx: new virtual qp: virtual cq: %w", verbs.ErrClosed)
	}
	if len(qps) == 0 || len(qps) > MaxRails {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: %d queue pairs: must be 1 to %d",
			verbs.ErrInvalid, len(qps), MaxRails)
	}
	q := &VirtualQP{
		cfg:    cfg,
		cq:     cq,
		single: len(qps) == 1,
		stopAt: never,
	}
	if q.single && notify != nil {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: a notify QP beside a single queue pair: leave "+
			"it out, or add queue pairs", verbs.ErrInvalid)
	}
	if !q.single && cfg.Scheme == Spray && notify == nil {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: the spray scheme needs a notify QP: give one, "+
			"or take dqplb", verbs.ErrInvalid)
	}
	for i, qp := range qps {
		q.rails = append(q.rails, newRail(q, qp, i))
	}
	if notify != nil {
		q.notify = newRail(q, notify, len(qps))
	}
	q.all = q.rails
	if q.notify != nil {
		q.all = append(slices.Clip(q.rails), q.notify)
	}
	q.assignRoles()
	q.limitFragments()
	q.initTracking()
	if err := cq.attach(q); err != nil {
		return nil, err
	}
	return q, nil
}

func newRail(q *VirtualQP, qp verbs.QP, index int) *rail {
	limits := qp.Cap()
	r := &rail{
		vqp:       q,
		qp:        qp,
		num:       qp.Num(),
		idBits:    uint64(index) << wridRailShift,
		device:    uint8(qp.Device().ID()),
		peerDev:   uint8(qp.Device().ID()),
		maxSGE:    max(1, limits.MaxSendSGE),
		psn:       newPSN(),
		limit:     max(1, min(q.cfg.MaxMsgCntPerQP, limits.MaxSendWR)),
		recvLimit: max(1, min(q.cfg.MaxMsgCntPerQP, limits.MaxRecvWR)),
	}
	if q.single {
		// Pass-through: the NIC's own limits, and a batch only to translate requests in.
		r.limit, r.recvLimit = limits.MaxSendWR, limits.MaxRecvWR
		r.slots = r.limit
		r.batch = newSendBatch(max(1, min(r.limit, passBatch)), r.maxSGE)
		return r
	}
	r.slots = r.limit
	r.batch = newSendBatch(r.limit, r.maxSGE)
	return r
}

// assignRoles decides which rail carries what.
func (q *VirtualQP) assignRoles() {
	q.sendOn = q.rails[0]
	switch {
	case q.single:
	case q.cfg.Scheme == Spray:
		q.noteOn = q.notify
		for _, r := range q.rails[1:] {
			r.recvLimit = 1 // a watch: see watchRails
		}
	default:
		// The receive queues of the data rails hold only credits, which a SEND would eat.
		q.sendOn = q.notify
		for _, r := range q.rails {
			r.recvLimit = max(1, min(q.cfg.Credits, r.qp.Cap().MaxRecvWR))
		}
	}
	q.maxInline = math.MaxInt
	for _, r := range q.all {
		q.localDevs |= 1 << r.device
		q.maxInline = min(q.maxInline, r.qp.Cap().MaxInline)
	}
	q.peerDevs = q.localDevs
}

// limitFragments lowers the size of a fragment to what every port carries in one message.
func (q *VirtualQP) limitFragments() {
	for _, r := range q.all {
		port, err := r.qp.Device().QueryPort(int(q.port(r)))
		if err == nil && port.MaxMsgSize != 0 { // a port that cannot be asked now is refused by Connect
			q.cfg.MaxMsgSize = min(q.cfg.MaxMsgSize, port.MaxMsgSize)
		}
	}
}

// initTracking gives the virtual queue pair its empty windows.
func (q *VirtualQP) initTracking() {
	if q.single {
		return
	}
	q.send = ring.NewWindow[sendReq]()
	q.next, q.dataDone, q.noted = 1, 1, 1
	q.recv = newRecvSide()
	q.scratch = make([]verbs.RecvWR, passBatch)
	for _, r := range q.rails {
		q.free += r.limit
	}
	if q.cfg.Scheme == DQPLB {
		q.numbers = newNumberSender(maxWindow, 0)
	}
	for _, r := range q.rails {
		size := 1
		for size < r.recvLimit && q.cfg.Scheme == DQPLB {
			size *= 2
		}
		r.inbox = creditInbox{slots: make([]creditArrival, size), mask: uint64(size - 1)}
	}
}

// Num is the virtual queue pair's number: unique within its virtual CQ, and what [WC.QPNum] says.
func (q *VirtualQP) Num() uint32 { return q.num }

// CQ is the virtual CQ on which requests complete.
func (q *VirtualQP) CQ() *VirtualCQ { return q.cq }

// Domain is the domain that created the physical queue pairs; nil if [NewVirtualQP] was given them.
func (q *VirtualQP) Domain() *Domain { return q.dom }

// Config is the configuration in force, defaults filled in and limits lowered to what the queue
// pairs allow.
func (q *VirtualQP) Config() Config {
	cfg := q.cfg
	cfg.NoNotifyQP = q.notify == nil
	cfg.MaxMsgCntPerQP = q.rails[0].limit
	for _, r := range q.rails {
		cfg.MaxMsgCntPerQP = min(cfg.MaxMsgCntPerQP, r.limit)
		if q.cfg.Scheme == DQPLB && !q.single {
			cfg.Credits = min(cfg.Credits, r.recvLimit)
		}
	}
	return cfg
}

// DataRails is how many data queue pairs there are; 1 means pass-through.
func (q *VirtualQP) DataRails() int { return len(q.rails) }

// Scheme is the active load-balancing scheme. It matters only when there are several queue pairs.
func (q *VirtualQP) Scheme() Scheme { return q.cfg.Scheme }

// State is the state that the last Modify or Connect reached; ERR once a request has failed. From
// [VirtualQP.Drain] or [VirtualQP.Shutdown] on it is SQD while sends come to their end, and then
// ERR.
func (q *VirtualQP) State() verbs.QPState {
	if q.failure != nil {
		return verbs.StateErr
	}
	if q.phase == drainSends {
		return verbs.StateSQD
	}
	return q.state
}

// Err says what stopped the virtual queue pair, as a [*FailedError], or nil while it works. What
// Drain, Close and Reset have had flushed is no failure.
//
// That the queue pair under it has failed, a virtual queue pair learns from what it has outstanding
// there. Where it posts nothing itself and keeps no receive, it does not notice until it posts: on
// a single queue pair, on rail 0 of [Spray], and on the notify QP of [DQPLB] and of Spray, while no
// receive of the user waits there. The other data queue pairs hold receives of its own, unless all
// are used up and a full bank ([Config.MaxBanked]) withholds new ones.
func (q *VirtualQP) Err() error {
	if q.failure == nil {
		return nil
	}
	return q.failure
}
