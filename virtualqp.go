package ibverbx

import (
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// VirtualQP is one reliable connection over one or many physical queue pairs.
//
// It and its [VirtualCQ] are owned by one goroutine at a time: no two of their methods may run at
// once, whichever virtual queue pairs of the CQ they concern. A call that finds another one inside
// panics, because a NIC would do what neither has asked for. Builds with the race detector find
// every violation, others most of them, for about a nanosecond a call.
//
// A VirtualQP must not be copied.
type VirtualQP struct {
	_ guard.NoCopy

	// What each request touches comes first, and so in each of the structs.

	cq      *VirtualCQ
	pass    *passThrough // a single queue pair; nil with several
	num     uint32
	touched bool // in the CQ's list of those that have something to carry on with
	line    line // may anything go out, and if not why
	// send.rails are the queue pairs, however many. The rest of send, and recv, are used only with
	// several; with one they stay empty, and what runs over them does nothing.
	send sender
	recv receiver

	cfg                Config  // defaults filled in
	dom                *Domain // set when NewQP created the queue pairs
	ownsCQ, ownsDomain bool    // closed together with it
	stale              uint64  // completions that fitted nothing, and were dropped

	failover *recovery // where failover is in force; otherwise nil
	offered  *recovery // where this end offers it; otherwise nil

	due time.Time // when the CQ touches it; zero while it is not in the CQ's list of those
}

// newVirtualQP is NewVirtualQP with spares for the notify QP.
func newVirtualQP(cq *VirtualCQ, qps []verbs.QP, notify verbs.QP, spares []verbs.QP, cfg Config) (
	*VirtualQP, error,
) {
	cfg = cfg.withDefaults(devicesOf(qps))
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	switch {
	case cq == nil:
		return nil, fmt.Errorf("ibverbx: new virtual qp: virtual cq: %w", verbs.ErrClosed)
	case cq.closed:
		return nil, fmt.Errorf("ibverbx: new virtual qp: virtual cq %d: %w", cq.num, verbs.ErrClosed)
	case len(qps) == 0 || len(qps) > MaxRails:
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: %d queue pairs: must be 1 to %d",
			verbs.ErrInvalid, len(qps), MaxRails)
	case len(qps) == 1 && notify != nil:
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: a notify QP beside a single queue pair: leave "+
			"it out, or add queue pairs", verbs.ErrInvalid)
	}
	if err := checkQueuePairs(qps, notify); err != nil {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w", err)
	}
	q := &VirtualQP{cfg: cfg, cq: cq}
	q.line = newLine(q.cfg.clock())
	rails := newRailSet(&q.cfg, qps, notify, spares)
	for _, r := range rails.all {
		r.vqp = q
	}
	var err error
	if q.cfg.FragmentSize, err = q.fitPorts(&rails); err != nil {
		return nil, err
	}
	rails.maxFragment = q.cfg.FragmentSize
	if cfg.Failover {
		if err := rails.fitFailover(cfg.Scheme); err != nil {
			return nil, err
		}
	}
	cq.fit(&rails)
	if len(qps) == 1 {
		q.send.rails = rails
		q.pass = newPassThrough(q)
	} else {
		rails.assignRoles(cfg.Scheme, cfg.Credits, cfg.Failover)
		if cfg.Balance == ByAbility {
			rails.measure(q.cfg.clock())
		}
		q.send = newSender(rails, &cq.batches, &cfg)
		q.recv = newReceiver(&cq.recvs, &cfg)
	}
	if err := cq.attach(q); err != nil {
		return nil, err
	}
	switch {
	case q.pass != nil:
		q.pass.qpNum = q.num
	case cfg.Failover:
		q.offered = newRecovery(q)
	}
	return q, nil
}

// devicesOf lists the devices of the queue pairs that are not nil, each once.
func devicesOf(qps []verbs.QP) (devices []verbs.Device) {
	for _, qp := range qps {
		if qp != nil && !slices.Contains(devices, qp.Device()) {
			devices = append(devices, qp.Device())
		}
	}
	return devices
}

// checkQueuePairs says which queue pair is nil, or on a device that the tables of virtual CQs have
// no place for.
func checkQueuePairs(qps []verbs.QP, notify verbs.QP) error {
	check := func(name string, qp verbs.QP) error {
		if dev := qp.Device(); dev.ID() >= verbs.MaxDevices {
			return fmt.Errorf("%w: %s is on %s, whose index is %d, of %d at most", verbs.ErrInvalid, name,
				dev.Name(), dev.ID(), verbs.MaxDevices-1)
		}
		return nil
	}
	for i, qp := range qps {
		name := fmt.Sprintf("queue pair %d of %d", i, len(qps))
		if qp == nil {
			return fmt.Errorf("%w: %s is nil", verbs.ErrInvalid, name)
		}
		if err := check(name, qp); err != nil {
			return err
		}
	}
	if notify != nil {
		return check("the notify QP", notify)
	}
	return nil
}

// fitPorts limits each rail's messages to what its port carries in one, and returns the configured
// size of a fragment, lowered to what every port carries.
func (q *VirtualQP) fitPorts(rails *railSet) (fragment uint32, err error) {
	fragment = q.cfg.FragmentSize
	var longest [verbs.MaxDevices]uint64 // by device; 0 is not asked yet
	for _, r := range rails.all {
		if longest[r.device] == 0 {
			dev := r.qp.Device()
			port := int(q.cfg.Conn.port(dev))
			attr, err := dev.QueryPort(port)
			if err != nil {
				return 0, fmt.Errorf("ibverbx: new virtual qp: %s port %d: %w", dev.Name(), port, err)
			}
			longest[r.device] = maxMessage
			if attr.MaxMsgSize != 0 {
				longest[r.device] = min(maxMessage, uint64(attr.MaxMsgSize))
			}
		}
		r.maxMessage = longest[r.device]
		fragment = uint32(min(uint64(fragment), r.maxMessage))
	}
	return fragment, nil
}

// Num is the virtual queue pair's number: unique in the process, so that log lines mean something,
// and what [WC.QPNum] says.
func (q *VirtualQP) Num() uint32 { return q.num }

// CQ is the virtual CQ on which requests complete.
func (q *VirtualQP) CQ() *VirtualCQ { return q.cq }

// QPs are the physical queue pairs: the data queue pairs, and then the notify QP if there is one.
// They are for queries; to post on them, modify or close them invalidates what the virtual queue
// pair knows of them.
func (q *VirtualQP) QPs() []verbs.QP {
	var qps []verbs.QP
	for _, r := range q.send.rails.all {
		qps = append(qps, r.qp)
	}
	return qps
}

// Domain is the domain that created the physical queue pairs; nil if [NewVirtualQP] was given them.
func (q *VirtualQP) Domain() *Domain { return q.dom }

// Config is the configuration in force, defaults filled in and limits lowered to what the queue
// pairs allow.
func (q *VirtualQP) Config() Config {
	rails := &q.send.rails
	cfg := q.cfg
	cfg.NoNotifyQP = rails.notify == nil
	cfg.MaxMsgCntPerQP = maxQueue
	for _, r := range rails.data {
		if r.down {
			continue
		}
		cfg.MaxMsgCntPerQP = min(cfg.MaxMsgCntPerQP, r.limit)
		if q.cfg.Scheme == DQPLB && q.pass == nil {
			cfg.Credits = min(cfg.Credits, r.recvLimit)
		}
	}
	return cfg
}

// DataRails is how many data queue pairs there are; 1 means pass-through.
func (q *VirtualQP) DataRails() int { return len(q.send.rails.data) }

// Scheme is the active load-balancing scheme. It matters only when there are several queue pairs.
func (q *VirtualQP) Scheme() Scheme { return q.cfg.Scheme }

// State is the state that the last Modify or Connect reached; ERR once a request has failed. From
// [VirtualQP.Drain] or [VirtualQP.Shutdown] on it is SQD while sends run to completion, and then
// ERR.
func (q *VirtualQP) State() verbs.QPState { return q.line.shown() }

// Err says what stopped the virtual queue pair, as a [*FailedError], or nil while it works. What
// Drain, Close and Reset have had flushed is no failure.
//
// A virtual queue pair learns that a queue pair under it has failed from what it has outstanding
// there. Where it posts nothing itself and keeps no receive, it does not notice until it posts: on
// a single queue pair, on rail 0 of [Spray], and on the notify QP of [DQPLB] and of Spray, while no
// receive of the user waits there. The other data queue pairs hold receives of its own, unless all
// are used up and a full bank ([Config.MaxBanked]) withholds new ones. With failover in force it
// asks such queue pairs when another one is lost or comes back, and when the NIC reports a failure.
func (q *VirtualQP) Err() error {
	if q.line.err == nil {
		return nil
	}
	return q.line.err
}

// Card is this end's business card, to send to the peer.
func (q *VirtualQP) Card() (BusinessCard, error) {
	q.enter()
	defer q.exit()
	return newHandshake(q).card()
}

// Stats takes a snapshot. It follows the ownership rule of [VirtualQP].
func (q *VirtualQP) Stats() Stats {
	q.enter()
	defer q.exit()
	s := Stats{Scheme: q.cfg.Scheme, State: q.State(), StaleEvents: q.stale, Failover: q.failover != nil}
	if x := q.offered; x != nil {
		s.RailsLost, s.RailsBack, s.Reposted = x.railsLost, x.railsBack, x.reposted
	}
	if p := q.pass; p != nil {
		s.Sends, s.SendsCompleted, s.Recvs, s.RecvsCompleted = p.sends, p.sendsDone, p.recvs, p.recvsDone
	} else {
		q.send.stats(&s)
		q.recv.stats(&s)
	}
	for _, r := range q.send.rails.all {
		bytes, fragments := r.stats.bytes, r.stats.fragments
		if q.pass != nil {
			bytes, fragments = q.pass.bytes, q.pass.sends
		}
		s.Rails = append(s.Rails, RailStats{
			Device: r.qp.Device().Name(), QPNum: r.qp.Num(), Notify: r == q.send.rails.notify,
			Spare: slices.Contains(q.send.rails.spares, r), Down: r.down,
			Bytes: bytes, Fragments: fragments, Notifications: r.stats.messages,
			Outstanding: r.inUse, Limit: r.limit, Recvs: r.recvs, RecvLimit: r.recvLimit,
			Errors: r.stats.errors, Refused: r.stats.refused,
		})
		if r.ability != nil {
			s.Rails[len(s.Rails)-1].Rate = r.ability.Rate()
		}
	}
	return s
}

// PostSend hands requests to the virtual queue pair, in order, and says how many it accepted. When
// n is less than len(wrs) the error, a [*PostError], says why wrs[n] was refused; it and those
// behind it had no effect.
//
// The memory that a request names belongs to the NICs until its completion is reported. The slices
// SGL and Inline, and wrs itself, are the caller's again when PostSend returns.
//
// Requests beyond what the physical queues hold are queued here, up to 2^27 of them. A single-QP
// virtual queue pair queues nothing: it refuses with [verbs.ErrQueueFull] when the NIC's queue is
// full.
//
// Errors: [ErrClosed], [ErrFailed], [ErrDraining], [ErrNotConnected], [ErrOpcode], [ErrUnsignaled],
// [ErrLength], [ErrNoKey], [ErrBounds], [ErrAlignment], [verbs.ErrInvalid], [verbs.ErrQueueFull].
func (q *VirtualQP) PostSend(wrs ...SendWR) (n int, err error) {
	q.enter()
	switch refusal := q.line.canSend(); {
	case len(wrs) == 0:
	case refusal != nil:
		err = q.stateError("post send", wrs[0].ID, refusal)
	case q.pass == nil:
		n, err = q.postSends(wrs)
	case len(wrs) == 1:
		n, err = q.pass.postSend(wrs)
	default:
		n, err = q.pass.postSends(wrs)
	}
	q.exit()
	return n, err
}

func (q *VirtualQP) postSends(wrs []SendWR) (n int, err error) {
	held := holder{}
	for n < len(wrs) {
		if q.send.win.Len() >= wrid.MaxOutstanding {
			err = refuseSend(n, &wrs[n], verbs.ErrQueueFull,
				"2^27 requests are outstanding: poll completions")
			break
		}
		wr := &wrs[n]
		var length uint64
		if length, err = q.send.rails.checkSend(n, wr); err != nil {
			break
		}
		if err = held.holdSend(n, wr); err != nil {
			break
		}
		q.send.enqueue(wr, length)
		n++
	}
	held.settle()
	q.dispatch()
	return n, err
}

// PostRecv hands receives to the virtual queue pair, in order, and says how many it accepted. When
// n is less than len(wrs) the error, a [*PostError], says why wrs[n] was refused; it and those
// behind it had no effect. [RecvWR] says what a receive with and without memory takes. The memory
// belongs to the NICs until the completion is reported.
//
// Receives beyond what the physical queues hold are queued here, up to 2^27 of them; a single-QP
// virtual queue pair queues nothing. A DQPLB notification that came
// before its receive was posted completes that receive at once.
//
// Errors: [ErrClosed], [ErrFailed], [ErrDraining], [ErrNotConnected], [ErrOpcode] (a receive with
// memory where no queue pair carries SEND, or one without where none carries notifications),
// [ErrLength], [ErrNoKey], [ErrBounds],
// [verbs.ErrInvalid], [verbs.ErrQueueFull].
func (q *VirtualQP) PostRecv(wrs ...RecvWR) (n int, err error) {
	q.enter()
	switch refusal := q.line.canRecv(); {
	case len(wrs) == 0:
	case refusal != nil:
		err = q.stateError("post recv", wrs[0].ID, refusal)
	case q.pass != nil:
		n, err = q.pass.postRecvs(wrs)
	default:
		n, err = q.postRecvs(wrs)
	}
	q.exit()
	return n, err
}

func (q *VirtualQP) postRecvs(wrs []RecvWR) (n int, err error) {
	held := holder{}
	for n < len(wrs) {
		if q.recv.win.Len() >= wrid.MaxOutstanding {
			err = refuseRecv(n, &wrs[n], verbs.ErrQueueFull,
				"2^27 receives are outstanding: poll completions")
			break
		}
		if err = q.recv.enqueue(&q.send.rails, &held, n, &wrs[n]); err != nil {
			break
		}
		n++
	}
	held.settle()
	q.dispatchRecvs()
	if q.recv.creditsWait && q.recv.live(q.recv.win.Tail-uint64(n), false) {
		q.recv.creditsWait = false
		q.postDueCredits(true)
	}
	return n, err
}

// stateError is the error of a whole call that is refused because of the virtual queue pair's
// state.
func (q *VirtualQP) stateError(op string, id uint64, err error) error {
	e := &PostError{Op: op, ID: id, Err: err}
	switch {
	case q.line.err != nil && !q.line.closed:
		e.Detail, e.Cause = q.line.err.Error()+": reset or close the virtual QP", q.line.err
	case q.line.phase != drainNone && !q.line.closed:
		e.Detail = fmt.Sprintf("virtual qp %d takes nothing more since Drain or Shutdown: reset and "+
			"connect it, or close it", q.num)
	case !q.line.closed:
		e.Detail = fmt.Sprintf("virtual qp %d is in %v: call Connect first", q.num, q.line.state)
	}
	return e
}

// checkInvariants checks every component. Builds that check call it after each method that changes
// something; see guard.go.
func (q *VirtualQP) checkInvariants() {
	q.line.check()
	q.send.rails.check()
	if q.pass != nil {
		q.pass.check()
		return
	}
	q.send.check()
	q.recv.check(&q.send.rails)
	if q.failover != nil {
		q.failover.check()
	}
}

// newPassThrough makes the pass-through of a virtual queue pair with one rail, which has the NIC's
// own limits.
func newPassThrough(q *VirtualQP) *passThrough {
	rails := &q.send.rails
	r := rails.data[0]
	r.slots, r.recvLimit = r.qp.Cap().MaxSendWR, r.qp.Cap().MaxRecvWR
	r.limit = r.slots
	rails.sendRail = r
	rails.recount()
	return &passThrough{rail: r, rails: rails, qp: r.qp, line: &q.line, cq: q.cq, batch: &q.cq.translated,
		imms: immOrder(q.cfg.Conn.ImmLittleEndian)}
}

// newRecovery makes what a virtual queue pair that offers failover needs when rails fail.
func newRecovery(q *VirtualQP) *recovery {
	return &recovery{protocol: q.send.rails.protocol, send: &q.send, recv: &q.recv, rails: &q.send.rails,
		line: &q.line, ports: &q.cq.ports, cfg: &q.cfg, num: q.num}
}
