package vqptest

import (
	"errors"

	"ibverbx/verbs"
)

// Tap is a NIC with functions that a test sets to observe, or to refuse, some of its calls. A test
// that answers queries by itself embeds a Tap and sets Self to the embedding device.
type Tap struct {
	verbs.Device
	Self verbs.Device // the device that the objects name; nil means the Tap
	// Modify and Register are called before the call, and an error of theirs refuses it. An error
	// of Deregister is added to that of the call. MR returns the object to hand out in place of a
	// region.
	Modify     func(attr *verbs.QPAttr, mask verbs.QPAttrMask) error
	Register   func(id verbs.DeviceID) error
	Deregister func(id verbs.DeviceID) error
	MR         func(verbs.MR) verbs.MR
}

type (
	tapPD struct {
		verbs.PD
		nic *Tap
	}
	tapCQ struct {
		verbs.CQ
		nic *Tap
	}
	tapQP struct {
		verbs.QP
		nic *Tap
	}
	tapMR struct {
		verbs.MR
		nic *Tap
	}
)

// AllocPD allocates a protection domain whose objects are tapped.
func (d *Tap) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return tapPD{pd, d}, err
}

// CreateCQ creates a CQ of the tapped NIC.
func (d *Tap) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(cfg)
	return tapCQ{cq, d}, err
}

func (p tapPD) Device() verbs.Device { return p.nic.self() }
func (c tapCQ) Device() verbs.Device { return c.nic.self() }
func (q tapQP) Device() verbs.Device { return q.nic.self() }

func (d *Tap) self() verbs.Device {
	if d.Self != nil {
		return d.Self
	}
	return d
}

func (p tapPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(tapCQ).CQ, cfg.RecvCQ.(tapCQ).CQ
	qp, err := p.PD.CreateQP(cfg)
	return tapQP{qp, p.nic}, err
}

func (p tapPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	if p.nic.Register != nil {
		if err := p.nic.Register(p.nic.ID()); err != nil {
			return nil, err
		}
	}
	mr, err := p.PD.RegisterMR(buf, access)
	if err == nil && p.nic.MR != nil {
		mr = p.nic.MR(mr)
	}
	return tapMR{mr, p.nic}, err
}

func (m tapMR) Close() error {
	var err error
	if m.nic.Deregister != nil {
		err = m.nic.Deregister(m.nic.ID())
	}
	return errors.Join(err, m.MR.Close())
}

func (q tapQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.nic.Modify != nil {
		if err := q.nic.Modify(attr, mask); err != nil {
			return err
		}
	}
	return q.QP.Modify(attr, mask)
}
