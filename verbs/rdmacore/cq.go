//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// pollBatch is the most completions that one call into C returns. In a full batch the crossing is a
// small part of the time; the rest is the driver's work and the translation.
const pollBatch = 64

// cq is a completion queue.
type cq struct {
	d       *device
	addr    uintptr
	depth   int
	channel *verbs.CompChannel
	users   int         // queue pairs on it; guarded by the device's lock
	dead    atomic.Bool // the queue has overrun: no completion is added

	mu     sync.Mutex // guards what follows
	broken error      // why the driver could not go on; completions are lost
	mem    mapping
	wcs    []ibvWC  // where C puts completions
	take   crossing // ibv_poll_cq: the queue, how many, wcs
	notify crossing // ibv_req_notify_cq: the queue, solicited only
	closed bool     // written with the device's lock held, too
}

// CreateCQ makes a completion queue.
func (d *device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	const op = "create cq"
	if cfg.Depth == 0 {
		cfg.Depth = min(256, d.limits.MaxCQE)
	}
	if cfg.Depth < 0 || cfg.Depth > d.limits.MaxCQE {
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("depth %d: must be 1 to %d", cfg.Depth,
			d.limits.MaxCQE))
	}
	q := &cq{d: d, channel: cfg.Channel}
	var err error
	if q.mem, err = mapMemory(carved[ibvWC](pollBatch), 0); err != nil {
		return nil, d.err(op, verbs.ErrNoMemory, err.Error())
	}
	q.wcs = carve[ibvWC](&q.mem, pollBatch)
	if err = q.create(op, cfg.Depth); err != nil {
		_ = q.mem.unmap()
		return nil, err
	}
	return q, nil
}

func (q *cq) create(op string, depth int) error {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.err(op, verbs.ErrClosed, "the provider is closed")
	}
	var channel uintptr
	if q.channel != nil {
		e, err := d.completionEvents(op)
		if err != nil {
			return err
		}
		channel = e.addr
	}
	// Interrupts of successive queues go to successive vectors, which the system spreads over the
	// cores.
	vectors := int(object[ibvContext](d.ctx).numCompVectors)
	vector := d.nextVector % max(vectors, 1)
	addr, errno := d.p.lib.pointer(d.p.lib.createCQ, d.ctx, uintptr(depth), 0, channel, uintptr(vector))
	if errno != 0 {
		return d.callErr(op, 0, "ibv_create_cq", errno, fmt.Sprintf("depth %d", depth))
	}
	d.nextVector++
	q.addr, q.depth = addr, int(object[ibvCQ](addr).cqe)
	q.take = crossing{fn: d.pollCQ, args: [3]uintptr{addr, 0, address(&q.wcs[0])}}
	q.notify = crossing{fn: d.reqNotifyCQ, args: [3]uintptr{addr}}
	d.cqs[addr] = q
	return nil
}

func (q *cq) Device() verbs.Device        { return q.d }
func (q *cq) Depth() int                  { return q.depth }
func (q *cq) Channel() *verbs.CompChannel { return q.channel }

// Poll moves completions into wcs.
func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	q.mu.Lock()
	n, err := q.poll(wcs)
	q.mu.Unlock()
	return n, err
}

// poll polls until wcs is full or the queue is empty. The lock is held.
func (q *cq) poll(wcs []verbs.WC) (n int, err error) {
	if q.closed {
		return 0, q.d.err("poll", verbs.ErrClosed, "")
	}
	if q.broken != nil {
		return 0, q.broken
	}
	for n < len(wcs) {
		asked := min(len(wcs)-n, len(q.wcs))
		q.take.args[1] = uintptr(asked)
		got := int(int32(q.take.call()))
		if got < 0 || got > asked {
			q.broken = q.pollErr(got)
			return n, q.broken
		}
		q.convert(wcs[n:], q.wcs[:got])
		n += got
		if got < asked {
			break
		}
	}
	if n == 0 && len(wcs) > 0 {
		return 0, q.emptyErr()
	}
	return n, nil
}

// convert translates completions. Only four fields of a failed one are used: the driver leaves the
// rest as it was.
func (q *cq) convert(wcs []verbs.WC, cs []ibvWC) {
	// looked is the queue pair that was last refreshed: a failure causes a burst of flushed
	// requests.
	looked := uint32(0)
	for i := range cs {
		c, to := &cs[i], &wcs[i]
		if verbs.Status(c.status) == verbs.StatusSuccess {
			to.ID, to.Status, to.Opcode, to.VendorErr = c.wrID, verbs.StatusSuccess, verbs.WCOpcode(c.opcode),
				0
			to.ByteLen, to.Imm, to.QPNum, to.SrcQP = c.byteLen, bits.ReverseBytes32(c.immData), c.qpNum,
				c.srcQP
			to.Flags = verbs.WCFlags(c.wcFlags) & verbs.WCWithImm
			continue
		}
		*to = verbs.WC{ID: c.wrID, Status: verbs.Status(c.status), Opcode: verbs.WCUnknown,
			VendorErr: c.vendorErr, QPNum: c.qpNum}
		if c.qpNum != looked {
			looked = c.qpNum
			q.d.refreshState(looked) // a reliable connection does not survive an error
		}
	}
}

// pollErr returns the error of a poll in which the driver failed. The returned number is not an
// errno: mlx4 and mlx5 return -2 for a completion that they cannot interpret. Earlier completions
// of the same call are lost, so the queue cannot be trusted any more.
func (q *cq) pollErr(got int) error {
	err := fmt.Errorf("ibv_poll_cq: the driver returned %d", got)
	if q.d.removed() {
		err = fmt.Errorf("%w: %w", verbs.ErrDeviceGone, err)
	}
	return &verbs.OpError{Op: "poll", Device: q.d.name, Err: err,
		Detail: "completions are lost: close the queue and its queue pairs"}
}

// emptyErr returns why no completion will ever arrive; nil if one may.
func (q *cq) emptyErr() error {
	switch {
	case q.dead.Load():
		return q.d.err("poll", verbs.ErrOverrun, "make the queue deeper, or poll sooner")
	case q.d.gone.Load():
		return q.d.err("poll", verbs.ErrDeviceGone, "")
	}
	return nil
}

// Arm asks for an event with the next completion.
func (q *cq) Arm(solicitedOnly bool) error {
	const op = "arm"
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return q.d.err(op, verbs.ErrClosed, "")
	case q.channel == nil:
		return q.d.err(op, verbs.ErrInvalid, "the completion queue has no channel: give one in CQConfig")
	}
	q.notify.args[1] = 0
	if solicitedOnly {
		q.notify.args[1] = 1
	}
	if errno := result(q.notify.call()); errno != 0 {
		return q.d.callErr(op, 0, "ibv_req_notify_cq", errno, "")
	}
	return nil
}

// signal raises an event at the channel, if there is one.
func (q *cq) signal() {
	if q.channel != nil {
		q.channel.Signal()
	}
}

// Close destroys the queue.
func (q *cq) Close() error {
	const op = "close cq"
	d := q.d
	q.mu.Lock()
	defer q.mu.Unlock()
	d.mu.Lock()
	closed, users := q.closed, q.users
	if !closed && users == 0 {
		q.closed = true // from here on no call uses it
	}
	d.mu.Unlock()
	switch {
	case closed:
		return d.err(op, verbs.ErrClosed, "")
	case users > 0:
		return d.err(op, verbs.ErrBusy, fmt.Sprintf("%d queues of queue pairs use it", users))
	}
	// Without the device's lock: destroying waits until the readers, which take that lock, have
	// acknowledged the queue's events.
	if errno := d.destroy(d.p.lib.destroyCQ, q.addr); errno != 0 {
		d.mu.Lock()
		q.closed = false
		d.mu.Unlock()
		return d.callErr(op, 0, "ibv_destroy_cq", errno, "")
	}
	d.mu.Lock()
	if d.cqs[q.addr] == q { // C may have reused the address by now
		delete(d.cqs, q.addr)
	}
	d.mu.Unlock()
	return q.mem.unmap()
}
