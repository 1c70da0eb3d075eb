package failover

import (
	"errors"
	"slices"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// queuePair is a queue pair and its NIC.
type queuePair struct {
	rail *Rail
	log  Log
	// own and peer are the packet sequence numbers with which it is connected.
	own, peer uint16
	up        bool // the queue pair is not in ERR
	dead      bool // its CQ has died
	// staged is what is logged and was not posted, wire what the peer's NIC has not carried out, in
	// order.
	staged, wire []packet
	sent         []uint64 // the numbers of all work requests of this connection, in order
	// cq is what the program has not polled: completions of sends and of receives.
	cq       []completion
	recvs    int // receives posted
	unpolled int // receives that a message has used up, and that have not been polled
}

type packet struct {
	id      uint64
	psn     uint16
	control uint32
}

type completion struct {
	id      uint64
	message bool // a message of the peer, which has the id
	control uint32
	status  verbs.Status
}

// nextPolled returns which completion a poll takes: sends complete in any order, receives do not.
func (w *world) nextPolled(cq []completion) int {
	if w.rng.IntN(4) != 0 {
		return 0
	}
	i := w.rng.IntN(len(cq))
	if cq[i].message {
		return slices.IndexFunc(cq, func(c completion) bool { return c.message })
	}
	return i
}

// carryOut has the peer's NIC carry out the oldest packet of a rail, and acknowledge it.
func (e *end) carryOut(i int) error {
	q, to := e.rails[i], e.peer().rails[i]
	if len(q.wire) == 0 {
		return nil
	}
	pk := q.wire[0]
	if !q.up || !to.up || to.peer != pk.psn {
		// A queue pair in ERR sends nothing and takes nothing. The retries are used up.
		if q.up && e.w.rng.IntN(4) == 0 {
			e.killQP(i)
		}
		return nil
	}
	message := wrid.Kind(pk.id) != wrid.Data
	if role := q.rail.role; wrid.Kind(pk.id) == wrid.Final && e.peer().serving[role] != i {
		return e.w.fail("end %d: rail %d carries what the peer has no receives for", e.id, i)
	}
	if message && to.recvs == to.unpolled {
		return nil // receiver not ready
	}
	q.wire = q.wire[1:]
	if message {
		to.unpolled++
		to.cq = append(to.cq, completion{id: pk.id, message: true, control: pk.control})
	}
	if k := e.works[wrid.Number(pk.id)]; wrid.Kind(pk.id) != wrid.Control {
		k.landed++
		if k.done {
			return e.w.fail("end %d: work %d lands after it was reported", e.id, wrid.Number(pk.id))
		}
		if k.atomic && k.landed > 1 {
			return e.w.fail("end %d: atomic %d is carried out twice", e.id, wrid.Number(pk.id))
		}
	}
	if e.w.calm || e.w.rng.IntN(16) != 0 || !e.w.spared(i, -1) {
		q.cq = append(q.cq, completion{id: pk.id})
		return nil
	}
	// The acknowledgement is lost, and the rail with it: the NIC repeats in vain.
	// Perhaps those of packets before it are lost with it.
	for at := len(q.cq) - 1; at >= 0 && e.w.rng.IntN(3) != 0; at-- {
		if c := &q.cq[at]; !c.message {
			c.status = verbs.StatusWRFlushErr
		}
	}
	q.wire = append([]packet{{id: pk.id}}, q.wire...)
	e.killQP(i)
	return nil
}

// killQP moves a queue pair to ERR: what it holds is flushed behind what has completed.
func (e *end) killQP(i int) {
	q := e.rails[i]
	if !q.up {
		return
	}
	q.up = false
	for _, pk := range q.wire {
		q.cq = append(q.cq, completion{id: pk.id, status: verbs.StatusWRFlushErr})
	}
	q.wire = nil
	for range q.recvs - q.unpolled {
		q.cq = append(q.cq, completion{message: true, status: verbs.StatusWRFlushErr})
	}
}

// idle reports whether the NIC holds nothing of a queue pair, which could say that it has failed.
func (q *queuePair) idle() bool { return q.recvs == 0 && q.log.Pushed() == q.log.Completed() }

// holds reports whether a queue pair that fails now gives back something.
func (q *queuePair) holds() bool { return q.up && len(q.wire)+len(q.staged)+q.recvs-q.unpolled != 0 }

// killNIC has a NIC fail, and all queue pairs with it. What they hold says so; a NIC that holds
// nothing has an event.
func (e *end) killNIC(nic int) {
	held := false
	for i := nic; i < len(e.rails); i += nics {
		held = held || e.rails[i].holds()
		e.killQP(i)
	}
	if !held {
		e.p.SuspectIdle()
	}
}

// killCQ has the CQ of a rail die: what it holds is lost, and nothing comes any more.
func (e *end) killCQ(i int) {
	q := e.rails[i]
	if q.dead || e.failed != nil || !e.canLose(q.rail) && q.rail.Works() {
		return
	}
	e.peer().mayFail, e.mayFail = true, true
	q.dead, q.cq, q.up, q.wire = true, nil, false, nil
	if q.rail.Works() {
		e.lose(i, verbs.ErrOverrun)
	}
	q.rail.GiveUp()
}

// connect resets a queue pair and connects it anew.
func (e *end) connect(i int, a Action) error {
	q, to := e.rails[i], e.peer().rails[i]
	if len(q.wire)+len(q.cq) != 0 || to.up && to.peer == q.own {
		return e.w.fail("end %d: rail %d is connected anew while a NIC holds something", e.id, i)
	}
	if q.dead || e.w.rng.IntN(8) == 0 {
		return nil // it refuses
	}
	q.rail.Reset()
	q.log.Clear()
	q.wire, q.cq, q.sent, q.recvs, q.unpolled = nil, nil, nil, 0, 0
	q.up = true
	if q.own, q.peer = a.OwnPSN, a.PeerPSN; q.own == 0 {
		q.own = e.w.drawPSN()
	}
	// The queue pair of a rail without data has a receive for GO, at the follower.
	if q.rail.role == Data {
		e.postRecvs(i)
	} else if !e.p.Leader() {
		q.recvs = 1
		q.rail.Posted(1)
	}
	e.p.Connected(q.rail, q.own)
	return nil
}

// nics is the number of NICs at each end: the rails take turns.
const nics = 2

// spared reports whether another rail of the role of rail i is healthy at both ends, on another NIC
// than the one named.
func (w *world) spared(i, nic int) bool {
	for at, q := range w.ends[0].rails {
		to := w.ends[1].rails[at]
		if at != i && at%nics != nic && q.rail.role == w.ends[0].rails[i].rail.role && q.up && to.up &&
			q.own == to.peer && q.rail.Stage() == StageLive && to.rail.Stage() == StageLive {
			return true
		}
	}
	return false
}

// nicSpared reports whether other NICs can stand in for everything on one.
func (w *world) nicSpared(nic int) bool {
	for i := nic; i < len(w.ends[0].rails); i += nics {
		if !w.spared(i, nic) {
			return false
		}
	}
	return true
}

// strike has a rail fail that others can stand in for.
func (w *world) strike() {
	e := w.ends[w.rng.IntN(2)]
	i := w.rng.IntN(len(e.rails))
	if !w.spared(i, -1) || e.failed != nil {
		return
	}
	switch kind := w.rng.IntN(100); {
	case kind == 0:
		e.killCQ(i)
	case kind < 32 && e.rails[i].rail.Works() && e.canLose(e.rails[i].rail):
		e.lose(i, errors.New("its port is down"))
	case kind < 48 && w.nicSpared(i%nics):
		e.killNIC(i % nics)
	case kind >= 96:
		w.killIdle()
	default:
		e.killQP(i)
		e.p.SuspectIdle() // the NIC has an event for it
	}
}

// killIdle has another rail of a role that nobody uses fail at each end, at once.
func (w *world) killIdle() {
	var idle []int
	for i, q := range w.ends[0].rails {
		to := w.ends[1].rails[i]
		if !w.uses(q.rail.role) {
			if !q.idle() || !to.idle() || q.dead || to.dead {
				return
			}
			idle = append(idle, i)
		}
	}
	for at, i := range w.rng.Perm(len(idle)) {
		e := w.ends[at%2]
		e.killQP(idle[i])
		e.p.SuspectIdle()
	}
}
