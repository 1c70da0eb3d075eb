package sim

import (
	"ibverbx/test/internal/lab"
	"ibverbx/verbs/soft"
)

// slow puts a fault in force that must not fail anything.
func (w *world) slow(e *end) {
	w.inject(e, w.DrawFault(w.faults(), func(f *lab.Fault) bool { return f.Gentle }))
}

// strike puts any other fault in force. What changes the world for many is rarer.
func (w *world) strike(e *end) {
	if e.conn.failover {
		w.strikeRails(e)
		return
	}
	wide := w.OneIn(2)
	w.inject(e, w.DrawFault(w.faults(), func(f *lab.Fault) bool {
		return !f.Gentle && (wide || !f.Wide()) && e.mayMeet(f)
	}))
}

// mayMeet says whether a fault of an end's queue pairs is one that NICs have, together with what
// else the world has. Where completions come out of order, what was seen of a CQ that dies is not
// the beginning of what has arrived, so failover cannot say by a count what has. No NIC does both.
// The CQ may be that of an end without failover, too: others share it.
func (e *end) mayMeet(f *lab.Fault) bool {
	return f.Scope != lab.OneCQ || !e.w.plan.Scramble || !e.cq.doesWithout()
}

func (w *world) inject(e *end, f *lab.Fault) {
	q := e.wires[w.Rng.IntN(len(e.wires))]
	if e.state == closed {
		return
	}
	w.Logf("  %s: %v", f.Name, q)
	if !f.Gentle {
		e.conn.touch(q, f.Name)
	}
	w.blame(q, f)
	w.Strike(&q.QP, &e.conn.Conn, f, func(injected *soft.Fault) {
		if injected.Kind == soft.FailSend {
			injected.VendorErr = w.Rng.Uint32()
		}
	})
}

// blame notes which other connections a fault may fail.
func (w *world) blame(q *wire, f *lab.Fault) {
	q.alone = q.alone || f.Name == lab.QPDies
	if f.Scope == lab.OneCQ {
		q.end.cq.mayDie = true
	}
	w.eachUnder(q, f, func(other *wire) { other.end.conn.touch(other, f.Name) })
}
