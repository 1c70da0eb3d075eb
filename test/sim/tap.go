package sim

import (
	"errors"
	"slices"
	"strings"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The taps stand between the library and the software NICs. They see every physical work request
// and every completion, which is how the model knows what is on a NIC and what the library can
// know. They change nothing, except that they let the fabric move while the library is in a call
// that waits.

// nic is a tapped NIC.
type nic struct {
	*soft.Device
	w     *world
	wires map[uint32]*wire
	pd    *tappedPD // of the host's domain
	down  int       // faults that cut its link
	dead  int       // faults that took it away
	died  bool      // it ever was
}

func (d *nic) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	d.pd = &tappedPD{PD: pd, nic: d}
	return d.pd, nil
}

func (d *nic) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	t := &tappedCQ{CQ: cq, nic: d}
	if c := d.w.buildingCQ; c != nil {
		c.taps = append(c.taps, t)
	}
	return t, nil
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
	q := &wire{QP: qp, nic: p.nic, end: p.nic.w.building}
	q.end.wires = append(q.end.wires, q)
	p.nic.wires[qp.Num()] = q
	return q, nil
}

// tappedCQ is a tapped completion queue.
type tappedCQ struct {
	verbs.CQ
	nic   *nic
	stale []verbs.WC // what nobody waits for any more, to be polled next
	dead  bool       // Poll has said so
}

func (c *tappedCQ) Device() verbs.Device { return c.nic }

// Poll is how the library polls.
func (c *tappedCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.nic.w.pumping {
		c.nic.w.pump()
	}
	if only := c.nic.w.only; only != nil && only != c.nic {
		c.nic.w.broken(ruleRouting, "%v is polled, and was not asked for", c.nic.Name())
	}
	n := copy(wcs, c.stale)
	c.stale = c.stale[n:]
	m, err := c.CQ.Poll(wcs[n:])
	for i := range wcs[n : n+m] {
		c.nic.observe(&wcs[n+i])
	}
	c.dead = c.dead || err != nil
	return n + m, err
}

// observe notes a completion that the library is about to see.
func (d *nic) observe(wc *verbs.WC) {
	if q := d.wires[wc.QPNum]; q != nil {
		q.completed(wc)
	}
}

// wire is a tapped queue pair: a rail of a virtual queue pair.
type wire struct {
	verbs.QP
	nic     *nic
	end     *end
	sends   []posted // on the NIC
	recvs   []posted
	most    int        // sends that were on the NIC at a time
	last    []verbs.WC // what was polled of it lately
	bad     []verbs.WC // what was not successful
	plain   bool       // plain data went out since the last number
	rawIn   bool       // the next message to arrive carries the user's immediate of the one before
	rawOf   int        // the number of that one, counted from the first
	refused bool       // it has refused the last post of sends
	stopped bool       // the library has moved it to ERR
	psn     uint32     // that it began with
	raw     bool       // the next message carries the user's immediate of the one before
}

// posted is a work request on a NIC.
type posted struct {
	id   uint64
	req  *send // what it belongs to; nil for receives
	rcv  *recv // for receives with memory
	note bool  // the last step of its request

	remote, bytes uint64 // of sends: address and length
}

func (q *wire) Device() verbs.Device { return q.nic }

func (q *wire) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mustRun("send")
	n, err := q.QP.PostSend(wrs)
	for i := range wrs[:n] {
		p := q.end.onWire(q, &wrs[i])
		if p.req != nil {
			p.req.out++
		}
		q.sends = append(q.sends, p)
	}
	q.most, q.refused = max(q.most, len(q.sends)), err != nil
	if err != nil {
		q.end.refusedOnWire(q, &wrs[n], err)
	}
	return n, err
}

// mustRun checks that nothing is posted where the library itself has stopped the queue pair. With a
// single one it asks so what is flushed.
func (q *wire) mustRun(what string) {
	if q.stopped && !q.end.single && !q.end.leaving {
		q.nic.w.broken(ruleFirstError, "%v posts a %s on %v, which it has moved to ERR", q.end, what, q)
	}
}

func (q *wire) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mustRun("receive")
	n, err := q.QP.PostRecv(wrs)
	for i := range wrs[:n] {
		p := posted{id: wrs[i].ID, rcv: q.end.recvOnWire(&wrs[i])}
		if p.rcv != nil {
			p.rcv.out++
		}
		q.recvs = append(q.recvs, p)
	}
	if err != nil && !verbs.IsTransient(err) {
		q.end.noRecvs = true
	}
	if errors.Is(err, verbs.ErrQueueFull) && !injected(err) && !q.end.single {
		q.nic.w.broken(ruleBackpressure, "%v meets a full receive queue on %v", q.end, q)
	}
	return n, err
}

// injected says whether a refusal was made on purpose.
func injected(err error) bool { return err != nil && strings.Contains(err.Error(), "injected") }

func (q *wire) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateErr {
		q.end.mayStop()
	}
	err := q.QP.Modify(attr, mask)
	if err == nil && mask&verbs.QPAttrState != 0 {
		q.stopped = attr.State == verbs.StateErr
		if attr.State == verbs.StateReset {
			q.forget()
		}
	}
	return err
}

func (q *wire) Close() error {
	err := q.QP.Close()
	if err == nil {
		q.forget()
		q.closed()
	}
	return err
}

// forget: the NIC holds nothing of the queue pair any more.
func (q *wire) forget() {
	for _, p := range q.sends {
		if p.req != nil {
			p.req.out--
		}
	}
	for _, p := range q.recvs {
		if p.rcv != nil {
			p.rcv.out--
		}
	}
	q.sends, q.recvs = q.sends[:0], q.recvs[:0]
}

func (q *wire) closed() {
	if q.nic.wires[q.Num()] == q {
		delete(q.nic.wires, q.Num())
	}
}

// completed takes a work request off the NIC.
func (q *wire) completed(wc *verbs.WC) {
	same := func(p posted) bool { return p.id == wc.ID }
	if at := slices.IndexFunc(q.sends, same); at >= 0 {
		first := at
		if q.end.single {
			first = 0 // those before it gave no completion, and have ended well
		}
		for i := range q.sends[first : at+1] {
			if p := &q.sends[first+i]; p.req != nil {
				p.req.out--
				status := wc.Status
				if first+i != at {
					status = verbs.StatusSuccess
				}
				q.end.sendSeen(q, p, status)
			}
		}
		q.sends = slices.Delete(q.sends, first, at+1)
	} else if at := slices.IndexFunc(q.recvs, same); at >= 0 {
		if p := q.recvs[at]; p.rcv != nil {
			p.rcv.out--
		}
		q.recvs = slices.Delete(q.recvs, at, at+1)
		q.end.recvSeen(wc.Status)
		if wc.Status == verbs.StatusSuccess {
			q.arrived(wc)
		}
	}
	if wc.Status != verbs.StatusSuccess {
		q.bad = append(q.bad, *wc)
	}
	if q.last = append(q.last, *wc); len(q.last) > 8 {
		q.last = q.last[1:]
	}
}
