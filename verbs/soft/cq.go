package soft

import (
	"fmt"
	"sync/atomic"

	"ibverbx/verbs"
)

// CQ is a completion queue. It is a verbs.CQ.
type CQ struct {
	_       noCopy
	dev     *Device
	depth   int
	channel *verbs.CompChannel
	ring    []cqe // a power of two: as many as were ever visible at a time

	// Invariant: head <= tail; tail-head visible completions plus hidden ones never exceed depth.
	head, tail uint64
	hidden     int // completions that exist but are not visible yet; their queue pairs keep them
	users      int // send and receive queues attached
	armed      armState
	dead       bool // the queue has overrun
	closed     bool

	// attention is set while Poll has a completion or an error to return, so that polling an empty
	// queue takes no lock.
	attention atomic.Bool
}

// cqe is a completion, with what Poll needs to free its slot.
type cqe struct {
	wc        verbs.WC
	qp        *QP
	seq       uint64 // number of the request in its queue
	dir       direction
	solicited bool // raises an event at a queue armed for solicited completions only
	due       int64
}

type armState uint8

const (
	armNone armState = iota
	armSolicited
	armAny
)

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	const op = "create cq"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	depth := cfg.Depth
	if depth == 0 {
		depth = min(256, d.cfg.MaxCQE)
	}
	if depth < 0 || depth > d.cfg.MaxCQE {
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("depth %d, the NIC allows 1 to %d", depth,
			d.cfg.MaxCQE))
	}
	d.f.objects.CQs++
	return &CQ{dev: d, depth: depth, channel: cfg.Channel, ring: make([]cqe, ceilPow2(min(depth, minRing)))},
		nil
}

// minRing is how many completions a queue has memory for at first. A ring as long as its depth
// would be walked through from end to end, out of the cache, by a program that polls often.
const minRing = 64

func ceilPow2(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

// Device is the NIC that the queue belongs to.
func (c *CQ) Device() verbs.Device { return c.dev }

// Depth is the depth that was asked for.
func (c *CQ) Depth() int { return c.depth }

// Channel is the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.channel }

// Poll moves completions into wcs. When it finds nothing, and the NIC's worker has not reached what
// was posted, it executes some of that itself (at most helpMost bytes), which avoids a goroutine
// switch.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	f := c.dev.f
	if !c.attention.Load() {
		if f.stepped || !f.engine.(*background).hasWork(&c.dev.worker) || !f.help(c) ||
			!c.attention.Load() {
			return 0, nil
		}
	}
	f.mu.Lock()
	n := 0
	for n < len(wcs) && c.head != c.tail {
		e := &c.ring[c.head&uint64(len(c.ring)-1)]
		wcs[n] = e.wc
		e.qp.release(e.dir, e.seq)
		c.head++
		n++
	}
	var err error
	if c.head == c.tail {
		switch {
		case c.closed:
			err = c.dev.err("poll", verbs.ErrClosed, "")
		case c.dead:
			if n == 0 {
				err = c.dev.err("poll", verbs.ErrOverrun, fmt.Sprintf("the queue holds %d completions",
					c.depth))
			}
		default:
			c.attention.Store(false)
		}
	}
	f.mu.Unlock()
	return n, err
}

// Arm asks for one event. Arming for any completion outweighs arming for solicited ones.
func (c *CQ) Arm(solicitedOnly bool) error {
	f := c.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.closed:
		return c.dev.err("arm cq", verbs.ErrClosed, "")
	case c.dead:
		return c.dev.err("arm cq", verbs.ErrOverrun, "")
	case c.channel == nil:
		return c.dev.err("arm cq", verbs.ErrInvalid, "the queue was made without a completion channel")
	}
	if !solicitedOnly {
		c.armed = armAny
	} else if c.armed == armNone {
		c.armed = armSolicited
	}
	return nil
}

// Close destroys the queue.
func (c *CQ) Close() error {
	f := c.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.closed {
		return c.dev.err("close cq", verbs.ErrClosed, "")
	}
	if c.users != 0 {
		return c.dev.err("close cq", verbs.ErrBusy, fmt.Sprintf("%d send and receive queues use it", c.users))
	}
	c.closed = true
	c.head, c.tail, c.ring = 0, 0, nil
	c.attention.Store(true)
	f.objects.CQs--
	return nil
}

// full reports whether there is no room for a further completion.
func (c *CQ) full() bool { return int(c.tail-c.head)+c.hidden >= c.depth }

// add makes a completion visible.
func (c *CQ) add(e *cqe) {
	if c.tail-c.head == uint64(len(c.ring)) {
		c.grow()
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = *e
	c.tail++
	if !c.attention.Load() {
		c.attention.Store(true)
	}
	if c.armed != armNone {
		c.raise(e.solicited)
	}
}

func (c *CQ) grow() {
	ring := make([]cqe, 2*len(c.ring))
	for i := c.head; i != c.tail; i++ {
		ring[i&uint64(len(ring)-1)] = c.ring[i&uint64(len(c.ring)-1)]
	}
	c.ring = ring
}

// raise signals an event if the queue is armed for it.
func (c *CQ) raise(solicited bool) {
	if c.armed == armAny || c.armed == armSolicited && solicited {
		c.armed = armNone
		c.channel.Signal()
	}
}

// overrun ends the queue: it loses this completion and all later ones. Its waiters are woken.
func (c *CQ) overrun() {
	c.dead = true
	c.attention.Store(true)
	c.raise(true)
	c.dev.publish(verbs.Event{Type: verbs.EventCQErr, CQ: c})
	for _, q := range c.dev.qps {
		if q.cqs[dirSend] == c || q.cqs[dirRecv] == c {
			c.dev.f.failWithEvent(q, verbs.EventQPFatal)
		}
	}
}

// forget removes the visible completions of a queue pair, as a real NIC's driver does when it is
// reset or destroyed.
func (c *CQ) forget(q *QP) {
	mask := uint64(len(c.ring) - 1)
	keep := c.head
	for i := c.head; i != c.tail; i++ {
		if e := &c.ring[i&mask]; e.qp != q {
			if keep != i {
				c.ring[keep&mask] = *e
			}
			keep++
		}
	}
	for i := keep; i != c.tail; i++ {
		c.ring[i&mask] = cqe{}
	}
	c.tail = keep
}
