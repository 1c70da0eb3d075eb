// Package unreliable has NICs for tests. Any of their calls can be made to fail.
package unreliable

import (
	"errors"
	"sync"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Err is the error of a call that is made to fail.
var Err = errors.New("the provider failed")

// Calls counts the calls to NICs, and fails one of them. Several NICs may count at the same time,
// for example while a large region is registered on all of them. The test may use the fields while
// no call is being made.
type Calls struct {
	mu      sync.Mutex
	N       int        // calls so far
	At      int        // the call that fails, counted from 0; negative means none
	Only    string     // kind of call that counts; "" for all
	Name    string     // name of the call that failed
	Invents []verbs.WC // completions that the next poll of a queue invents
}

// call counts a call, and returns Err if it is the one to fail.
func (f *Calls) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Only != "" && f.Only != name {
		return nil
	}
	f.N++
	if f.N-1 != f.At {
		return nil
	}
	f.Name = name
	return Err
}

// NIC is a software NIC whose calls, and those of its objects, may fail before they have done
// anything.
type NIC struct {
	*soft.Device
	f *Calls
}

// New makes a NIC unreliable. Several NICs may share a Calls.
func New(d *soft.Device, f *Calls) NIC { return NIC{d, f} }

type (
	pd struct {
		verbs.PD
		nic NIC
	}
	mr struct {
		verbs.MR
		f *Calls
	}
	cq struct {
		verbs.CQ
		nic NIC
	}
	qp struct {
		verbs.QP
		nic NIC
	}
)

// Query may fail.
func (d NIC) Query() (verbs.DeviceAttr, error) {
	if err := d.f.call("query"); err != nil {
		return verbs.DeviceAttr{}, err
	}
	return d.Device.Query()
}

// QueryPort may fail.
func (d NIC) QueryPort(port int) (verbs.PortAttr, error) {
	if err := d.f.call("query port"); err != nil {
		return verbs.PortAttr{}, err
	}
	return d.Device.QueryPort(port)
}

// AllocPD may fail.
func (d NIC) AllocPD() (verbs.PD, error) {
	if err := d.f.call("alloc pd"); err != nil {
		return nil, err
	}
	p, err := d.Device.AllocPD()
	return pd{p, d}, err
}

// CreateCQ may fail.
func (d NIC) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	if err := d.f.call("create cq"); err != nil {
		return nil, err
	}
	c, err := d.Device.CreateCQ(cfg)
	return cq{c, d}, err
}

func (p pd) Device() verbs.Device { return p.nic }

func (p pd) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	if err := p.nic.f.call("register"); err != nil {
		return nil, err
	}
	m, err := p.PD.RegisterMR(buf, access)
	return mr{m, p.nic.f}, err
}

func (p pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if err := p.nic.f.call("create qp"); err != nil {
		return nil, err
	}
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(cq).CQ, cfg.RecvCQ.(cq).CQ
	q, err := p.PD.CreateQP(cfg)
	return qp{q, p.nic}, err
}

func (m mr) Close() error { return errors.Join(m.f.call("deregister"), m.MR.Close()) }

func (c cq) Device() verbs.Device { return c.nic }

func (c cq) Poll(wcs []verbs.WC) (int, error) {
	n, err := c.CQ.Poll(wcs)
	k := copy(wcs[n:], c.nic.f.Invents)
	c.nic.f.Invents = c.nic.f.Invents[k:]
	return n + k, err
}

func (c cq) Arm(solicited bool) error {
	if err := c.nic.f.call("arm"); err != nil {
		return err
	}
	return c.CQ.Arm(solicited)
}

func (c cq) Close() error { return errors.Join(c.nic.f.call("close cq"), c.CQ.Close()) }

func (q qp) Device() verbs.Device { return q.nic }

func (q qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.nic.f.call("post recv"); err != nil {
		return 0, err
	}
	return q.QP.PostRecv(wrs)
}

func (q qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := q.nic.f.call("modify"); err != nil {
		return err
	}
	return q.QP.Modify(attr, mask)
}

func (q qp) Close() error { return errors.Join(q.nic.f.call("close qp"), q.QP.Close()) }

func (p pd) Close() error { return errors.Join(p.nic.f.call("close pd"), p.PD.Close()) }
