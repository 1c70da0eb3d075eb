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
// It and its [VirtualCQ] are owned by one goroutine at a time: no two methods of the CQ and of all
// its virtual queue pairs may run at once. A call that finds another one inside panics, because
// otherwise a NIC might do what neither asked for. Builds with the race detector find every
// violation, others most of them, for about a nanosecond a call.
//
// A VirtualQP must not be copied.
type VirtualQP struct {
	_ guard.NoCopy

	// In this struct and those inside it, fields that every request uses come first.

	cq      *VirtualCQ
	pass    *passThrough // a single queue pair; nil with several
	num     uint32
	touched bool // in the CQ's list of queue pairs that have something to do
	line    line // whether anything may be posted, and if not why
	// send.rails has the queue pairs, one or several. The rest of send, and recv, are used only
	// with several; with one they stay empty, and code that walks them does nothing.
	send sender
	recv receiver

	cfg                Config  // defaults filled in
	dom                *Domain // set when NewQP created the queue pairs
	ownsCQ, ownsDomain bool    // closed together with it
	stale              uint64  // completions that fitted no request, and were dropped

	failover *recovery // nil unless failover is in force
	offered  *recovery // nil unless this end offers failover

	observer *observer // nil without Config.Timing and Config.Trace

	due time.Time // when the CQ touches it; zero while it is not listed for that
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
	if cfg.Timing || cfg.Trace {
		cq.observe(q)
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

// checkQueuePairs returns an error if a queue pair is nil, or on a device that the tables of
// virtual CQs have no place for.
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

// fitPorts limits each rail's messages to the longest that its port carries, and returns the
// configured size of a fragment, lowered to what every port carries.
func (q *VirtualQP) fitPorts(rails *railSet) (fragment uint32, err error) {
	fragment = q.cfg.FragmentSize
	var longest [verbs.MaxDevices]uint64 // by device; 0 means not queried yet
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

// Num returns the virtual queue pair's number, which is unique in the process. It is [WC.QPNum],
// and identifies the queue pair in logs.
func (q *VirtualQP) Num() uint32 { return q.num }

// CQ returns the virtual CQ on which requests complete.
func (q *VirtualQP) CQ() *VirtualCQ { return q.cq }

// QPs returns the physical queue pairs: the data queue pairs, and then the notify QP if there is
// one. Use them only for queries: do not post on them, modify or close them.
func (q *VirtualQP) QPs() []verbs.QP {
	var qps []verbs.QP
	for _, r := range q.send.rails.all {
		qps = append(qps, r.qp)
	}
	return qps
}

// Domain returns the domain that created the physical queue pairs; nil if they were passed to
// [NewVirtualQP].
func (q *VirtualQP) Domain() *Domain { return q.dom }

// Config returns the configuration in force, with its defaults filled in and its limits lowered to
// what the queue pairs allow.
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

// DataRails returns the number of data queue pairs; 1 means pass-through.
func (q *VirtualQP) DataRails() int { return len(q.send.rails.data) }

// Scheme returns the load-balancing scheme. It matters only with several queue pairs.
func (q *VirtualQP) Scheme() Scheme { return q.cfg.Scheme }

// State returns the state that the last Modify or Connect reached; ERR once a request has failed.
// From [VirtualQP.Drain] or [VirtualQP.Shutdown] on it is SQD while sends run to completion, and
// then ERR.
func (q *VirtualQP) State() verbs.QPState { return q.line.shown() }

// Err returns what stopped the virtual queue pair, a [*FailedError], or nil while it works. Flushes
// by Drain, Close and Reset are not failures.
//
// Only outstanding requests show a virtual queue pair that one of its queue pairs has failed. One
// with nothing outstanding shows its failure only at the next post: this can be a single queue
// pair, rail 0 of [Spray], or the notify QP of [DQPLB] and of Spray, while no receive of yours
// waits there. The other data queue pairs hold receives of the virtual queue pair itself, unless
// all are used up and a full bank ([Config.MaxBanked]) withholds new ones. With failover in force
// it asks such queue pairs when another one is lost or comes back, and when the NIC reports a
// failure.
func (q *VirtualQP) Err() error {
	if q.line.err == nil {
		return nil
	}
	return q.line.err
}

// Card returns this end's business card, to send to the peer.
func (q *VirtualQP) Card() (BusinessCard, error) {
	q.enter()
	defer q.exit()
	return newHandshake(q).card()
}

// Stats takes a snapshot. It follows the ownership rule of [VirtualQP].
func (q *VirtualQP) Stats() Stats {
	q.enter()
	defer q.exit()
	return qpStats(q)
}

// qpStats is VirtualQP.Stats, within a call.
func qpStats(q *VirtualQP) Stats {
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
	if o := q.observer; o != nil && o.timing != nil {
		timing := *o.timing
		s.Timing = &timing
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

// Carrier returns what carries the connection, as the NICs report it. It follows the ownership rule
// of [VirtualQP], and is not for the hot path: it queries each queue pair. What a NIC does not
// report is zero.
func (q *VirtualQP) Carrier() Carrier {
	q.enter()
	defer q.exit()
	return q.send.rails.carrier(&q.cfg, q.failover != nil)
}

// PostSend posts requests to the virtual queue pair, in order, and returns how many it accepted. If
// n is less than len(wrs), the error, a [*PostError], says why wrs[n] was refused; it and all later
// ones had no effect.
//
// The memory that a request names belongs to the NICs until its completion is reported. You may
// reuse the slices SGL and Inline, and wrs itself, when PostSend returns.
//
// Requests beyond what the physical queues hold are queued here, up to 2^27 of them. With a single
// queue pair nothing is queued: the error is [verbs.ErrQueueFull] if the NIC's queue is full.
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
	case q.observer != nil:
		n, err = q.pass.postObserved(wrs)
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
		if q.send.win.Full() {
			if q.send.win.Len() >= wrid.MaxOutstanding {
				err = refuseSend(n, &wrs[n], verbs.ErrQueueFull,
					"2^27 requests are outstanding: poll completions")
				break
			}
			q.send.win.Grow()
		}
		wr := &wrs[n]
		var length uint64
		var keys *Keys
		if length, keys, err = q.send.rails.checkSend(n, wr); err != nil {
			break
		}
		if err = held.holdSend(n, wr, keys); err != nil {
			break
		}
		q.send.enqueue(wr, length, keys)
		n++
	}
	held.settle()
	if q.observer != nil {
		dispatchObserved(q, n)
		return n, err
	}
	q.dispatch()
	return n, err
}

// dispatchObserved is dispatch after n requests were accepted, with an observer.
func dispatchObserved(q *VirtualQP, n int) {
	posting := region("ibverbx post")
	q.observer.accepted(&q.send, n)
	q.dispatch()
	q.observer.recorder.lapse()
	if posting != nil {
		posting.End()
	}
}

// PostRecv posts receives to the virtual queue pair, in order, and returns how many it accepted. If
// n is less than len(wrs), the error, a [*PostError], says why wrs[n] was refused; it and all later
// ones had no effect. [RecvWR] says which messages a receive with and without memory takes. The
// memory belongs to the NICs until the completion is reported.
//
// Receives beyond what the physical queues hold are queued here, up to 2^27 of them; with a single
// queue pair nothing is queued. A DQPLB notification that arrived before its receive was posted
// completes that receive at once.
//
// Errors: [ErrClosed], [ErrFailed], [ErrDraining], [ErrNotConnected], [ErrOpcode] (a receive with
// memory if no queue pair carries SENDs, or one without if none carries notifications),
// [ErrLength], [ErrNoKey], [ErrBounds], [verbs.ErrInvalid], [verbs.ErrQueueFull].
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
		if q.recv.win.Full() {
			if q.recv.win.Len() >= wrid.MaxOutstanding {
				err = refuseRecv(n, &wrs[n], verbs.ErrQueueFull,
					"2^27 receives are outstanding: poll completions")
				break
			}
			q.recv.win.Grow()
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

// stateError returns the error of a call that is refused because of the virtual queue pair's state.
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
		imms: immOrder(q.cfg.Conn.ImmLittleEndian), failed: q.cfg.Events.Failed}
}

// newRecovery makes the recovery of a virtual queue pair that offers failover.
func newRecovery(q *VirtualQP) *recovery {
	return &recovery{protocol: q.send.rails.protocol, send: &q.send, recv: &q.recv, rails: &q.send.rails,
		line: &q.line, ports: &q.cq.ports, cfg: &q.cfg, num: q.num}
}
