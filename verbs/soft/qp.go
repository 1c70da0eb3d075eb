package soft

import (
	"fmt"

	"ibverbx/verbs"
)

// QP is a reliable-connected queue pair. It is a verbs.QP.
type QP struct {
	_         noCopy
	f         *Fabric
	dev       *Device
	pd        *PD
	num       uint32
	cap       verbs.QPCap
	signalAll bool
	cqs       [2]*CQ // by direction

	state  verbs.QPState
	attr   verbs.QPAttr
	closed bool
	// changing is set while Close or a reset waits for copies to end; other changes wait for that.
	changing bool

	sq sendQueue
	rq recvQueue

	dest    *Device // the NIC with the GID in the address handle; nil when there is none
	peer    *QP     // the peer when last reached
	sendPSN uint32  // next message sent; see reach
	recvPSN uint32  // next message expected

	run    runState
	hidden [2][]cqe // completions not visible yet, by direction, oldest first

	// Errors of the hot path, made once.
	errSendFull, errRecvFull error
}

// runState is the progress of a queue pair's requests: what is executing, and what the head waits
// for.
type runState struct {
	busy    bool // the payload of the head request is being copied outside of the lock
	partial bool // busy, and a poll has left the rest to whoever takes it from the run queue
	inbound bool // as the responder: the peer's payload is
	failed  bool // an executed request was not successful, so nothing behind it goes out
	reads   int  // reads and atomics that await their acknowledgement

	wait     waitKind // why the head is held back, or acknowledgements are
	tries    int      // transport retries since the last progress
	rnrTries int      // the same for a receiver that is not ready

	fault      *Injection // strikes the head request
	faultSeq   uint64     // 1 + the number of the request that was last compared with the injections
	stall      *Injection
	late       map[uint64][]byte // stepped: what reads have fetched but not yet landed, by number
	word       [8]byte           // an atomic's answer on its way to memory
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
	const op = "create qp"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	var cqs [2]*CQ
	for dir, cq := range []verbs.CQ{cfg.SendCQ, cfg.RecvCQ} {
		c, ok := cq.(*CQ)
		if !ok || c == nil || c.dev != d {
			return nil, d.err(op, verbs.ErrInvalid,
				"SendCQ and RecvCQ have to be completion queues of the same NIC")
		}
		if c.closed {
			return nil, d.err(op, verbs.ErrClosed, "the completion queue")
		}
		cqs[dir] = c
	}
	qcap := d.defaults(cfg.Cap)
	switch {
	case qcap.MaxSendWR < 0 || qcap.MaxSendWR > d.cfg.MaxQPWR || qcap.MaxRecvWR < 0 ||
		qcap.MaxRecvWR > d.cfg.MaxQPWR:
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("queues of %d and %d work requests, the NIC "+
			"allows %d",
			qcap.MaxSendWR, qcap.MaxRecvWR, d.cfg.MaxQPWR))
	case qcap.MaxSendSGE < 0 || qcap.MaxSendSGE > d.cfg.MaxSGE || qcap.MaxRecvSGE < 0 ||
		qcap.MaxRecvSGE > d.cfg.MaxSGE:
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("%d and %d scatter-gather elements, the NIC "+
			"allows %d",
			qcap.MaxSendSGE, qcap.MaxRecvSGE, d.cfg.MaxSGE))
	case qcap.MaxInline < 0 || qcap.MaxInline > d.cfg.MaxInline:
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("inline sends of %d bytes, the NIC allows %d",
			qcap.MaxInline, d.cfg.MaxInline))
	}
	num, ok := d.takeQPNum()
	if !ok {
		return nil, d.err(op, verbs.ErrNoMemory, "no queue pair number is free")
	}
	q := &QP{
		f: f, dev: d, pd: p, num: num, cap: qcap, signalAll: cfg.SignalAll, cqs: cqs,
		sq: newSendQueue(qcap.MaxSendWR, qcap.MaxSendSGE, qcap.MaxInline),
		rq: newRecvQueue(qcap.MaxRecvWR, qcap.MaxRecvSGE),
	}
	q.run.background.init(q)
	q.errSendFull = q.err("post send", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", qcap.MaxSendWR))
	q.errRecvFull = q.err("post recv", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", qcap.MaxRecvWR))
	d.qps = append(d.qps, q)
	d.qpByNum[num] = q
	cqs[dirSend].users++
	cqs[dirRecv].users++
	p.qps++
	f.objects.QPs++
	return q, nil
}

// defaults replaces zero fields by the contract's defaults, or by the NIC's limit where that is
// lower.
func (d *Device) defaults(c verbs.QPCap) verbs.QPCap {
	lower := func(field *int, standard, limit int) {
		if *field == 0 {
			*field = min(standard, limit)
		}
	}
	std := verbs.QPCap{}.WithDefaults()
	lower(&c.MaxSendWR, std.MaxSendWR, d.cfg.MaxQPWR)
	lower(&c.MaxRecvWR, std.MaxRecvWR, d.cfg.MaxQPWR)
	lower(&c.MaxSendSGE, std.MaxSendSGE, d.cfg.MaxSGE)
	lower(&c.MaxRecvSGE, std.MaxRecvSGE, d.cfg.MaxSGE)
	lower(&c.MaxInline, std.MaxInline, d.cfg.MaxInline)
	return c
}

// takeQPNum returns the next free number in a cycle, so that a number is not used again soon after
// its queue pair was closed.
func (d *Device) takeQPNum() (uint32, bool) {
	for range d.lastQP {
		num := d.nextQP
		d.nextQP++
		if d.nextQP > d.lastQP {
			d.nextQP = firstQPNum
		}
		if d.qpByNum[num] == nil {
			return num, true
		}
	}
	return 0, false
}

func (q *QP) err(op string, err error, detail string) error {
	return &verbs.OpError{Op: op, Device: q.dev.name, QPNum: q.num, Detail: detail, Err: err}
}

// Device is the NIC that the queue pair belongs to.
func (q *QP) Device() verbs.Device { return q.dev }

// Num is the queue pair's number, unique on its NIC only.
func (q *QP) Num() uint32 { return q.num }

// Cap says how large the queues are: just what was asked for.
func (q *QP) Cap() verbs.QPCap { return q.cap }

// State is the present state; RESET once it is closed.
func (q *QP) State() verbs.QPState {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	return q.state
}

// Query returns the attributes in force.
func (q *QP) Query() (verbs.QPAttr, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.usable("query qp"); err != nil {
		return verbs.QPAttr{}, err
	}
	attr := q.attr
	attr.State, attr.CurState = q.state, q.state
	return attr, nil
}

// usable returns why the queue pair accepts no calls; nil where it does.
func (q *QP) usable(op string) error {
	if q.closed {
		return q.err(op, verbs.ErrClosed, "")
	}
	if q.dev.gone {
		return q.err(op, verbs.ErrDeviceGone, "")
	}
	return nil
}

// Close destroys the queue pair. It waits for a copy from or to its memory, and removes its
// completions that were not polled.
func (q *QP) Close() error {
	f, d := q.f, q.dev
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.changing {
		f.awaitQuiet()
	}
	if q.closed {
		return q.err("close qp", verbs.ErrClosed, "")
	}
	q.closed = true
	q.empty()
	delete(d.qpByNum, q.num)
	for i, other := range d.qps {
		if other == q {
			d.qps = append(d.qps[:i], d.qps[i+1:]...)
			break
		}
	}
	q.cqs[dirSend].users--
	q.cqs[dirRecv].users--
	q.pd.qps--
	f.objects.QPs--
	return nil
}

// empty takes the queue pair to RESET: copies come to their end, everything outstanding and every
// completion that was not polled is dropped.
func (q *QP) empty() {
	f := q.f
	q.changing = true
	q.state = verbs.StateReset // nothing new starts
	for q.run.busy || q.run.inbound {
		f.awaitQuiet()
	}
	q.changing = false
	for dir, c := range q.cqs {
		c.hidden -= len(q.hidden[dir])
		q.hidden[dir] = nil
		c.forget(q)
	}
	f.engine.stopTimers(q)
	q.sq.reset()
	q.rq.reset()
	q.attr = verbs.QPAttr{}
	q.dest, q.peer = nil, nil
	q.sendPSN, q.recvPSN = 0, 0
	r := &q.run
	r.failed, r.reads, r.wait, r.tries, r.rnrTries = false, 0, waitNone, 0, 0
	r.fault, r.faultSeq, r.stall, r.late = nil, 0, nil, nil
	f.wakeQuiet() // those who wait for changing
}

// release frees the slots up to the request of a polled completion.
func (q *QP) release(dir direction, seq uint64) {
	if dir == dirSend {
		q.sq.free(seq)
	} else {
		q.rq.free(seq)
	}
}
