package sendside

import (
	"slices"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// nic is a software NIC with a tap: it knows which queue pairs belong to which link, and what reads
// go out. It changes nothing, except that it lets the fabric move while a single queue pair is
// being closed, which waits.
type nic struct {
	*soft.Device
	bed    *bed
	host   *host
	ending int // single queue pairs that were moved to ERR and not closed yet
}

func (d *nic) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &tappedPD{PD: pd, nic: d}, nil
}

func (d *nic) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	return &tappedCQ{CQ: cq, nic: d}, nil
}

type tappedPD struct {
	verbs.PD
	nic *nic
}

func (p *tappedPD) Device() verbs.Device { return p.nic }

func (p *tappedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*tappedCQ).CQ, cfg.RecvCQ.(*tappedCQ).CQ
	qp, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	q := &wire{QP: qp, nic: p.nic, link: p.nic.bed.build}
	if q.link != nil {
		q.link.wires = append(q.link.wires, q)
	}
	return q, nil
}

// tappedCQ is a tapped completion queue.
type tappedCQ struct {
	verbs.CQ
	nic  *nic
	vain int // polls in a row that have brought nothing
}

func (c *tappedCQ) Device() verbs.Device { return c.nic }

func (c *tappedCQ) Poll(wcs []verbs.WC) (int, error) {
	b := c.nic.bed
	if b.plan.rails == 1 {
		if c.vain++; c.nic.ending != 0 || c.vain > 8 {
			b.steps(8)
			c.vain = 0
		}
	}
	n, err := c.CQ.Poll(wcs)
	if n != 0 {
		c.vain = 0
	}
	return n, err
}

// wire is a tapped queue pair: a rail of a virtual queue pair, or its notify QP.
type wire struct {
	verbs.QP
	nic    *nic
	link   *link
	ending bool
	closed bool
	bye    bool     // the transport's goodbye was posted
	reads  []uint64 // remote addresses of the reads that were posted
}

// wireBye is the kind, in the first byte of a SEND, of the last message of an endpoint that closes.
const wireBye = 3

func (q *wire) Device() verbs.Device { return q.nic }

func (q *wire) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.PostSend(wrs)
	for i := range wrs[:n] {
		switch wr := &wrs[i]; {
		case wr.Opcode == verbs.OpRDMARead:
			q.reads = append(q.reads, wr.RemoteAddr)
		case wr.Opcode != verbs.OpSend:
		case q.bye:
			q.nic.bed.broken(ruleMessages, "a message follows the goodbye on %s qp %d", q.nic.Name(), q.Num())
		default:
			q.bye = len(wr.Inline) != 0 && wr.Inline[0] == wireBye
		}
	}
	return n, err
}

func (q *wire) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	err := q.QP.Modify(attr, mask)
	if err == nil && mask&verbs.QPAttrState != 0 && attr.State == verbs.StateErr &&
		q.nic.bed.plan.rails == 1 && !q.ending {
		q.ending = true
		q.nic.ending++
	}
	return err
}

func (q *wire) Close() error {
	err := q.QP.Close()
	if err != nil {
		return err
	}
	q.closed = true
	if q.ending {
		q.ending = false
		q.nic.ending--
	}
	if l := q.link; l != nil {
		l.wires = slices.DeleteFunc(l.wires, func(o *wire) bool { return o == q })
	}
	return nil
}
