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
