package lab

import (
	"fmt"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Hooks is what a kit adds to a testbed.
type Hooks struct {
	CQ    func(CQ) verbs.CQ // wraps a completion queue that the library creates
	QP    func(QP) verbs.QP // wraps a queue pair
	Moved func(soft.Action) // runs after each action of package soft that Steps has drawn; may be nil
}

// NIC is a NIC whose completion queues and queue pairs are tapped. The taps change
// nothing: a hook may let the fabric move inside of a call that waits.
type NIC struct {
	Device
	Host *Host
	PD   verbs.PD // that was allocated last: that of the host's domain
	Down int      // faults in force that cut its link, or may
	Dead int      // faults in force that took the NIC away, or may
	Died bool     // there was such a fault

	hooks *Hooks
	psns  *psns // on a network; else nil
}

// AllocPD allocates a tapped protection domain.
func (d *NIC) AllocPD() (verbs.PD, error) {
	p, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	d.PD = &pd{PD: p, nic: d}
	return d.PD, nil
}

// CreateCQ creates a tapped completion queue.
func (d *NIC) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	return d.hooks.CQ(CQ{cq, d}), nil
}

type pd struct {
	verbs.PD
	nic *NIC
}

func (p *pd) Device() verbs.Device { return p.nic }

// CreateQP creates a tapped queue pair on tapped completion queues.
func (p *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(tapped).untapped(), cfg.RecvCQ.(tapped).untapped()
	qp, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	return p.nic.hooks.QP(QP{&frailQP{QP: qp, psns: p.nic.psns}, p.nic}), nil
}

// tapped is a completion queue of a hook's making: it embeds [CQ].
type tapped interface{ untapped() verbs.CQ }

// CQ is the NIC's completion queue behind a tap.
type CQ struct {
	verbs.CQ
	NIC *NIC
}

// Device is the tapped NIC.
func (c *CQ) Device() verbs.Device { return c.NIC }

func (c *CQ) untapped() verbs.CQ { return c.CQ }

// QP is the NIC's queue pair behind a tap.
type QP struct {
	verbs.QP
	NIC *NIC
}

// Device is the tapped NIC.
func (q *QP) Device() verbs.Device { return q.NIC }

// String names the queue pair.
func (q *QP) String() string { return fmt.Sprintf("%s qp %d", q.NIC.Name(), q.Num()) }
