package sim

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// A connection with failover at both ends continues while one rail of each kind is left. Faults
// touch rails, pairs of queue pairs; a connection may fail only if no pair of a kind is untouched.

// touch records that a fault may take a rail out.
func (c *conn) touch(q *wire, why string) {
	if !c.failover {
		c.because(why)
		return
	}
	q.touched = true
	if q.pair != nil {
		q.pair.touched = true
	}
	c.struck = true
	c.w.Logf("  %v of %v is touched: %s", q, q.end, why)
	if !c.spared() || c.ends[0].state == draining || c.ends[1].state == draining {
		c.because(why + ", and no other rail is spared")
	}
}

// spared reports whether a rail of each kind is untouched.
func (c *conn) spared() bool {
	var needed, spared [wireKinds]bool
	for _, q := range c.ends[0].wires {
		k := q.kind()
		needed[k], spared[k] = true, spared[k] || !q.touched
	}
	return needed == spared
}

// wireKind is the kind of traffic of a queue pair.
type wireKind uint8

const (
	wireData wireKind = iota
	wireSends
	wireNotify
	wireKinds
)

// kind returns what a queue pair carries besides data.
func (q *wire) kind() wireKind {
	e := q.end
	i := slices.Index(e.wires, q) - e.conn.plan.rails
	switch {
	case i < 0:
		return wireData
	case e.vq.Scheme() == ibverbx.DQPLB, e.conn.plan.cfg[0].NoNotifyQP,
		i != 0 && i <= (len(e.wires)-e.conn.plan.rails)/2:
		return wireSends
	}
	return wireNotify
}

// onRail checks the events of a rail: losses and returns alternate.
func (e *end) onRail(told ibverbx.RailEvent) {
	e.w.Logf("  %v is told: %v", e, told)
	if uint(told.Rail) >= uint(len(e.wires)) || told.VirtualQP != e.vq.Num() {
		e.w.Broken(ruleNoticed, "%v has no such rail: %v", e, told)
	}
	q, bit := e.wires[told.Rail], uint64(1)<<told.Rail
	if told.QPNum != q.Num() || told.Device != q.NIC.Name() || told.Down != (told.Cause != nil) {
		e.w.Broken(ruleNoticed, "%v: an event of %v says: %v", e, q, told)
	}
	if !e.over || told.Down == (e.down&bit != 0) {
		e.w.Broken(ruleNoticed, "%v is told of what has not happened, or twice: %v", e, told)
	}
	if !told.Down && e.settled&bit == 0 {
		e.w.Broken(ruleNoticed, "%v is told of a return before the loss is settled: %v", e, told)
	}
	e.down ^= bit
	e.settled &^= bit
	if told.Down {
		e.fell++
	} else {
		e.rose++
	}
}

// onSettled checks the events of failovers that are settled: one for each loss.
func (e *end) onSettled(told ibverbx.SettledEvent) {
	e.w.Logf("  %v is told: %v", e, told)
	bit := uint64(1) << told.Rail
	switch {
	case uint(told.Rail) >= uint(len(e.wires)) || told.VirtualQP != e.vq.Num() ||
		told.Device != e.wires[told.Rail].NIC.Name():
		e.w.Broken(ruleNoticed, "%v has no such rail: %v", e, told)
	case e.down&bit == 0 || e.settled&bit != 0:
		e.w.Broken(ruleNoticed, "%v is told of a settlement of nothing, or twice: %v", e, told)
	case told.Took < 0 || told.Arrived < 0 || told.Again < 0 || told.Bytes != 0 && told.Again == 0:
		e.w.Broken(ruleNoticed, "%v is told nonsense: %v", e, told)
	}
	e.settled |= bit
}

// checkTold checks that the counters and the state of the rails match the events.
func (e *end) checkTold() {
	st, down := e.vq.Stats(), uint64(0)
	for i, r := range st.Rails {
		if r.Down {
			down |= 1 << i
		}
	}
	if down != e.down || st.RailsLost != e.fell || st.RailsBack != e.rose {
		e.w.Broken(ruleCounters, "%v was told of %d rails lost, %d back, and %b are down: %s", e, e.fell,
			e.rose, e.down, e.stats())
	}
}

// checkLostRails checks, when nothing moves any more, that both ends agree on which rails are out
// of service, and that these are.
func (e *end) checkLostRails() {
	st, peers := e.vq.Stats(), e.peer.vq.Stats()
	down := 0
	for i, q := range e.wires {
		if !st.Rails[i].Down {
			continue
		}
		down++
		j := slices.Index(e.peer.wires, q.pair)
		if j < 0 || !peers.Rails[j].Down {
			e.w.Broken(ruleNoticed, "%v: %v is out of service, in %v; its peer's end is %v: %s\npeer: %s", e,
				q, q.State(), q.pair, e.stats(), e.peer.stats())
		}
	}
	if uint64(down) > st.RailsLost || e.repeats > st.Reposted {
		e.w.Broken(ruleCounters, "%v: %d rails are out of service, and %d requests went out again: %s", e,
			down, e.repeats, e.stats())
	}
}

// causeInCQ records that a connection may fail if a CQ has died with the completion of a message
// that its NIC had acknowledged: the peer does not send it again.
func (c *conn) causeInCQ() {
	if c.Blame != "" || !c.failover {
		return
	}
	for _, e := range c.ends {
		for _, t := range e.cq.taps {
			missed := func(q *wire) bool { return q.NIC == t.NIC && q.missed() }
			if t.dead && slices.ContainsFunc(e.wires, missed) {
				c.because("a message was lost with a CQ")
			}
		}
	}
}

// doesWithout reports whether failover may have hidden the death of a CQ from the program.
func (c *vcq) doesWithout() bool {
	return slices.ContainsFunc(c.ends, func(e *end) bool { return e.conn.plan.failsOver() })
}

// missed reports whether a message to a queue pair was acknowledged, but its library has not seen
// it.
func (q *wire) missed() bool {
	if q.to == nil {
		return false
	}
	m := q.mate()
	if m == nil {
		return false
	}
	for _, place := range m.takers {
		if p := m.out[max(place, 0)]; place >= m.arrived() && p != nil && p.state == partAcked {
			return true
		}
	}
	return false
}

// hasLostRails reports whether rails of an end with failover may have died.
func (e *end) hasLostRails() bool {
	return e.conn.failover && (e.conn.struck || slices.ContainsFunc(e.wires, func(q *wire) bool {
		return q.ill || q.back || q.over
	}))
}

// blurred reports whether the arrivals of a session are unknown and parts may go out again, because
// an end breaks the rules, or did.
func (c *conn) blurred(session int) bool {
	return c.failover && slices.Contains(c.hostileIn, session)
}

// deadly reports whether a status takes a rail out with failover, and does not fail its request.
func deadly(status verbs.Status) bool {
	return status == verbs.StatusRetryExcErr || status == verbs.StatusWRFlushErr ||
		status == verbs.StatusFatalErr || status == verbs.StatusRespTimeoutErr ||
		status == verbs.StatusLocQPOpErr
}

// diesOf reports whether the refusal of a post takes a rail out.
func diesOf(err error) bool {
	return errors.Is(err, verbs.ErrState) || errors.Is(err, verbs.ErrDeviceGone)
}

// survives reports whether a status of a queue pair only takes its rail out.
func (e *end) survives(status verbs.Status) bool {
	return e.conn.failover && deadly(status) && e.vq.Err() == nil && !e.ended()
}

// lostAtomic reports whether an atomic fails because the NIC of a dead rail had it, while its
// connection continues.
func (e *end) lostAtomic(s *send, status verbs.Status) bool {
	return e.conn.failover && status != verbs.StatusSuccess && s.op.IsAtomic() && len(s.parts) != 0 &&
		s.parts[0].state == partLost
}

// strikeRails injects faults that take rails out, mostly so that one of each kind is left.
func (w *world) strikeRails(e *end) {
	for again := true; again; again = w.OneIn(4) {
		if e.conn.plan.late && w.OneIn(4) {
			q := e.wires[w.Rng.IntN(e.conn.plan.rails)]
			w.Logf("  %s: what %v writes", lab.PlaceLate.Name, q)
			w.Strike(&q.QP, &e.conn.Conn, &lab.PlaceLate)
			continue
		}
		if w.OneIn(10) { // a request's own fault takes no rail out
			e.conn.because("a request may fail by itself")
			f := w.DrawFault(w.faults, func(f *lab.Fault) bool { return !f.Gentle && !f.Wide() })
			w.inject(f, e.anyWire())
			continue
		}
		q, f := w.drawRailFault(e)
		for i := 0; i < 6 && !w.wouldSpare(q, f) && !w.OneIn(12); i++ {
			q, f = w.drawRailFault(e)
		}
		w.inject(f, q)
	}
}

func (w *world) drawRailFault(e *end) (*wire, *lab.Fault) {
	if w.OneIn(2) {
		e = e.peer
	}
	wide := w.OneIn(2)
	return e.anyWire(), w.DrawFault(w.railFaults, func(f *lab.Fault) bool {
		return (wide || f.Scope == lab.OneQP) && e.mayMeet(f)
	})
}

// wouldSpare reports whether a fault leaves a rail of each kind to every connection with failover
// that has one now.
func (w *world) wouldSpare(q *wire, f *lab.Fault) bool {
	var before []*conn
	for _, c := range w.conns {
		if c.failover && c.spared() {
			before = append(before, c)
		}
	}
	var touched []*wire
	touch := func(q *wire) {
		for _, q := range []*wire{q, q.pair} {
			if q != nil && !q.touched {
				q.touched, touched = true, append(touched, q)
			}
		}
	}
	touch(q)
	w.eachUnder(q, f, touch)
	ok := !slices.ContainsFunc(before, func(c *conn) bool { return !c.spared() })
	for _, q := range touched {
		q.touched = false
	}
	return ok
}

// eachUnder calls do for each queue pair that a wide fault concerns.
func (w *world) eachUnder(q *wire, f *lab.Fault, do func(*wire)) {
	if f.Scope == lab.OneQP {
		return
	}
	for _, e := range w.ends {
		for _, other := range e.wires {
			if other.NIC == q.NIC && (f.Scope != lab.OneCQ || e.cq == q.end.cq) {
				do(other)
			}
		}
	}
}

// failsOver reports whether the connection continues when a rail dies: both ends offer failover,
// and their cards say so.
func (c *connPlan) failsOver() bool {
	return c.failover == [2]bool{true, true} && c.rails > 1 && !c.strip
}

// wordGo is the kind of GO, the first control to travel over a rail that comes back.
const wordGo = 4

// wordText describes one of the library's own messages in words. The number in UP and READY is
// random, and does not follow from the seed.
func wordText(imm uint32) string {
	kinds := [...]string{1: "DOWN", "UP", "READY", "GO", "SERVE", "SERVED"}
	kind := sprintf("word %d", imm>>28)
	if imm>>28 != 0 && int(imm>>28) < len(kinds) {
		kind = kinds[imm>>28]
	}
	text := sprintf("%s of rail %d, epoch %d", kind, imm>>16&0xff, imm>>24&0xf)
	if kind == "UP" || kind == "READY" {
		return text
	}
	return sprintf("%s: %d", text, imm&0xffff)
}

// isControl reports whether a physical request is one of the library's own messages.
func (e *end) isControl(q *wire, wr *verbs.SendWR) bool {
	return e.over && wr.Opcode == verbs.OpSendWithImm && wr.Bytes() == 0 &&
		(q.isData() || q.back && len(q.out) == 0 && wr.Imm>>28 == wordGo)
}

// causeToTouch touches the rails of a new session on NICs that are down.
func (c *conn) causeToTouch() {
	c.struck, c.stray = false, false
	for _, e := range c.ends {
		for _, q := range e.wires {
			q.touched, q.alone = false, false
		}
	}
	if !c.failover {
		return
	}
	for _, e := range c.ends {
		c.struck = c.struck || e.cq.mayDie // perhaps it was not polled since
		for i, q := range e.wires {
			if q.NIC.Down+q.NIC.Dead != 0 {
				if i < len(e.peer.wires) { // they are not connected yet
					e.peer.wires[i].touched = true
				}
				c.touch(q, q.NIC.Name()+" is down")
			}
		}
	}
}
