package roce

import (
	"fmt"
	"net/netip"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/wire"
)

// QP is a reliable-connected queue pair. It is a verbs.QP. The NIC's lock guards it.
type QP struct {
	_      guard.NoCopy
	dev    *Device
	core   nic.QP
	engine *rc.QP
	path   path
	timer  timer
	// touched is set while the queue pair is in receiver.dirty.
	touched bool
	// ackDelayed is set while an acknowledgement waits to leave with other packets.
	ackDelayed bool
	// peerPort is the port that the peer sends from, once it is known to be an end of this package;
	// 0 before.
	peerPort uint16
	// underWay is the room that the packets under way take in the share, in bytes; each counts
	// cost.
	underWay, cost int
	// waits is set while the queue pair waits in its share; left is how many packets it may still
	// put under way of its last turn.
	waits bool
	left  int
	// blocked is set while the queue pair waits for room in the socket's send buffer.
	blocked bool
}

// path is the way to the peer.
type path struct {
	to    destination // nil until the address handle is set
	peer  netip.AddrPort
	share *share
	out   wire.Flow
	// sameHost says that packets between the two ends do not leave the kernel: see leavesOutICRC.
	sameHost bool
	// in is the flow of arriving packets, from the port that the last one came from.
	in     wire.Flow
	inPort uint16
}

// CreateQP makes a queue pair in RESET, with a random number.
func (p *PD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	cqs := [2]*nic.CQ{coreOf(cfg.SendCQ), coreOf(cfg.RecvCQ)}
	qcap, err := p.core.CheckQP(cfg.Cap, cqs[nic.Send], cqs[nic.Recv])
	if err != nil {
		return nil, err
	}
	num, ok := d.qps.TakeNum()
	if !ok {
		return nil, d.core.Err("create qp", verbs.ErrNoMemory, "no queue pair number is free")
	}
	q := &QP{dev: d, core: nic.QP{Num: num, Cap: qcap, SignalAll: cfg.SignalAll, CQs: cqs}}
	q.core.Init(&p.core)
	q.timer.Of = q
	q.engine = rc.New(rc.Config{QP: &q.core, MaxMsgSize: uint64(d.core.Limits.MaxMsgSize), Sink: (*sink)(q),
		Rand: newRand(d.draw), Window: d.cfg.Window, Rate: d.cfg.Rate, Announce: !d.cfg.Strict,
		Pool: &d.early, Grant: &d.crowd.grant})
	d.qps.Add(num, q)
	return q, nil
}

// Device is the NIC that the queue pair belongs to.
func (q *QP) Device() verbs.Device { return q.dev }

// Num is the queue pair's number.
func (q *QP) Num() uint32 { return q.core.Num }

// Cap returns the sizes of the queues, which are exactly those that were asked for.
func (q *QP) Cap() verbs.QPCap { return q.core.Cap }

// State is the present state; RESET once it is closed.
func (q *QP) State() verbs.QPState {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	return q.core.State
}

// Query returns the attributes in force.
func (q *QP) Query() (verbs.QPAttr, error) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	return q.core.Query()
}

// Modify changes attributes and state.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.dev
	var found route
	if mask&verbs.QPAttrAV != 0 { // before the lock: it takes several system calls
		found = d.route(attr.AH.DGID, q.wayOf(attr, mask))
		defer found.close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	next, err := q.core.CheckModify(attr, mask)
	if err != nil {
		return err
	}
	if mask&verbs.QPAttrPathMTU != 0 && attr.PathMTU > d.mtu {
		return q.core.Err("modify qp", verbs.ErrInvalid,
			fmt.Sprintf("path MTU %v, the link of %v (%s) carries %v",
				attr.PathMTU, d.local.Addr(), d.netDev, d.mtu))
	}
	if mask&verbs.QPAttrAV != 0 {
		way, err := q.pathOf(found, attr, mask)
		if err != nil {
			return err
		}
		// The old destination is closed, so its packets in the backlog are lost, and repaired.
		d.sender.forget(q)
		q.leaveShare()
		if q.path.to != nil {
			q.path.to.Close()
		}
		found.to, q.path = nil, way
	}
	if next != verbs.StateReset && next != verbs.StateErr {
		nic.Apply(&q.core.Attr, attr, mask)
	}
	q.sendDelayedAck()
	q.engine.Enter(d.now(), next)
	if next == verbs.StateReset {
		q.forget()
	}
	q.transmit()
	return nil
}

// pathOf is the way to the peer that attr names, along a route that was found.
func (q *QP) pathOf(found route, attr *verbs.QPAttr, mask verbs.QPAttrMask) (path, error) {
	d := q.dev
	const op = "modify qp"
	if found.err != nil {
		return path{}, q.core.Err(op, verbs.ErrUnreachable, found.err.Error())
	}
	mtu := q.core.Attr.PathMTU
	if mask&verbs.QPAttrPathMTU != 0 {
		mtu = attr.PathMTU
	}
	to := found.to
	if mtu > found.mtu {
		return path{}, q.core.Err(op, verbs.ErrInvalid, fmt.Sprintf("path MTU %v, the way from %v to %v "+
			"carries %v", mtu, d.local.Addr(), to.Addr().Addr(), found.mtu))
	}
	q.cost = max(mtu.Bytes(), leastCost)
	return path{to: to, peer: to.Addr(), share: d.takeShare(to.Addr()),
		out: wire.NewFlow(to.Source(), to.Addr()), sameHost: found.sameHost}, nil
}

// leaveShare takes the queue pair out of its share.
func (q *QP) leaveShare() {
	if share := q.path.share; share != nil {
		q.path.share = nil
		share.leave(q)
		q.dev.sender.servePostponed()
	}
}

// forget drops the peer, and the packets that wait to be sent to it.
func (q *QP) forget() {
	q.dev.sender.forget(q)
	q.leaveShare()
	if q.path.to != nil {
		q.path.to.Close()
	}
	q.path, q.peerPort = path{}, 0
}

// PostSend adds requests to the send queue, and sends what may leave.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	began := q.dev.recv.beginPost()
	q.dev.mu.Lock()
	n, err := 0, q.core.MaySend()
	if err == nil {
		for n < len(wrs) {
			if err = q.core.CheckSend(&wrs[n]); err != nil {
				break
			}
			q.core.SQ.Push(&wrs[n])
			n++
		}
		if n > 0 {
			q.engine.Posted()
			q.transmit()
		}
	}
	q.dev.mu.Unlock()
	q.dev.recv.endPost(began)
	return n, err
}

// PostRecv adds receives to the receive queue.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.dev.mu.Lock()
	n, err := 0, q.core.MayReceive()
	if err == nil {
		for n < len(wrs) {
			if err = q.core.CheckRecv(&wrs[n]); err != nil {
				break
			}
			q.core.RQ.Push(&wrs[n])
			n++
		}
		if n > 0 {
			q.engine.Posted()
		}
	}
	q.dev.sender.servePostponed()
	q.dev.mu.Unlock()
	return n, err
}

// Close destroys the queue pair, and removes its completions that were not polled.
func (q *QP) Close() error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.core.Closed {
		return q.core.Err("close qp", verbs.ErrClosed, "")
	}
	q.core.Closed = true
	d.counts.add(q.engine.Stats())
	q.sendDelayedAck()
	q.engine.Enter(d.now(), verbs.StateReset)
	d.timers.disarm(&q.timer)
	q.forget()
	q.core.Destroy()
	d.qps.Remove(q.core.Num)
	return nil
}

// sink is a queue pair as its engine sees it.
type sink QP

// Complete takes a completion of the engine.
func (q *sink) Complete(c *nic.Completion) {
	cq := q.core.CQs[c.Dir]
	switch {
	case cq.Dead():
	case cq.Full():
		q.dev.overrun(cq)
	default:
		cq.Add(c)
	}
}

// Raise takes an event of the engine.
func (q *sink) Raise(t verbs.EventType) {
	q.dev.core.Publish(verbs.Event{Type: t, QPNum: q.core.Num})
}

// overrun fails a completion queue, which loses this completion and all later ones, and its queue
// pairs. It runs inside an engine, so the queue pairs that wait for their room are served later.
func (d *Device) overrun(c *nic.CQ) {
	c.Overrun()
	for _, q := range d.qps.All {
		if q.core.Uses(c) && q.core.State != verbs.StateErr && q.core.State != verbs.StateReset {
			q.engine.Fail()
			(*sink)(q).Raise(verbs.EventQPFatal)
			if share := q.path.share; share != nil {
				share.note(q)
				d.sender.postpone(share)
			}
		}
	}
}
