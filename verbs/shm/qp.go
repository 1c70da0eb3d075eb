package shm

import (
	"fmt"
	"sync"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// QP is a reliable-connected queue pair. It is a verbs.QP. The NIC's lock guards it.
type QP struct {
	_    guard.NoCopy
	dev  *Device
	core nic.QP
	out  requester
	in   responder
	// served is set once a slot of the peer was carried out on this connection, which then takes no
	// other lane.
	served             bool
	ackTimer, rnrTimer nic.Timer[timed]
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
	q.ackTimer.Of, q.rnrTimer.Of = timed{q, timerAck}, timed{q, timerRNR}
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

// Modify changes attributes and state. It waits for no peer: RTS makes the lane, and the link if
// there is none, in the background.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.dev
	d.lockAll()
	in := q.in.lane
	err := q.modify(attr, mask)
	d.unlockAll()
	if in != nil {
		d.awaitLeft(in)
	}
	return err
}

func (q *QP) modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.dev
	next, err := q.core.CheckModify(attr, mask)
	if err != nil {
		return err
	}
	const op = "modify qp"
	if mask&verbs.QPAttrAV != 0 {
		if why := checkPlace(d.gid, attr.AH.DGID); why != "" {
			return q.core.Err(op, verbs.ErrUnreachable, why)
		}
		if q.out.lane != nil && attr.AH.DGID != q.core.Attr.AH.DGID {
			return q.core.Err(op, verbs.ErrInvalid, "a connection cannot move to another NIC: reset it")
		}
	}
	before := q.core.State
	switch {
	case next == verbs.StateReset:
		q.reset()
		return nil
	case next == verbs.StateErr:
		q.catchUp()
		q.toError()
		return nil
	case next == verbs.StateRTS && before == verbs.StateRTR:
		if err := q.openLane(attr.SQPSN); err != nil {
			return q.core.Err(op, fmt.Errorf("%w: %w", verbs.ErrNoMemory, err), "")
		}
	}
	nic.Apply(&q.core.Attr, attr, mask)
	q.core.State = next
	switch {
	case next == verbs.StateRTR && before == verbs.StateInit:
		d.adopt(q)
	case next == verbs.StateRTS && before != verbs.StateRTR:
		q.send()
	}
	if l := q.in.lane; l != nil {
		l.store(wordState, uint64(laneOpen)|uint64(q.core.Attr.MinRNRTimer)<<8)
		if mask&(verbs.QPAttrAccess|verbs.QPAttrMaxDestRDAtomic) != 0 {
			l.withdraw(nil) // other rights may hold from now on
		}
	}
	return nil
}

// openLane makes the lane for the queue pair's requests, and sends it to the peer.
func (q *QP) openLane(psn uint32) error {
	d := q.dev
	mem, fd, err := newMemory(laneBytes, windowAt, false)
	if err != nil {
		return err
	}
	link := d.linkTo(q.core.Attr.AH.DGID)
	l := newLane(mem, link)
	l.qp, l.id = q, link.nextID
	link.nextID++
	flights := q.out.flights
	if flights == nil {
		flights = make([]flight, ringSlots)
	}
	q.out = requester{lane: l, flights: flights}
	d.poll.lanes = append(d.poll.lanes, l)
	link.tell(note{kind: noteLane, id: l.id, src: q.core.Num, dst: q.core.Attr.DestQPNum, psn: psn}, fd)
	return nil
}

// fits reports whether a lane of a peer is that of the queue pair's connection.
func (q *QP) fits(l *lane) bool {
	a := &q.core.Attr
	return q.core.Receptive() && q.in.lane == nil && !q.served && a.DestQPNum == l.src &&
		a.AH.DGID == l.link.peer && a.RQPSN == l.psn
}

// attach begins to carry out a lane of the peer. Call it with both locks.
func (q *QP) attach(l *lane) {
	l.qp = q
	q.in = responder{lane: l}
	q.dev.poll.lanes = append(q.dev.poll.lanes, l)
	q.report(l)
	l.store(wordState, uint64(laneOpen)|uint64(q.core.Attr.MinRNRTimer)<<8)
	l.link.ring()
}

// detach gives up both lanes. The peer sees it by their words.
func (q *QP) detach() {
	d := q.dev
	d.timers.heap.Disarm(&q.ackTimer)
	d.timers.heap.Disarm(&q.rnrTimer)
	if l := q.in.lane; l != nil {
		q.report(l)
		l.store(wordState, uint64(laneClosed))
		l.link.ring()
		d.retire(l)
	}
	if l := q.out.lane; l != nil {
		l.store(wordLeft, 1)
		l.link.tell(note{kind: noteDrop, id: l.id}, -1)
		d.retire(l)
	}
	q.in.lane, q.out.lane = nil, nil
}

// catchUp takes what the peer has reported until now. Call it with both locks.
func (q *QP) catchUp() {
	if q.out.lane != nil && !q.dev.down.Load() {
		beginLanding()
		q.collect()
		endLanding()
	}
}

// reset takes the queue pair to RESET.
func (q *QP) reset() {
	q.detach()
	q.core.Reset()
	q.out, q.in, q.served = requester{flights: q.out.flights}, responder{}, false
}

// toError moves the queue pair to ERR, and flushes everything outstanding: first the sends, then
// the receives.
func (q *QP) toError() {
	if q.core.State == verbs.StateErr || q.core.State == verbs.StateReset {
		return
	}
	q.core.State = verbs.StateErr
	q.detach()
	q.flush()
}

// flush ends all requests of a queue pair in ERR.
func (q *QP) flush() {
	why := uint32(nic.VendorFlushed)
	if q.out.orphaned {
		why = vendorDied
	}
	for seq, ok := q.core.SQ.TakeUnended(); ok; seq, ok = q.core.SQ.TakeUnended() {
		q.completeError(nic.Send, seq, verbs.StatusWRFlushErr, why)
	}
	for seq, ok := q.core.RQ.Take(); ok; seq, ok = q.core.RQ.Take() {
		q.completeError(nic.Recv, seq, verbs.StatusWRFlushErr, why)
	}
}

// die ends the connection to a process that has died.
func (q *QP) die() {
	q.out.orphaned = true
	q.endWith(verbs.StatusRetryExcErr, vendorDied)
}

// newCompletion adds a completion for the caller to fill in; nil if it is lost.
func (q *QP) newCompletion(dir nic.Direction, solicited bool) *nic.Completion {
	c := q.core.CQs[dir]
	switch {
	case c.Dead():
		return nil
	case c.Full():
		q.dev.overrun(c)
		return nil
	}
	return c.Next(solicited)
}

// completeError adds an unsuccessful completion.
func (q *QP) completeError(dir nic.Direction, seq uint64, status verbs.Status, vendor uint32) {
	var e nic.Completion
	q.core.Failed(&e, dir, seq, status, vendor, q.dev.rng)
	if at := q.newCompletion(dir, true); at != nil {
		*at = e
	}
}

// overrun fails a completion queue, which loses this completion and all later ones, and its queue
// pairs.
func (d *Device) overrun(c *nic.CQ) {
	c.Overrun()
	for _, q := range d.qps.All {
		if q.core.Uses(c) && q.core.State != verbs.StateErr && q.core.State != verbs.StateReset {
			q.toError()
			d.core.Publish(verbs.Event{Type: verbs.EventQPFatal, QPNum: q.core.Num})
		}
	}
}

// PostSend adds requests to the send queue, and publishes what may leave.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	d := q.dev
	d.mu.Lock()
	n, err := 0, q.core.MaySend()
	if err == nil {
		for n < len(wrs) {
			if err = q.core.CheckSend(&wrs[n]); err != nil {
				break
			}
			q.core.SQ.Push(&wrs[n])
			n++
		}
		switch {
		case n == 0:
		case q.core.State == verbs.StateErr:
			q.flush()
		default:
			q.send()
		}
	}
	unfinished := q.out.lane != nil && q.out.lane.unfinished.Load()
	d.mu.Unlock()
	d.tidy()
	if unfinished {
		d.poll.kick()
	}
	return n, err
}

// PostRecv adds receives to the receive queue, and tells the peer.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	d := q.dev
	d.mu.Lock()
	n, err := 0, q.core.MayReceive()
	if err == nil {
		for n < len(wrs) {
			if err = q.core.CheckRecv(&wrs[n]); err != nil {
				break
			}
			q.core.RQ.Push(&wrs[n])
			n++
		}
		if l := q.in.lane; n > 0 && l != nil {
			// The report may wait if the peer still has a receive, or waits for a report anyway: a
			// peer that has had all answers and has no receive counts the time (mayBegin).
			if d.poll.awake.Load() && (l.posted != q.core.RQ.Consumed || l.done != l.cursor) {
				if d.owe(l); !d.owes.Load() {
					d.owes.Store(true)
				}
			} else {
				q.report(l)
			}
		} else if q.core.State == verbs.StateErr {
			q.flush()
		}
	}
	d.mu.Unlock()
	d.tidy()
	return n, err
}

// Close destroys the queue pair, and removes its completions that were not polled.
func (q *QP) Close() error {
	d := q.dev
	d.lockAll()
	if q.core.Closed {
		d.unlockAll()
		return q.core.Err("close qp", verbs.ErrClosed, "")
	}
	in := q.in.lane
	q.core.Closed = true
	q.reset()
	q.core.Destroy()
	d.qps.Remove(q.core.Num)
	d.unlockAll()
	if in != nil {
		d.awaitLeft(in)
	}
	return nil
}

// Between two NICs of one process the race detector does not see that shared memory orders what one
// does before it publishes a slot and the other after it has taken it, because they map the memory
// at two addresses. So in race builds both access the program's memory with landing. It also keeps
// apart two NICs that use one place, as programs may have them do.
var landing sync.Mutex //nolint:gochecknoglobals // of all NICs of the process

func beginLanding() {
	if guard.Race {
		landing.Lock()
	}
}

func endLanding() {
	if guard.Race {
		landing.Unlock()
	}
}
