package soft

import (
	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// QP is a reliable-connected queue pair. It is a verbs.QP.
type QP struct {
	_    guard.NoCopy
	f    *Fabric
	dev  *Device
	core nic.QP
	// changing is set while Close or a reset waits for copies to end; other changes wait until it
	// is cleared.
	changing bool

	dest    *Device // the NIC with the GID in the address handle; nil if there is none
	peer    *QP     // the peer when last reached
	sendPSN uint32  // next message sent; see reach
	recvPSN uint32  // next message expected

	run    runState
	hidden [2][]hidden // completions not visible yet, by direction, oldest first
	late   late
}

// hidden is a completion that is not visible yet.
type hidden struct {
	nic.Completion
	due int64 // the engine's time at which it becomes visible
}

// runState is the progress of a queue pair's requests: which is executing, and what the head waits
// for.
type runState struct {
	busy    bool // the payload of the head request is being copied outside the lock
	partial bool // busy, and a poll has left the rest of the copy in the run queue
	inbound bool // as the responder: the peer's payload is being copied outside the lock
	failed  bool // an executed request has failed, so nothing after it is sent
	reads   int  // reads and atomics that await their acknowledgement

	wait     waitKind // why the head request or acknowledgements are held back
	tries    int      // transport retries since the last progress
	rnrTries int      // the same for a receiver that is not ready

	fault      *Injection // strikes the head request
	faultSeq   uint64     // 1 + the number of the request last compared with the injections
	stall      *Injection
	late       map[uint64][]byte // stepped: what reads have fetched but not yet landed, by number
	word       [8]byte           // an atomic's answer in transit to memory
	xfer       transfer
	background bgState
}

type waitKind uint8

const (
	waitNone  waitKind = iota
	waitRNR            // the peer has no receive posted
	waitPeer           // the peer does not answer
	waitDelay          // an injected delay
)

// CreateQP makes a queue pair in RESET.
func (p *PD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	d, f := p.dev, p.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	cqs := [2]*nic.CQ{coreOf(cfg.SendCQ), coreOf(cfg.RecvCQ)}
	qcap, err := p.core.CheckQP(cfg.Cap, cqs[nic.Send], cqs[nic.Recv])
	if err != nil {
		return nil, err
	}
	num, ok := d.qps.TakeNum()
	if !ok {
		return nil, d.core.Err("create qp", verbs.ErrNoMemory, "no queue pair number is free")
	}
	q := &QP{f: f, dev: d, core: nic.QP{Num: num, Cap: qcap, SignalAll: cfg.SignalAll, CQs: cqs}}
	q.core.Init(&p.core)
	q.run.background.init(q)
	d.qps.Add(num, q)
	return q, nil
}

// coreOf returns the core of a completion queue of this package; nil for any other.
func coreOf(cq verbs.CQ) *nic.CQ {
	if c, ok := cq.(*CQ); ok && c != nil {
		return &c.core
	}
	return nil
}

// Device returns the NIC that the queue pair belongs to.
func (q *QP) Device() verbs.Device { return q.dev }

// Num returns the queue pair's number, which is unique only on its NIC.
func (q *QP) Num() uint32 { return q.core.Num }

// Cap returns the sizes of the queues: those of the request, with its defaults.
func (q *QP) Cap() verbs.QPCap { return q.core.Cap }

// State returns the current state; RESET once the queue pair is closed.
func (q *QP) State() verbs.QPState {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	return q.core.State
}

// Query returns the current attributes.
func (q *QP) Query() (verbs.QPAttr, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	return q.core.Query()
}

// Close destroys the queue pair. It waits for a copy from or to its memory, and removes its
// completions that were not polled.
func (q *QP) Close() error {
	f, d := q.f, q.dev
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.changing {
		f.mu.AwaitQuiet()
	}
	if q.core.Closed {
		return q.core.Err("close qp", verbs.ErrClosed, "")
	}
	q.core.Closed = true
	q.empty()
	q.core.Destroy()
	d.qps.Remove(q.core.Num)
	return nil
}

// empty takes the queue pair to RESET: it waits for copies to end, and drops everything outstanding
// and every completion that was not polled.
func (q *QP) empty() {
	f := q.f
	q.changing = true
	f.placeAll(q)
	q.late.stragglers = nil
	q.core.State = verbs.StateReset // so that nothing new starts
	for q.run.busy || q.run.inbound {
		f.mu.AwaitQuiet()
	}
	q.changing = false
	for dir, c := range q.core.CQs {
		c.Reserve(-len(q.hidden[dir]))
		q.hidden[dir] = nil
	}
	f.engine.stopTimers(q)
	q.core.Reset()
	q.dest, q.peer = nil, nil
	q.sendPSN, q.recvPSN = 0, 0
	r := &q.run
	r.failed, r.reads, r.wait, r.tries, r.rnrTries = false, 0, waitNone, 0, 0
	r.fault, r.faultSeq, r.stall, r.late = nil, 0, nil, nil
	f.mu.WakeQuiet() // wakes goroutines that wait for changing
}

// PostSend adds requests to the send queue. In the background mode small ones may have been
// executed when it returns.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.core.MaySend()
	if err == nil {
		for n < len(wrs) {
			wr := &wrs[n]
			if err = q.core.CheckSend(wr); err == nil && len(f.injections) != 0 {
				err = f.refuse(q, wr)
			}
			if err != nil {
				break
			}
			q.core.SQ.Push(wr)
			n++
		}
		if n > 0 {
			if q.core.State == verbs.StateErr {
				f.settle(q)
			} else {
				f.engine.posted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}

// PostRecv adds receives to the receive queue.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.core.MayReceive()
	if err == nil {
		for n < len(wrs) {
			wr := &wrs[n]
			if err = q.core.CheckRecv(wr); err == nil && len(f.injections) != 0 {
				err = f.refuseRecv(q)
			}
			if err != nil {
				break
			}
			q.core.RQ.Push(wr)
			n++
		}
		if n > 0 {
			if q.core.State == verbs.StateErr {
				f.settle(q)
			} else {
				f.receivesPosted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}

// Modify changes attributes and state. Going to ERR flushes what is outstanding, in order; going to
// RESET drops it and waits for a copy from or to the queue pair's memory.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	f := q.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.changing {
		f.mu.AwaitQuiet()
	}
	next, err := q.core.CheckModify(attr, mask)
	if err != nil {
		return err
	}
	switch next {
	case verbs.StateReset:
		q.empty()
		return nil
	case verbs.StateErr:
		f.toError(q)
		return nil
	}
	q.apply(attr, mask)
	before := q.core.State
	q.core.State = next
	switch {
	case next == verbs.StateRTR && before != next:
		f.readyToReceive(q)
	case next == verbs.StateRTS:
		f.engine.ready(q)
	}
	return nil
}

// apply stores the attributes that mask names.
func (q *QP) apply(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	nic.Apply(&q.core.Attr, attr, mask)
	if mask&verbs.QPAttrAV != 0 {
		q.dest = q.f.byGID[attr.AH.DGID]
	}
	if mask&(verbs.QPAttrAV|verbs.QPAttrDestQPNum) != 0 {
		q.peer = nil
	}
	if mask&verbs.QPAttrRQPSN != 0 {
		q.recvPSN = attr.RQPSN
	}
	if mask&verbs.QPAttrSQPSN != 0 {
		q.sendPSN = attr.SQPSN
	}
}
