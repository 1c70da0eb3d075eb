package soft

import (
	"fmt"

	"ibverbx/verbs"
)

// PD is a protection domain. It is a verbs.PD.
type PD struct {
	_      noCopy
	dev    *Device
	mrs    int // open regions
	qps    int // open queue pairs
	closed bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.usable("alloc pd"); err != nil {
		return nil, err
	}
	d.f.objects.PDs++
	return &PD{dev: d}, nil
}

// Device is the NIC that the domain belongs to.
func (p *PD) Device() verbs.Device { return p.dev }

// usable returns why nothing can be made in the domain; nil where it can.
func (p *PD) usable(op string) error {
	if err := p.dev.usable(op); err != nil {
		return err
	}
	if p.closed {
		return p.dev.err(op, verbs.ErrClosed, "the protection domain")
	}
	return nil
}

// Close frees the domain.
func (p *PD) Close() error {
	f := p.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.closed {
		return p.dev.err("close pd", verbs.ErrClosed, "")
	}
	if p.mrs != 0 || p.qps != 0 {
		return p.dev.err("close pd", verbs.ErrBusy,
			fmt.Sprintf("%d memory regions and %d queue pairs are open", p.mrs, p.qps))
	}
	p.closed = true
	f.objects.PDs--
	return nil
}
