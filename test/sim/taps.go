package sim

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// The taps see every physical work request and every completion, so the model knows what is on a
// NIC and what the library can know. They change nothing, except that they let the fabric move
// during a call of the library that waits.

// wireAt identifies a queue pair: different NICs use the same numbers.
type wireAt struct {
	nic *lab.NIC
	num uint32
}

// tapCQ records a completion queue that belongs to the virtual CQ under construction.
func (w *world) tapCQ(cq lab.CQ) verbs.CQ {
	t := &tappedCQ{CQ: cq, w: w}
	if c := w.buildingCQ; c != nil {
		c.taps = append(c.taps, t)
	}
	return t
}

// tapQP records a queue pair of the virtual queue pair under construction.
func (w *world) tapQP(qp lab.QP) verbs.QP {
	q := &wire{QP: qp, end: w.building}
	q.revive()
	if q.end.vq != nil {
		return q // of a wrong call, not of the end
	}
	q.end.wires = append(q.end.wires, q)
	w.wires[wireAt{q.NIC, q.Num()}] = q
	return q
}

// tappedCQ is a tapped completion queue.
type tappedCQ struct {
	lab.CQ
	w     *world
	stale []verbs.WC // of earlier connections, or invented; polled next
	dead  bool       // Poll has returned an error
}

// Poll is called by the library.
func (c *tappedCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.w.pumping {
		c.w.pump()
	}
	if only := c.w.only; only != nil && only != c.NIC {
		c.w.Broken(ruleRouting, "%v is polled, and was not asked for", c.NIC.Name())
	}
	n := copy(wcs, c.stale)
	c.stale = c.stale[n:]
	m, err := c.CQ.Poll(wcs[n:])
	for i := range wcs[n : n+m] {
		wc := &wcs[n+i]
		if q := c.w.wires[wireAt{c.NIC, wc.QPNum}]; q != nil {
			q.completed(wc)
		}
	}
	c.dead = c.dead || err != nil
	return n + m, err
}

// wire is a tapped queue pair: a rail of a virtual queue pair, or its notify queue pair.
type wire struct {
	lab.QP
	end     *end
	sends   []posted   // on the NIC
	recvs   []posted   // likewise
	most    int        // largest number of sends that were on the NIC at a time
	last    []verbs.WC // the last few that were polled of it
	bad     []verbs.WC // all that were not successful
	refused bool       // it has refused the last post of sends
	stopped bool       // the library has moved it to ERR
	began   bool       // it has been connected once
	psn     uint32     // first packet sequence number that it sent when it was connected last

	userImm
	*wireLife
	lives   []*wireLife
	pair    *wire // the peer's, once it was connected
	touched bool  // a fault may take it out, or its peer
	alone   bool  // it was moved to ERR alone, without an event
}

// userImm is the progress of a user's immediate in DQPLB, where it travels in a separate message
// behind the last fragment.
type userImm struct {
	plain bool // data without a number went out since the last number
	raw   bool // the next message to go out carries the immediate of the one before
	rawIn bool // the same for arrivals
	rawOf int  // the number of that message, counted from the first
}

// posted is a work request on a NIC.
type posted struct {
	id       uint64
	req      *send // the request that it belongs to; nil for receives
	rcv      *recv // the receive that it belongs to, if that has memory
	lastStep bool  // it is the last step of its request

	remote, bytes uint64 // of sends: address and length

	part  *part // with failover
	place int   // of sends: among all that went out there; of receives: among all posted
	own   bool  // one of the library's own messages, exempt from the limit
}

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
	q.most, q.refused = max(q.most, q.requests()), err != nil
	if err != nil {
		q.end.refusedOnWire(q, &wrs[n], err)
	}
	return n, err
}

// requests returns how many of the user's requests are on the NIC.
func (q *wire) requests() (n int) {
	for i := range q.sends {
		if !q.sends[i].own {
			n++
		}
	}
	return n
}

// mustRun checks that nothing is posted to a queue pair that the library has moved to ERR. With a
// single one the library posts there to learn when everything is flushed.
func (q *wire) mustRun(what string) {
	if q.stopped && !q.end.single && !q.end.leaving {
		q.end.w.Broken(ruleFirstError, "%v posts a %s on %v, which it has moved to ERR", q.end, what, q)
	}
}

func (q *wire) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mustRun("receive")
	n, err := q.QP.PostRecv(wrs)
	for i := range wrs[:n] {
		p := posted{id: wrs[i].ID, rcv: q.end.recvOnWire(&wrs[i]), place: q.recvsOut}
		q.recvsOut++
		if p.rcv != nil {
			p.rcv.out++
			q.end.w.Logf("    on %v: %v", q, p.rcv)
		}
		q.recvs = append(q.recvs, p)
	}
	if err != nil && !verbs.IsTransient(err) {
		q.end.recvsRefused = true
	}
	if errors.Is(err, verbs.ErrQueueFull) && !lab.Injected(err) && !q.end.single {
		q.end.w.Broken(ruleBackpressure, "%v meets a full receive queue on %v", q.end, q)
	}
	return n, err
}

// errNotNow is the error of some refused moves to ERR. The library must try again.
var errNotNow = fmt.Errorf("injected: %w", verbs.ErrNoMemory)

func (q *wire) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateErr {
		q.end.mayStop()
		q.end.flushes = q.end.leaving
		if q.end.w.Rng.IntN(12) == 0 {
			q.end.w.Moves++ // the library must try again
			return errNotNow
		}
	}
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateReset {
		q.mayRevive()
	}
	err := q.QP.Modify(attr, mask)
	if err == nil && q.end.conn.failover {
		q.meet(attr, mask)
	}
	if err == nil && mask&verbs.QPAttrSQPSN != 0 {
		q.began, q.psn = true, attr.SQPSN
	}
	if err == nil && mask&verbs.QPAttrState != 0 {
		q.stopped = attr.State == verbs.StateErr
		if attr.State == verbs.StateReset {
			q.forget()
			q.revive()
		}
	}
	return err
}

func (q *wire) Close() error {
	err := q.QP.Close()
	if err == nil {
		q.forget()
		q.over = true
		at := wireAt{q.NIC, q.Num()}
		if w := q.end.w; w.wires[at] == q {
			delete(w.wires, at)
		}
	}
	return err
}

// forget records that the NIC holds no request of the queue pair any more.
func (q *wire) forget() {
	for _, p := range q.sends {
		if p.req != nil {
			p.req.out--
		}
		p.ends(q, verbs.StatusWRFlushErr)
	}
	for _, p := range q.recvs {
		if p.rcv != nil {
			p.rcv.out--
		}
	}
	q.sends, q.recvs = q.sends[:0], q.recvs[:0]
}

// ends records how a request of the send direction has ended.
func (p *posted) ends(q *wire, status verbs.Status) {
	switch {
	case p.part == nil || p.part.on != q.wireLife || p.part.place != p.place:
	case status == verbs.StatusSuccess:
		p.part.state = partAcked
	default:
		p.part.state = partLost
	}
}

// completed takes a work request off the NIC.
func (q *wire) completed(wc *verbs.WC) {
	same := func(p posted) bool { return p.id == wc.ID }
	if at := slices.IndexFunc(q.sends, same); at >= 0 {
		first := at
		if q.end.single {
			first = 0 // unsignaled ones before it have succeeded
		}
		for i := range q.sends[first : at+1] {
			p := &q.sends[first+i]
			p.ends(q, wc.Status)
			if p.req != nil {
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
		p := q.recvs[at]
		if p.rcv != nil {
			p.rcv.out--
		}
		q.recvs = slices.Delete(q.recvs, at, at+1)
		q.end.recvSeen(wc.Status)
		if wc.Status == verbs.StatusSuccess {
			q.took = append(q.took, p.place)
			if p.rcv == nil {
				q.arrived(wc)
			}
		}
	}
	if wc.Status != verbs.StatusSuccess {
		q.bad = append(q.bad, *wc)
		q.ill = true
	}
	if q.last = append(q.last, *wc); len(q.last) > 8 {
		q.last = q.last[1:]
	}
}
