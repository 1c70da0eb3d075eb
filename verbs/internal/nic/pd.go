package nic

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

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
