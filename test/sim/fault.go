package sim

import "ibverbx/test/internal/lab"

// slow injects a fault that must not fail anything.
func (w *world) slow(e *end) {
	w.inject(w.DrawFault(w.faults, func(f *lab.Fault) bool { return f.Gentle }), e.anyWire())
}

// strike injects any other fault. Faults that concern many connections are rarer.
func (w *world) strike(e *end) {
	if e.conn.failover {
		w.strikeRails(e)
		return
	}
	wide := w.OneIn(2)
	w.inject(w.DrawFault(w.faults, func(f *lab.Fault) bool {
		return !f.Gentle && (wide || !f.Wide()) && e.mayMeet(f)
	}), e.anyWire())
}

// mayMeet reports whether NICs can have a fault of an end's queue pairs together with the world's
// other properties. If completions come out of order, the completions seen of a CQ that dies are
// not the first ones, so failover cannot report arrivals by a count. No NIC does both. Even the CQ
// of an end without failover counts, because others share it.
func (e *end) mayMeet(f *lab.Fault) bool {
	return f.Scope != lab.OneCQ || !e.w.plan.Scramble || !e.cq.doesWithout()
}

// anyWire draws a queue pair.
func (e *end) anyWire() *wire { return e.wires[e.w.Rng.IntN(len(e.wires))] }

// inject injects a fault, and records which connections it may fail.
func (w *world) inject(f *lab.Fault, q *wire) {
	e := q.end
	if e.state == closed {
		return
	}
	w.Logf("  %s: %v of %v", f.Name, q, e)
	if !f.Gentle {
		e.conn.touch(q, f.Name)
	}
	e.conn.stray = e.conn.stray || f.Name == lab.ArrivesLate
	q.alone = q.alone || f.Name == lab.QPDies
	e.cq.mayDie = e.cq.mayDie || f.Scope == lab.OneCQ
	w.eachUnder(q, f, func(other *wire) { other.end.conn.touch(other, f.Name) })
	w.Strike(&q.QP, &e.conn.Conn, f)
}
