package verbstest

import (
	"fmt"
	"math/bits"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// nullCQ is a completion queue of a Null.
type nullCQ struct {
	_ guard.NoCopy
	// The entries between head and tail, counted without end, are to be polled. The ring's size is
	// a power of two and 0 <= tail-head <= len(ring).
	ring       []nullWC
	head, tail uint
	dev        *nullDevice
	armed      bool
	channel    *verbs.CompChannel
	recvOnly   bool // armed for solicited completions: here the receives
	closed     bool
	users      int
}

// nullWC is the data of a completion, half a cache line.
type nullWC struct {
	id      uint64
	qp      uint32 // index into nullDevice.qps
	frees   uint32 // slots of the send queue that are free again once it is polled
	imm     uint32
	byteLen uint32
	opcode  uint8
	status  uint8
	flags   uint8
}

// CreateCQ makes a completion queue, its depth rounded up to a power of two.
func (d *nullDevice) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 256
	}
	if cfg.Depth < 0 || cfg.Depth > nullMaxCQE {
		return nil, d.err("create completion queue", verbs.ErrInvalid,
			fmt.Sprintf("depth %d, possible are 1 to %d", cfg.Depth, nullMaxCQE))
	}
	d.open++
	return &nullCQ{dev: d, channel: cfg.Channel, ring: make([]nullWC, 1<<bits.Len(uint(cfg.Depth-1)))}, nil
}

// Device returns the queue's device.
func (c *nullCQ) Device() verbs.Device { return c.dev }

// Depth returns how many completions the queue holds.
func (c *nullCQ) Depth() int { return len(c.ring) }

// Channel returns CQConfig.Channel.
func (c *nullCQ) Channel() *verbs.CompChannel { return c.channel }

// Poll moves completions into wcs.
func (c *nullCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.closed {
		return 0, c.dev.err("poll", verbs.ErrClosed, "")
	}
	n := min(len(wcs), int(c.tail-c.head))
	if n == 0 {
		return 0, nil
	}
	ring, head, qps := c.ring, c.head, c.dev.qps
	mask := uint(len(ring) - 1)
	for i := range wcs[:n] {
		e := &ring[(head+uint(i))&mask]
		qp := qps[e.qp]
		qp.sendFree += int(e.frees)
		wc := &wcs[i]
		wc.ID = e.id
		wc.Status = verbs.Status(e.status)
		wc.Opcode = verbs.WCOpcode(e.opcode)
		wc.VendorErr = 0
		wc.ByteLen = e.byteLen
		wc.Imm = e.imm
		wc.QPNum = e.qp + nullFirstQP
		wc.SrcQP = qp.attr.DestQPNum
		wc.Flags = verbs.WCFlags(e.flags)
	}
	c.head = head + uint(n)
	return n, nil
}

// Arm asks for an event. With solicitedOnly, any receive raises it.
func (c *nullCQ) Arm(solicitedOnly bool) error {
	switch {
	case c.closed:
		return c.dev.err("arm", verbs.ErrClosed, "")
	case c.channel == nil:
		return c.dev.err("arm", verbs.ErrInvalid, "the completion queue has no channel")
	}
	c.recvOnly = solicitedOnly && (c.recvOnly || !c.armed)
	c.armed = true
	return nil
}

// signal raises the event that Arm asked for.
func (c *nullCQ) signal(recv bool) {
	if c.recvOnly && !recv {
		return
	}
	c.armed, c.recvOnly = false, false
	c.channel.Signal()
}

// push adds an entry and reports whether there was room.
func (c *nullCQ) push(e nullWC) bool {
	if c.tail-c.head == uint(len(c.ring)) {
		return false
	}
	c.ring[c.tail&uint(len(c.ring)-1)] = e
	c.tail++
	return true
}

// purge drops the entries of a queue pair that was reset or closed.
func (c *nullCQ) purge(qp uint32) {
	mask := uint(len(c.ring) - 1)
	kept := c.head
	for i := c.head; i != c.tail; i++ {
		if e := c.ring[i&mask]; e.qp != qp {
			c.ring[kept&mask] = e
			kept++
		}
	}
	c.tail = kept
}

// Close returns verbs.ErrBusy while queue pairs use the queue.
func (c *nullCQ) Close() error {
	if c.closed {
		return c.dev.err("close completion queue", verbs.ErrClosed, "")
	}
	if c.users != 0 {
		return c.dev.err("close completion queue", verbs.ErrBusy, fmt.Sprintf("%d queue pairs", c.users))
	}
	c.closed = true
	c.dev.open--
	return nil
}
