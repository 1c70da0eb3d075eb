package lab

import (
	"fmt"
	"slices"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Hooks are a kit's additions to a testbed.
type Hooks struct {
	CQ    func(CQ) verbs.CQ // wraps a completion queue that the library creates
	QP    func(QP) verbs.QP // wraps a queue pair
	Moved func(soft.Action) // runs after each action of package soft that Steps has drawn; may be nil
}

// NIC is a NIC whose completion queues and queue pairs are tapped. The taps change nothing, but a
// hook may let the fabric move inside a call that waits.
type NIC struct {
	Device
	Host *Host
	PD   verbs.PD // the last one allocated: that of the host's domain
	Down int      // faults in force that cut its link, or may
	Dead int      // faults in force that took the NIC away, or may
	Died bool     // there was such a fault

	hooks *Hooks
	psns  *psns // on a network; otherwise nil
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

// tapped is a completion queue made by a hook: it embeds [CQ].
type tapped interface{ untapped() verbs.CQ }

// CQ is the NIC's completion queue behind a tap.
type CQ struct {
	verbs.CQ
	NIC *NIC
}

// Device returns the tapped NIC.
func (c *CQ) Device() verbs.Device { return c.NIC }

func (c *CQ) untapped() verbs.CQ { return c.CQ }

// QP is the NIC's queue pair behind a tap.
type QP struct {
	verbs.QP
	NIC *NIC
}

// Device returns the tapped NIC.
func (q *QP) Device() verbs.Device { return q.NIC }

// String names the queue pair.
func (q *QP) String() string { return fmt.Sprintf("%s qp %d", q.NIC.Name(), q.Num()) }

func refuse(with []error, times ...int) func(*Testbed, *QP) func() {
	return func(t *Testbed, q *QP) func() { return q.QP.(*frailQP).sends.begin(t, with, times) }
}

func refuseRecv(with []error, times ...int) func(*Testbed, *QP) func() {
	return func(t *Testbed, q *QP) func() { return q.QP.(*frailQP).recvs.begin(t, with, times) }
}

// frailQP is a queue pair of a NIC that refuses posts and alters requests as faults demand. On a
// network it also translates the packet sequence numbers that the library draws, because they
// decide the fate of late packets and so must follow from the seed.
type frailQP struct {
	verbs.QP
	psns         *psns // nil on NICs of package soft
	sends, recvs refusals

	// Of the requests that match, skip pass, and altered get the bits flip of their immediates
	// inverted.
	match         func(*verbs.SendWR) bool
	skip, altered int
	flip          uint32
}

// refusals are posts to be refused.
type refusals struct {
	skip, left int
	err        error
}

func (r *refusals) begin(t *Testbed, with []error, times []int) (undo func()) {
	*r = refusals{skip: t.Rng.IntN(4), left: t.Pick(times...), err: with[t.Rng.IntN(len(with))]}
	return func() { r.left = 0 }
}

// among counts posted requests, and returns which of n is refused; n if none is.
func (r *refusals) among(n int) (int, error) {
	if r.left == 0 || r.skip >= n {
		r.skip -= min(n, r.skip)
		return n, nil
	}
	at := r.skip
	r.skip = 0
	r.left--
	return at, fmt.Errorf("injected: %w", r.err)
}

// PostSend posts the requests that no fault refuses.
func (q *frailQP) PostSend(wrs []verbs.SendWR) (int, error) {
	ok, refusal := q.sends.among(len(wrs))
	wrs = wrs[:ok]
	if q.altered != 0 {
		wrs = slices.Clone(wrs)
		for i := range wrs {
			q.change(&wrs[i])
		}
	}
	if n, err := q.QP.PostSend(wrs); err != nil {
		return n, err
	}
	return ok, refusal
}

// change alters a request if its turn has come.
func (q *frailQP) change(wr *verbs.SendWR) {
	switch {
	case q.altered == 0 || !q.match(wr):
	case q.skip > 0:
		q.skip--
	default:
		q.altered--
		wr.Imm ^= q.flip
	}
}

// PostRecv posts the receives that no fault refuses.
func (q *frailQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	ok, refusal := q.recvs.among(len(wrs))
	if n, err := q.QP.PostRecv(wrs[:ok]); err != nil {
		return n, err
	}
	return ok, refusal
}

// Modify translates the first packet sequence numbers.
func (q *frailQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.psns == nil {
		return q.QP.Modify(attr, mask)
	}
	a := *attr
	if mask&verbs.QPAttrRQPSN != 0 {
		a.RQPSN = q.psns.translate(a.DestQPNum, a.RQPSN)
	}
	if mask&verbs.QPAttrSQPSN != 0 {
		a.SQPSN = q.psns.translate(q.Num(), a.SQPSN)
	}
	return q.QP.Modify(&a, mask)
}

// Alter inverts the bits flip in the immediates of some requests that a queue pair posts: of those
// that match, a few after the next few.
func (t *Testbed) Alter(c *Conn, q *QP, match func(*verbs.SendWR) bool, flip uint32) {
	f := q.QP.(*frailQP)
	f.match, f.skip, f.altered, f.flip = match, t.Rng.IntN(3), t.Pick(1, 3), flip
	t.Strikes = append(t.Strikes, &Strike{Fault: &Fault{Name: "alter"}, Conn: c, nic: q.NIC,
		undo: func() { f.altered = 0 }})
}
