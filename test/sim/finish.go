package sim

import (
	"errors"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// settle lets the fabric run until nothing moves any more. With balance, programs also post the
// receives and messages that the other end waits for.
func (w *world) settle(balance bool) {
	still := 0 // rounds without movement; a poll may cause movement only in the next round
	for range 20_000 {
		before := w.Moves
		w.RunFabric(50)
		moved := 0
		for _, c := range w.cqs {
			moved += c.pollAll()
		}
		for _, e := range w.ends {
			if e.state == draining {
				e.drain()
			}
		}
		for _, c := range w.conns {
			if balance {
				moved += c.balance()
			}
		}
		if still++; moved != 0 || w.Moves != before {
			still = 0
		}
		if still == 3 {
			return
		}
	}
	w.Broken(lab.Liveness, "it does not come to rest")
}

// sound reports whether both ends work and keep the rules.
func (c *conn) sound() bool {
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			return false
		}
	}
	return !c.hostile
}

// balance makes as many receives as messages of each kind: it posts receives for messages that
// wait, and makes the peer send for receives that wait. An unmatched receive would hold up all
// later ones.
func (c *conn) balance() (moved int) {
	if c.hostile {
		return 0
	}
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			continue
		}
		var waiting [2]int
		for _, r := range e.recvs[e.recvHead:] {
			if r.message && !e.single {
				waiting[kindMessage]++
			} else {
				waiting[kindNotification]++
			}
		}
		var coming [messageKinds]int
		for kind, list := range e.expect {
			for len(list) != 0 && list[0].session < e.sessionNo {
				list = list[1:]
			}
			coming[kind] = len(list)
		}
		coming[kindMessage] += coming[kindRelaxed]
		for kind, n := range waiting {
			for range coming[kind] - n {
				moved += e.postMissingRecv(kind == kindMessage || e.single)
			}
			for range n - coming[kind] {
				moved += e.peer.sendMissing(kind == kindMessage)
			}
		}
		if n := len(e.sends); e.single && e.sendHead < n && e.sends[n-1].flags&verbs.SendSignaled == 0 {
			moved += e.sendMissing(false) // a signaled request, whose completion proves earlier ones
		}
	}
	return moved
}

// postMissingRecv posts a receive.
func (e *end) postMissingRecv(message bool) int {
	before := len(e.recvs)
	if wr, ok := e.makeRecv(message); ok {
		e.postAllRecvs([]ibverbx.RecvWR{wr}, 1)
	}
	return len(e.recvs) - before
}

// sendMissing sends a byte: as a message, or with a notification.
func (e *end) sendMissing(message bool) int {
	if e.state != connected || e.vq.Err() != nil {
		return 0
	}
	s := e.newSend(verbs.OpRDMAWriteWithImm, 5)
	s.length = 1
	if message {
		s.op = verbs.OpSend
	}
	wr := ibverbx.SendWR{ID: e.id(false, s.index), Opcode: s.op, Imm: s.imm}
	if !e.giveMemory(s, &wr) {
		e.w.Broken(lab.Leak, "the simulation has too little memory to come to its end")
	}
	wr.Flags = s.flags
	e.enter(s)
	e.postAll([]ibverbx.SendWR{wr}, 1)
	return 1
}

// finish ends every fault, lets everything complete, checks that it did, and closes everything in
// an order that is drawn.
func (w *world) finish() {
	w.Logf("finish: faults end, links and NICs come back, and what can come to its end does")
	w.EndFaults(nil)
	for _, d := range w.NICs {
		d.Mend()
	}
	for _, h := range w.Hosts {
		h.Memory.UseSpare()
	}
	w.settle(false)
	for _, e := range w.ends {
		e.checkEnded()
		e.checkNoticed()
	}
	for _, c := range w.cqs {
		if died := func(t *tappedCQ) bool { return t.dead }; slices.ContainsFunc(c.taps, died) && !c.direct &&
			!c.closed && !c.reported && !c.doesWithout() {
			w.Broken(ruleFirstError, "%s has lost a CQ, and no poll has said so", c.name)
		}
	}
	w.settle(true)
	for _, e := range w.ends {
		for i := 0; e.state == draining && e.single && i < 100; i++ {
			e.drain()
			// a drain waits for silence if the NIC refuses the request that would mark the end
			w.now = w.now.Add(200 * time.Microsecond)
		}
	}
	w.Logf("an hour later, nothing lingers")
	// Twice: an end that fails in the first hour takes rails away from its peer, whose patience
	// must then run out too.
	for range 2 {
		w.lingered = true
		for range 20 { // an end does not count time in which it has not polled
			w.now = w.now.Add(time.Hour / 20)
			for _, c := range w.cqs {
				c.pollAll()
			}
		}
		w.settle(true)
	}
	for _, e := range w.ends {
		e.checkEnded()
	}
	for _, c := range w.conns {
		c.checkQuiet()
	}
	for _, e := range w.ends {
		e.checkPlaced()
	}
	w.Audit()
	w.closeAll()
	w.Audit()
	w.Close()
}

// checkEnded checks that an end that has failed and does not linger completes all its requests,
// whatever the peer does.
func (e *end) checkEnded() {
	if e.vq.Err() == nil || e.state != connected || e.single ||
		e.conn.plan.cfg[0].Linger > 0 && !e.w.lingered {
		return
	}
	if e.unfinished() {
		e.w.Broken(lab.Liveness, "%v has failed, and does not end: %s", e, e.howFar())
	}
}

// unfinished reports whether a request or receive has not completed.
func (e *end) unfinished() bool { return e.sendHead != len(e.sends) || e.recvHead != len(e.recvs) }

// howFar describes in words what has completed.
func (e *end) howFar() string {
	return sprintf("%d of %d sends and %d of %d receives have completed; it is %v, %v: %s", e.sendHead,
		len(e.sends), e.recvHead, len(e.recvs), e.state, e.vq.Err(), e.stats())
}

// checkNoticed checks that an end without an error has no queue pair in ERR, and that its peer has
// sent nothing forbidden. Spray's rail 0, the notify queue pair, and data rails without credits yet
// are exempt: they may hold no receive whose flush the library would see. With failover they are
// not exempt, unless nothing can replace them, or they have failed alone and without an event.
func (e *end) checkNoticed() {
	if e.state != connected || e.vq.Err() != nil || e.single {
		return
	}
	if e.mustFail {
		e.w.Broken(ruleNoticed, "%v: a request has failed by its own fault: %s", e, e.stats())
	}
	if e.peerViolated {
		e.w.Broken(ruleNoticed, "%v: the peer has sent what no peer may: %s", e, e.stats())
	}
	// with all credits withheld, a rail may also hold no receive
	withheld := e.vq.Stats().Banked >= e.vq.Config().MaxBanked
	for i, q := range e.wires {
		mute := i == 0 && e.vq.Scheme() == ibverbx.Spray || withheld || !q.isData() || e.owesCredits()
		if mute && (!e.over || e.conn.hostile || q.alone || !e.hasOther(q)) {
			continue
		}
		if q.State() == verbs.StateErr && !e.vq.Stats().Rails[i].Down {
			e.w.Broken(ruleNoticed, "%v: %v is in ERR: %s", e, q, e.stats())
		}
	}
}

// hasOther reports whether another queue pair of the kind works, and so could replace one.
func (e *end) hasOther(q *wire) bool {
	for i, other := range e.wires {
		if other != q && other.kind() == q.kind() && !e.vq.Stats().Rails[i].Down &&
			other.State() == verbs.StateRTS {
			return true
		}
	}
	return false
}

// owesCredits reports whether a plain peer has no credits yet.
func (e *end) owesCredits() bool {
	for i := len(e.recvs); i > 0 && e.recvs[i-1].session == e.sessionNo; i-- {
		if !e.recvs[i-1].message {
			return false
		}
	}
	return e.plainPeer
}

// checkQuiet checks, when nothing moves any more, that everything has ended.
func (c *conn) checkQuiet() {
	for _, e := range c.ends {
		if c.hostile || e.state == unconnected || e.state == closed {
			continue
		}
		e.checkErr()
		if e.single && (e.mayBeLost() || e.onlyUnsignaled()) {
			continue // a single queue pair does not notice it
		}
		if e.state == draining && e.peer.state == draining {
			continue // both wait, until a context ends, for receives that neither will post
		}
		mayWait := e.vq.Err() == nil && e.state != drained && !c.sound()
		if e.sendHead != len(e.sends) || e.recvHead != len(e.recvs) && !mayWait || e.state == draining {
			e.w.Broken(lab.Liveness, "%v is stuck: %s\npeer: %s", e, e.howFar(), e.peer.howFar())
		}
		if c.sound() {
			e.checkCounters()
		}
	}
}

// checkPlaced checks that writes that were acknowledged early are finally in memory.
func (e *end) checkPlaced() {
	for _, s := range e.unplaced {
		if !s.still {
			e.mustHaveLanded(s)
			e.settleTarget(s)
		}
	}
}

// onlyUnsignaled reports whether all outstanding requests are unsignaled.
func (e *end) onlyUnsignaled() bool {
	open := e.sends[e.sendHead:]
	signaled := func(s *send) bool { return s.flags&verbs.SendSignaled != 0 }
	return len(open) != 0 && !slices.ContainsFunc(open, signaled)
}

// closeAll closes everything, in an order that is drawn.
func (w *world) closeAll() {
	for _, h := range w.Hosts {
		if err := h.MR.Close(); w.holds(h) && !errors.Is(err, verbs.ErrBusy) {
			w.Broken(lab.Ownership, "%s: memory in use can be closed: %v", h.Name, err)
		}
	}
	for _, i := range w.Rng.Perm(len(w.ends)) {
		if w.Rng.IntN(3) != 0 {
			w.ends[i].close()
		}
	}
	for _, h := range w.Hosts {
		if w.Rng.IntN(2) == 0 {
			w.Must("close domain", h.Dom.Close()) // it is released with its last object
		}
	}
	for _, i := range w.Rng.Perm(len(w.cqs)) {
		if c := w.cqs[i]; !c.closed {
			c.close()
		}
	}
	for _, e := range w.ends {
		e.mustBeDone("the end")
	}
}

// holds reports whether an outstanding request names the host's memory.
func (w *world) holds(h *lab.Host) bool {
	for _, e := range w.ends {
		if e.host != h || e.single || e.state != connected || e.vq.Err() != nil {
			continue
		}
		for _, s := range e.sends[e.sendHead:] {
			if len(s.local) != 0 && s.local[0].N != 0 && s.session == e.sessionNo {
				return true
			}
		}
	}
	return false
}
