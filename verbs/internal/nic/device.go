package nic

import (
	"fmt"
	"sync"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// Objects counts open objects.
type Objects struct{ PDs, MRs, CQs, QPs int }

// String counts them in words.
func (o Objects) String() string {
	return fmt.Sprintf("%d protection domains, %d memory regions, %d completion queues, %d queue pairs",
		o.PDs, o.MRs, o.CQs, o.QPs)
}

// Device is what the objects of a NIC share. The provider fills the fields before it makes the
// first object. Lock guards the fields that change, and everything in the objects.
type Device struct {
	_      guard.NoCopy
	Lock   *Lock
	Name   string
	Handle verbs.Device // the NIC's public object
	Limits Limits
	GIDs   int // entries of the GID table of port 1, the only one
	Keys   Keys
	Open   *Objects // counts open objects, of this NIC or of several

	Gone   bool   // the NIC has failed: nothing can be made on it, and it raises no events
	Closed string // the text of the error once the provider is closed; empty before

	watchers verbs.Watchers
}

// Err returns the error of a call on the NIC.
func (d *Device) Err(op string, err error, detail string) error {
	return &verbs.OpError{Op: op, Device: d.Name, Detail: detail, Err: err}
}

// Usable returns why nothing can be made on the NIC; nil if it can. Call it locked.
func (d *Device) Usable(op string) error {
	if d.Closed != "" {
		return d.Err(op, verbs.ErrClosed, d.Closed)
	}
	if d.Gone {
		return d.Err(op, verbs.ErrDeviceGone, "")
	}
	return nil
}

// Watch implements verbs.Device.
func (d *Device) Watch(c chan<- verbs.Event) (stop func()) { return d.watchers.Watch(c) }

// Publish raises an event of the NIC. Call it locked: that keeps events in the order of their
// causes, and is safe, because sending them neither waits nor calls back.
func (d *Device) Publish(e verbs.Event) {
	if !d.Gone {
		e.Device = d.Handle
		d.watchers.Publish(e)
	}
}

// Limits are the most that the objects of a NIC may ask for.
type Limits struct {
	MaxQPWR     int    // work requests in a queue of a queue pair
	MaxCQE      int    // completions in a completion queue
	MaxSGE      int    // elements of a scatter-gather list
	MaxInline   int    // bytes of an inline send
	MaxMsgSize  uint32 // bytes of a message
	MaxRDAtomic int    // reads and atomics outstanding per queue pair, each way; at most 255
}

// Attr returns the attributes of a NIC with these limits. The provider adds the vendor.
func (l *Limits) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Ports:       1,
		MaxQP:       1 << 18,
		MaxQPWR:     l.MaxQPWR,
		MaxSGE:      l.MaxSGE,
		MaxCQ:       1 << 16,
		MaxCQE:      l.MaxCQE,
		MaxMR:       maxKeyIndex,
		MaxMRSize:   1 << 47,
		MaxPD:       1 << 16,
		MaxRDAtomic: l.MaxRDAtomic,
		MaxInline:   l.MaxInline,
		Software:    true,
	}
}

// QPCap replaces zero fields of c by the contract's defaults, or by the limit if that is lower. If
// another field is out of range, wrong says which.
func (l *Limits) QPCap(c verbs.QPCap) (_ verbs.QPCap, wrong string) {
	lower := func(field *int, standard, limit int) {
		if *field == 0 {
			*field = min(standard, limit)
		}
	}
	std := verbs.QPCap{}.WithDefaults()
	lower(&c.MaxSendWR, std.MaxSendWR, l.MaxQPWR)
	lower(&c.MaxRecvWR, std.MaxRecvWR, l.MaxQPWR)
	lower(&c.MaxSendSGE, std.MaxSendSGE, l.MaxSGE)
	lower(&c.MaxRecvSGE, std.MaxRecvSGE, l.MaxSGE)
	lower(&c.MaxInline, std.MaxInline, l.MaxInline)
	beyond := func(n, limit int) bool { return n < 0 || n > limit }
	switch {
	case beyond(c.MaxSendWR, l.MaxQPWR) || beyond(c.MaxRecvWR, l.MaxQPWR):
		wrong = fmt.Sprintf("queues of %d and %d work requests, the NIC allows %d", c.MaxSendWR, c.MaxRecvWR,
			l.MaxQPWR)
	case beyond(c.MaxSendSGE, l.MaxSGE) || beyond(c.MaxRecvSGE, l.MaxSGE):
		wrong = fmt.Sprintf("%d and %d scatter-gather elements, the NIC allows %d", c.MaxSendSGE,
			c.MaxRecvSGE, l.MaxSGE)
	case beyond(c.MaxInline, l.MaxInline):
		wrong = fmt.Sprintf("inline sends of %d bytes, the NIC allows %d", c.MaxInline, l.MaxInline)
	}
	return c, wrong
}

// Lock guards a NIC and all of its objects, or those of several NICs. Goroutines may wait on it
// until accesses to a region's memory that happen without the lock have ended.
type Lock struct {
	sync.Mutex
	quiet   sync.Cond // on the mutex
	waiters int       // goroutines in AwaitQuiet
}

// AwaitQuiet waits for the next WakeQuiet. Call it, locked, in a loop that tests the condition.
func (l *Lock) AwaitQuiet() {
	l.quiet.L = &l.Mutex
	l.waiters++
	l.quiet.Wait()
	l.waiters--
}

// WakeQuiet wakes the goroutines in AwaitQuiet. Call it, locked, after [Pieces.Release] and after
// whatever else a Close waits for.
func (l *Lock) WakeQuiet() {
	if l.waiters > 0 {
		l.quiet.Broadcast()
	}
}

// PD is a protection domain.
type PD struct {
	_      guard.NoCopy
	dev    *Device
	mrs    int // open regions
	qps    int // open queue pairs
	closed bool
}

// Init opens the domain. It locks.
func (p *PD) Init(d *Device) error {
	d.Lock.Lock()
	defer d.Lock.Unlock()
	if err := d.Usable("alloc pd"); err != nil {
		return err
	}
	p.dev = d
	d.Open.PDs++
	return nil
}

// Usable returns why nothing can be made in the domain; nil if it can. Call it locked.
func (p *PD) Usable(op string) error {
	if err := p.dev.Usable(op); err != nil {
		return err
	}
	if p.closed {
		return p.dev.Err(op, verbs.ErrClosed, "the protection domain")
	}
	return nil
}

// Close implements verbs.PD. It locks.
func (p *PD) Close() error {
	p.dev.Lock.Lock()
	defer p.dev.Lock.Unlock()
	if p.closed {
		return p.dev.Err("close pd", verbs.ErrClosed, "")
	}
	if p.mrs != 0 || p.qps != 0 {
		return p.dev.Err("close pd", verbs.ErrBusy,
			fmt.Sprintf("%d memory regions and %d queue pairs are open", p.mrs, p.qps))
	}
	p.closed = true
	p.dev.Open.PDs--
	return nil
}
