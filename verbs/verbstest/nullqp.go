package verbstest

import (
	"fmt"
	"math/bits"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// nullQP is a queue pair of a Null.
type nullQP struct {
	_        guard.NoCopy
	state    verbs.QPState
	sendFree int // free slots of the send queue, from 0 to its capacity
	// unsignaled counts the requests since the last signaled one. They keep their slots until the
	// completion of the next signaled one is polled.
	unsignaled uint32
	signal     verbs.SendFlags // or-ed into every request's flags
	index      uint32          // into nullDevice.qps
	sendCQ     *nullCQ
	errFull    *verbs.OpError // made once, so that a full queue costs no allocation
	attr       verbs.QPAttr

	// The receives between head and tail, counted without end, are posted and not completed. The
	// ring's size is a power of two and 0 <= recvTail-recvHead <= cap.MaxRecvWR <= len(recvs).
	recvs              []uint64
	recvHead, recvTail uint
	recvCQ             *nullCQ

	pd     *nullPD
	cap    verbs.QPCap
	closed bool
}

// CreateQP makes a queue pair.
func (p *nullPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	d := p.dev
	sendCQ, ok1 := cfg.SendCQ.(*nullCQ)
	recvCQ, ok2 := cfg.RecvCQ.(*nullCQ)
	c := cfg.Cap.WithDefaults()
	switch {
	case p.closed:
		return nil, d.err("create queue pair", verbs.ErrClosed, "protection domain")
	case !ok1 || !ok2 || sendCQ.dev != d || recvCQ.dev != d:
		return nil, d.err("create queue pair", verbs.ErrInvalid,
			"it needs two completion queues of its device")
	case sendCQ.closed || recvCQ.closed:
		return nil, d.err("create queue pair", verbs.ErrClosed, "completion queue")
	case min(c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline) < 0 ||
		max(c.MaxSendWR, c.MaxRecvWR) > nullMaxQPWR ||
		max(c.MaxSendSGE, c.MaxRecvSGE) > nullMaxSGE || c.MaxInline > nullMaxInl:
		return nil, d.err("create queue pair", verbs.ErrInvalid, fmt.Sprintf("capacity %+v", c))
	}
	q := &nullQP{
		pd: p, cap: c, sendCQ: sendCQ, recvCQ: recvCQ, sendFree: c.MaxSendWR, index: uint32(len(d.qps)),
		recvs: make([]uint64, 1<<bits.Len(uint(c.MaxRecvWR-1))),
	}
	if cfg.SignalAll {
		q.signal = verbs.SendSignaled
	}
	q.errFull = &verbs.OpError{Op: "post", Device: d.Name(), QPNum: q.Num(), Err: verbs.ErrQueueFull}
	d.qps = append(d.qps, q)
	d.open++
	p.users++
	sendCQ.users++
	recvCQ.users++
	return q, nil
}

// Device returns the queue pair's device.
func (q *nullQP) Device() verbs.Device { return q.pd.dev }

// Num returns the queue pair's number.
func (q *nullQP) Num() uint32 { return q.index + nullFirstQP }

// Cap returns the sizes of the queues.
func (q *nullQP) Cap() verbs.QPCap { return q.cap }

// State returns the current state.
func (q *nullQP) State() verbs.QPState { return q.state }

// Query returns the attributes that were set.
func (q *nullQP) Query() (verbs.QPAttr, error) {
	if q.closed {
		return verbs.QPAttr{}, q.err("query", verbs.ErrClosed)
	}
	a := q.attr
	a.State, a.CurState = q.state, q.state
	return a, nil
}

// Modify changes the state if the state table allows it, and keeps the attributes. A move to ERR
// flushes the receives.
func (q *nullQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.closed {
		return q.err("modify", verbs.ErrClosed)
	}
	if err := verbs.CheckModify(q.state, attr, mask); err != nil {
		return q.err("modify", err)
	}
	nic.Apply(&q.attr, attr, mask)
	if mask&verbs.QPAttrState == 0 {
		return nil
	}
	q.state = attr.State
	switch q.state {
	case verbs.StateErr:
		q.flushRecvs()
	case verbs.StateReset:
		q.reset()
	}
	return nil
}

func (q *nullQP) reset() {
	q.sendFree, q.unsignaled = q.cap.MaxSendWR, 0
	q.recvHead, q.recvTail = 0, 0
	q.sendCQ.purge(q.index)
	q.recvCQ.purge(q.index)
}

// nullOpcode translates an opcode without a branch.
var nullOpcode = [8]uint8{
	verbs.OpRDMAWrite:        uint8(verbs.WCRDMAWrite),
	verbs.OpRDMAWriteWithImm: uint8(verbs.WCRDMAWrite),
	verbs.OpSend:             uint8(verbs.WCSend),
	verbs.OpSendWithImm:      uint8(verbs.WCSend),
	verbs.OpRDMARead:         uint8(verbs.WCRDMARead),
	verbs.OpAtomicCmpAndSwp:  uint8(verbs.WCCompSwap),
	verbs.OpAtomicFetchAdd:   uint8(verbs.WCFetchAdd),
}

// PostSend completes the requests. A full send queue or completion queue ends the batch with
// verbs.ErrQueueFull.
func (q *nullQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.state != verbs.StateRTS {
		return q.postSendSlow(wrs)
	}
	n := min(len(wrs), q.sendFree)
	cq := q.sendCQ
	ring, tail, full := cq.ring, cq.tail, cq.head+uint(len(cq.ring))
	mask := uint(len(ring) - 1)
	var err error
	i := 0
	for ; i < n; i++ {
		wr := &wrs[i]
		flags := wr.Flags | q.signal
		if flags&verbs.SendInline != 0 && len(wr.Inline) > q.cap.MaxInline {
			err = q.err("post send", verbs.ErrInvalid)
			break
		}
		if flags&verbs.SendSignaled == 0 {
			q.unsignaled++
			continue
		}
		if tail == full {
			break
		}
		e := &ring[tail&mask]
		tail++
		e.id = wr.ID
		e.qp = q.index
		e.frees = q.unsignaled + 1
		e.imm = 0
		e.byteLen = 0
		e.opcode = nullOpcode[wr.Opcode&7]
		e.status = 0
		e.flags = 0
		if wr.Opcode >= verbs.OpRDMARead {
			e.byteLen = uint32(wr.Bytes())
		}
		q.unsignaled = 0
	}
	q.sendFree -= i
	added := tail != cq.tail
	cq.tail = tail
	if cq.armed && added {
		cq.signal(false)
	}
	if i != len(wrs) && err == nil {
		err = q.errFull
	}
	return i, err
}

// postSendSlow refuses the requests, or flushes them in ERR.
func (q *nullQP) postSendSlow(wrs []verbs.SendWR) (int, error) {
	switch {
	case q.closed:
		return 0, q.err("post send", verbs.ErrClosed)
	case q.state != verbs.StateErr:
		return 0, q.err("post send", verbs.ErrState)
	}
	for i := range wrs {
		e := nullWC{id: wrs[i].ID, qp: q.index, frees: q.unsignaled + 1,
			status: uint8(verbs.StatusWRFlushErr)}
		if q.sendFree == 0 || !q.sendCQ.push(e) {
			return i, q.errFull
		}
		q.sendFree--
		q.unsignaled = 0
	}
	if q.sendCQ.armed && len(wrs) != 0 {
		q.sendCQ.signal(true)
	}
	return len(wrs), nil
}

// PostRecv remembers the receives; CompleteRecv completes them.
func (q *nullQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.state == verbs.StateReset || q.closed {
		if q.closed {
			return 0, q.err("post receive", verbs.ErrClosed)
		}
		return 0, q.err("post receive", verbs.ErrState)
	}
	n := min(len(wrs), q.cap.MaxRecvWR-int(q.recvTail-q.recvHead))
	ring, tail := q.recvs, q.recvTail
	mask := uint(len(ring) - 1)
	for i := range wrs[:n] {
		ring[(tail+uint(i))&mask] = wrs[i].ID
	}
	q.recvTail += uint(n)
	if q.state == verbs.StateErr {
		q.flushRecvs()
	}
	if n != len(wrs) {
		return n, q.errFull
	}
	return n, nil
}

// CompleteRecv completes the oldest receive posted on a queue pair of [Null], as if a message had
// arrived. It reports whether there was one and the completion queue had room. With
// [verbs.WCRecvRDMAWithImm] the completion carries imm; with [verbs.WCRecv] only if imm is not
// zero.
func CompleteRecv(qp verbs.QP, imm, byteLen uint32, op verbs.WCOpcode) bool {
	q := qp.(*nullQP)
	cq := q.recvCQ
	if q.recvHead == q.recvTail || cq.tail-cq.head == uint(len(cq.ring)) {
		return false
	}
	e := &cq.ring[cq.tail&uint(len(cq.ring)-1)]
	cq.tail++
	e.id = q.recvs[q.recvHead&uint(len(q.recvs)-1)]
	q.recvHead++
	e.qp = q.index
	e.frees = 0
	e.imm = imm
	e.byteLen = byteLen
	e.opcode = uint8(op)
	e.status = 0
	e.flags = 0
	if imm != 0 || op == verbs.WCRecvRDMAWithImm {
		e.flags = uint8(verbs.WCWithImm)
	}
	if cq.armed {
		cq.signal(true)
	}
	return true
}

// flushRecvs completes the posted receives as flushed.
func (q *nullQP) flushRecvs() {
	for q.recvHead != q.recvTail {
		e := nullWC{id: q.recvs[q.recvHead&uint(len(q.recvs)-1)], qp: q.index,
			status: uint8(verbs.StatusWRFlushErr)}
		if !q.recvCQ.push(e) {
			return
		}
		q.recvHead++
		if q.recvCQ.armed {
			q.recvCQ.signal(true)
		}
	}
}

// Close destroys the queue pair and drops its completions.
func (q *nullQP) Close() error {
	if q.closed {
		return q.err("close queue pair", verbs.ErrClosed)
	}
	q.closed = true
	q.state = verbs.StateReset
	q.reset()
	q.pd.users--
	q.pd.dev.open--
	q.sendCQ.users--
	q.recvCQ.users--
	return nil
}

func (q *nullQP) err(op string, err error) error {
	return &verbs.OpError{Op: op, Device: q.pd.dev.Name(), QPNum: q.Num(), Err: err}
}

var (
	_ verbs.Provider = (*Null)(nil)
	_ verbs.Device   = (*nullDevice)(nil)
	_ verbs.PD       = (*nullPD)(nil)
	_ verbs.MR       = (*nullMR)(nil)
	_ verbs.CQ       = (*nullCQ)(nil)
	_ verbs.QP       = (*nullQP)(nil)
)
