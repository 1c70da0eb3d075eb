package soft

import (
	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// PD is a protection domain. It is a verbs.PD.
type PD struct {
	_    guard.NoCopy
	dev  *Device
	core nic.PD
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) {
	p := &PD{dev: d}
	if err := p.core.Init(&d.core); err != nil {
		return nil, err
	}
	return p, nil
}

// Device is the NIC that the domain belongs to.
func (p *PD) Device() verbs.Device { return p.dev }

// Close frees the domain.
func (p *PD) Close() error { return p.core.Close() }
