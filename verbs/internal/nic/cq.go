package nic

import (
	"fmt"
	"sync/atomic"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// CQ is a completion queue.
type CQ struct {
	_       guard.NoCopy
	dev     *Device
	handle  verbs.CQ // the queue's public object
	depth   int
	channel *verbs.CompChannel
	ring    []Completion // its length is a power of two, and grows to the most completions ever visible

	// Invariant: head <= tail; tail-head visible completions plus reserved ones never exceed depth.
	head, tail uint64
	reserved   int
	users      int // send and receive queues attached
	armed      armState
	held       bool // see Hold
	dead       bool // the queue has overrun
	closed     bool

	// attention is set while Poll has a completion or an error to return, so that polling an empty
	// queue takes no lock.
	attention atomic.Bool
}

type armState uint8

const (
	armNone armState = iota
	armSolicited
	armAny
)

// Init makes the queue, whose public object is handle. It locks.
func (c *CQ) Init(d *Device, handle verbs.CQ, cfg verbs.CQConfig) error {
	d.Lock.Lock()
	defer d.Lock.Unlock()
	const op = "create cq"
	if err := d.Usable(op); err != nil {
		return err
	}
	depth, most := cfg.Depth, d.Limits.MaxCQE
	if depth == 0 {
		depth = min(256, most)
	}
	if depth < 0 || depth > most {
		return d.Err(op, verbs.ErrInvalid, fmt.Sprintf("depth %d, the NIC allows 1 to %d", depth, most))
	}
	c.dev, c.handle, c.depth, c.channel = d, handle, depth, cfg.Channel
	c.ring = make([]Completion, ceilPow2(min(depth, minRing)))
	d.Open.CQs++
	return nil
}

// minRing is the number of completions for which a queue has memory at first. With a full-length
// ring, a program that polls often would walk through all of it, which does not fit the cache.
const minRing = 64

func ceilPow2(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

// Depth returns the configured depth.
func (c *CQ) Depth() int { return c.depth }

// Channel returns the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.channel }

// Attention reports whether Poll has a completion or an error to return. It needs no lock.
func (c *CQ) Attention() bool { return c.attention.Load() }

// Poll implements verbs.CQ. It locks, unless there is nothing.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	if !c.attention.Load() {
		return 0, nil
	}
	lock := c.dev.Lock
	lock.Lock()
	n, err := c.PollLocked(wcs)
	lock.Unlock()
	return n, err
}

// Hold lets the caller, who holds the lock until it has called PollLocked, take completions before
// anybody else sees them: to set attention and to clear it again would cost a tenth of a message.
func (c *CQ) Hold() { c.held = true }

// PollLocked is Poll for a caller that holds the lock.
func (c *CQ) PollLocked(wcs []verbs.WC) (int, error) {
	n := 0
	c.held = false
	for n < len(wcs) && c.head != c.tail {
		e := &c.ring[c.head&uint64(len(c.ring)-1)]
		wcs[n] = e.WC
		e.QP.release(e.Dir, e.Seq)
		c.head++
		n++
	}
	var err error
	if c.head != c.tail {
		if !c.attention.Load() {
			c.attention.Store(true)
		}
	} else {
		switch {
		case c.closed:
			err = c.dev.Err("poll", verbs.ErrClosed, "")
		case c.dead:
			if n == 0 {
				err = c.dev.Err("poll", verbs.ErrOverrun, fmt.Sprintf("the queue holds %d completions",
					c.depth))
			}
		case c.attention.Load():
			c.attention.Store(false)
		}
	}
	return n, err
}

// Arm implements verbs.CQ: it asks for one event. Arming for any completion takes precedence over
// arming for solicited ones. It locks.
func (c *CQ) Arm(solicitedOnly bool) error {
	c.dev.Lock.Lock()
	defer c.dev.Lock.Unlock()
	switch {
	case c.closed:
		return c.dev.Err("arm cq", verbs.ErrClosed, "")
	case c.dead:
		return c.dev.Err("arm cq", verbs.ErrOverrun, "")
	case c.channel == nil:
		return c.dev.Err("arm cq", verbs.ErrInvalid, "the queue was made without a completion channel")
	}
	if !solicitedOnly {
		c.armed = armAny
	} else if c.armed == armNone {
		c.armed = armSolicited
	}
	return nil
}

// Close implements verbs.CQ. It locks.
func (c *CQ) Close() error {
	c.dev.Lock.Lock()
	defer c.dev.Lock.Unlock()
	if c.closed {
		return c.dev.Err("close cq", verbs.ErrClosed, "")
	}
	if c.users != 0 {
		return c.dev.Err("close cq", verbs.ErrBusy, fmt.Sprintf("%d send and receive queues use it", c.users))
	}
	c.closed = true
	c.head, c.tail, c.ring = 0, 0, nil
	c.attention.Store(true)
	c.dev.Open.CQs--
	return nil
}

// Dead reports whether the queue has overrun and takes no more completions. Call it and all methods
// below locked.
func (c *CQ) Dead() bool { return c.dead }

// Full reports whether one more completion would overrun the queue.
func (c *CQ) Full() bool { return int(c.tail-c.head)+c.reserved >= c.depth }

// Reserve keeps room for n completions that exist but are not visible yet; a negative n frees that
// room.
func (c *CQ) Reserve(n int) { c.reserved += n }

// Next adds a visible completion, which the caller fills in before it unlocks. It is filled in
// place because copying one costs some 5 ns more. It is not zeroed. The queue must be neither dead
// nor full.
func (c *CQ) Next(solicited bool) *Completion {
	if c.tail-c.head == uint64(len(c.ring)) {
		c.grow()
	}
	e := &c.ring[c.tail&uint64(len(c.ring)-1)]
	c.tail++
	if !c.held && !c.attention.Load() {
		c.attention.Store(true)
	}
	if c.armed != armNone {
		c.raise(solicited)
	}
	return e
}

// Add adds a copy of a completion. The queue must be neither dead nor full.
func (c *CQ) Add(e *Completion) { *c.Next(e.Solicited) = *e }

func (c *CQ) grow() {
	ring := make([]Completion, 2*len(c.ring))
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

// Overrun ends the queue: it loses this completion and all later ones. It wakes the waiters and
// raises verbs.EventCQErr. The caller fails the queue pairs that use it ([QP.Uses]).
func (c *CQ) Overrun() {
	c.dead = true
	c.attention.Store(true)
	c.raise(true)
	c.dev.Publish(verbs.Event{Type: verbs.EventCQErr, CQ: c.handle})
}

// forget removes the visible completions of a queue pair, as a real NIC's driver does when it is
// reset or destroyed.
func (c *CQ) forget(q *QP) {
	mask := uint64(len(c.ring) - 1)
	keep := c.head
	for i := c.head; i != c.tail; i++ {
		if e := &c.ring[i&mask]; e.QP != q {
			if keep != i {
				c.ring[keep&mask] = *e
			}
			keep++
		}
	}
	for i := keep; i != c.tail; i++ {
		c.ring[i&mask] = Completion{}
	}
	c.tail = keep
}
