//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"ibverbx/verbs"
)

// ibvQPTRC is IBV_QPT_RC.
const ibvQPTRC = 2

// qp is a reliable-connected queue pair.
type qp struct {
	d      *device
	pd     *pd
	addr   uintptr
	num    uint32
	cap    verbs.QPCap
	sendCQ *cq
	recvCQ *cq

	// state is the state that Modify set last, or ERR once the NIC is known to have entered it by
	// itself.
	state atomic.Uint32

	// Posting takes the lock of its direction. Changing the state and closing take both, the
	// sender's first.
	sends, recvs struct {
		sync.Mutex
		closed bool
	}
	mem  mapping
	sq   sendStage
	rq   recvStage
	attr *ibvQPAttr     // for modify and query
	init *ibvQPInitAttr // likewise

	errSendFull, errRecvFull error // made once, because a full queue is an ordinary result
}

// CreateQP makes a queue pair.
func (p *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	const op = "create qp"
	limits, err := p.d.fit(op, cfg.Cap)
	if err != nil {
		return nil, err
	}
	q := &qp{d: p.d, pd: p}
	if err := q.bind(op, cfg.SendCQ, cfg.RecvCQ); err != nil {
		return nil, err
	}
	if err := q.create(op, limits, cfg.Cap.MaxInline == 0, cfg.SignalAll); err != nil {
		q.release()
		return nil, err
	}
	return q, nil
}

// fit replaces zero fields by the defaults, and refuses sizes that the NIC cannot have.
func (d *device) fit(op string, asked verbs.QPCap) (verbs.QPCap, error) {
	c := asked.WithDefaults()
	pick := func(asked, got, limit int) int {
		if asked == 0 {
			return min(got, limit)
		}
		return got
	}
	c.MaxSendWR, c.MaxRecvWR = pick(asked.MaxSendWR, c.MaxSendWR, d.limits.MaxQPWR),
		pick(asked.MaxRecvWR, c.MaxRecvWR, d.limits.MaxQPWR)
	c.MaxSendSGE, c.MaxRecvSGE = pick(asked.MaxSendSGE, c.MaxSendSGE, d.limits.MaxSGE),
		pick(asked.MaxRecvSGE, c.MaxRecvSGE, d.limits.MaxSGE)
	outside := func(n, limit int) bool { return n < 0 || n > limit }
	switch {
	case outside(c.MaxSendWR, d.limits.MaxQPWR) || outside(c.MaxRecvWR, d.limits.MaxQPWR):
		return c, d.err(op, verbs.ErrInvalid,
			fmt.Sprintf("queues of %d and %d work requests, the NIC allows %d", c.MaxSendWR, c.MaxRecvWR,
				d.limits.MaxQPWR))
	case outside(c.MaxSendSGE, d.limits.MaxSGE) || outside(c.MaxRecvSGE, d.limits.MaxSGE):
		return c, d.err(op, verbs.ErrInvalid,
			fmt.Sprintf("%d and %d scatter-gather elements, the NIC allows %d", c.MaxSendSGE, c.MaxRecvSGE,
				d.limits.MaxSGE))
	case c.MaxInline < 0:
		return c, d.err(op, verbs.ErrInvalid, fmt.Sprintf("inline sends of %d bytes", c.MaxInline))
	}
	return c, nil
}

// bind counts the queue pair in its domain and its completion queues.
func (q *qp) bind(op string, send, recv verbs.CQ) error {
	s, ok := send.(*cq)
	r, ok2 := recv.(*cq)
	if !ok || !ok2 || s == nil || r == nil || s.d != q.d || r.d != q.d {
		return q.d.err(op, verbs.ErrInvalid, "SendCQ and RecvCQ have to be completion queues of the same NIC")
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	switch {
	case q.pd.closed:
		return q.d.err(op, verbs.ErrClosed, "the protection domain is closed")
	case s.closed || r.closed:
		return q.d.err(op, verbs.ErrClosed, "the completion queue")
	}
	q.pd.qps++
	s.users++
	r.users++
	q.sendCQ, q.recvCQ = s, r
	return nil
}

// create makes the queue pair in the library, and then the memory that posting to it needs.
func (q *qp) create(op string, limits verbs.QPCap, defaultInline, signalAll bool) error {
	d := q.d
	mem, err := mapMemory(carved[ibvQPInitAttr](1), 0)
	if err != nil {
		return d.err(op, verbs.ErrNoMemory, err.Error())
	}
	defer func() { _ = mem.unmap() }()
	init := &carve[ibvQPInitAttr](&mem, 1)[0]
	*init = ibvQPInitAttr{sendCQ: q.sendCQ.addr, recvCQ: q.recvCQ.addr, qpType: ibvQPTRC, cap: ibvQPCap{
		maxSendWR: uint32(limits.MaxSendWR), maxRecvWR: uint32(limits.MaxRecvWR),
		maxSendSGE: uint32(limits.MaxSendSGE), maxRecvSGE: uint32(limits.MaxRecvSGE),
		maxInlineData: uint32(limits.MaxInline)}}
	if signalAll {
		init.sqSigAll = 1
	}
	addr, errno := d.p.lib.pointer(d.p.lib.createQP, q.pd.addr, address(init))
	if errno == syscall.EINVAL && defaultInline {
		// No attribute of the device tells how much inline data it takes. A device that takes less
		// than the default usually takes none.
		init.cap.maxInlineData = 0
		addr, errno = d.p.lib.pointer(d.p.lib.createQP, q.pd.addr, address(init))
	}
	if errno != 0 {
		return d.callErr(op, 0, "ibv_create_qp", errno, createHint(errno, limits))
	}
	q.addr, q.num = addr, object[ibvQP](addr).qpNum
	q.cap = verbs.QPCap{MaxSendWR: int(init.cap.maxSendWR), MaxRecvWR: int(init.cap.maxRecvWR),
		MaxSendSGE: int(init.cap.maxSendSGE),
		MaxRecvSGE: int(init.cap.maxRecvSGE), MaxInline: int(init.cap.maxInlineData)}
	if err := q.stage(op); err != nil {
		_ = d.p.lib.status(d.p.lib.destroyQP, addr)
		return err
	}
	q.errSendFull = q.err("post send", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", q.cap.MaxSendWR))
	q.errRecvFull = q.err("post recv", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", q.cap.MaxRecvWR))
	d.mu.Lock()
	d.qps[q.num] = q
	d.mu.Unlock()
	return nil
}

// createHint returns which limit may be exceeded.
func createHint(errno syscall.Errno, c verbs.QPCap) string {
	asked := fmt.Sprintf("asked for %d sends and %d receives of %d and %d elements, %d bytes inline",
		c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline)
	switch errno {
	case syscall.EINVAL:
		return asked + ": ask for fewer requests, elements or inline bytes: the NIC's limit of requests is " +
			"for the smallest ones"
	case syscall.ENOMEM:
		return asked + ": ask for less, close queue pairs, or raise the limits (ulimit -l; rdma.max of the " +
			"control group)"
	case syscall.EOPNOTSUPP:
		return "the NIC may have no reliable-connected queue pairs"
	}
	return asked
}

// stage makes the memory in which requests are passed to C.
func (q *qp) stage(op string) (err error) {
	sends, recvs := min(q.cap.MaxSendWR, postBatch), min(q.cap.MaxRecvWR, postBatch)
	size := carved[ibvQPAttr](1) + carved[ibvQPInitAttr](1) + sendStageSize(sends, &q.cap) +
		stageSize[ibvRecvWR](recvs, q.cap.MaxRecvSGE)
	if q.mem, err = mapMemory(size, 0); err != nil {
		return q.d.err(op, verbs.ErrNoMemory, err.Error())
	}
	q.attr, q.init = &carve[ibvQPAttr](&q.mem, 1)[0], &carve[ibvQPInitAttr](&q.mem, 1)[0]
	q.sq.carve(&q.mem, sends, &q.cap, q.d.postSend, q.addr)
	q.rq.carve(&q.mem, recvs, q.cap.MaxRecvSGE, q.d.postRecv, q.addr)
	return nil
}

func (q *qp) Device() verbs.Device { return q.d }
func (q *qp) Num() uint32          { return q.num }
func (q *qp) Cap() verbs.QPCap     { return q.cap }

// err returns the error of a call that concerns the queue pair.
func (q *qp) err(op string, err error, detail string) error {
	return &verbs.OpError{Op: op, Device: q.d.name, QPNum: q.num, Err: err, Detail: detail}
}

// lock excludes posts and changes of state.
func (q *qp) lock() {
	q.sends.Lock()
	q.recvs.Lock()
}

func (q *qp) unlock() {
	q.recvs.Unlock()
	q.sends.Unlock()
}

// Close destroys the queue pair.
func (q *qp) Close() error {
	const op = "close qp"
	d := q.d
	q.lock()
	defer q.unlock()
	if q.sends.closed {
		return q.err(op, verbs.ErrClosed, "")
	}
	// The queue pair stays in the device's list meanwhile: destroying it waits until its events are
	// acknowledged.
	if errno := d.destroy(d.p.lib.destroyQP, q.addr); errno != 0 {
		return d.callErr(op, q.num, "ibv_destroy_qp", errno, "")
	}
	q.sends.closed, q.recvs.closed = true, true
	d.mu.Lock()
	// The kernel may have given the number to another queue pair by now.
	if d.qps[q.num] == q {
		delete(d.qps, q.num)
	}
	d.mu.Unlock()
	q.release()
	return nil
}

// release undoes what creating the queue pair did in Go.
func (q *qp) release() {
	q.d.mu.Lock()
	q.sendCQ.users--
	q.recvCQ.users--
	q.pd.qps--
	q.d.mu.Unlock()
	_ = q.mem.unmap() // unmapping a valid mapping cannot fail
}
