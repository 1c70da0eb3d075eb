package sim

import (
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// strike is a fault in force.
type strike struct {
	name      string
	conn      *conn // nil when it concerns a whole NIC
	injection *soft.Injection
	undo      func()
}

// end takes the fault back.
func (s *strike) end() {
	if s.injection != nil {
		s.injection.Remove()
	}
	if s.undo != nil {
		s.undo()
	}
}

// faultRow is a row of the table of faults: how to make one that strikes a queue pair of an end.
type faultRow struct {
	name string
	// gentle faults may delay and must not fail anything.
	gentle bool
	make   func(w *world, q *wire) soft.Fault
	// what it does beyond the one connection, and how that ends
	also func(w *world, q *wire) (undo func())
}

// faultRows is everything that goes wrong with NICs. Peers that break the rules are another matter.
var faultRows = []faultRow{
	{"stall", true, func(*world, *wire) soft.Fault { return soft.Fault{Kind: soft.StallQP} }, nil},
	{"delay", true, func(*world, *wire) soft.Fault {
		return soft.Fault{Kind: soft.Delay,
			Delay: time.Microsecond}
	}, nil},
	{"refuse sends for now", true, func(w *world, _ *wire) soft.Fault {
		return soft.Fault{Kind: soft.RefuseSend, Err: w.transient(), Count: w.pick(1, 2, 5)}
	}, nil},
	{"refuse receives for now", true, func(w *world, _ *wire) soft.Fault {
		return soft.Fault{Kind: soft.RefuseRecv, Err: w.transient(), Count: w.pick(1, 2, 5)}
	}, nil},
	{"fail a send", false, func(w *world, _ *wire) soft.Fault {
		return soft.Fault{Kind: soft.FailSend, Status: w.status(), VendorErr: w.rng.Uint32()}
	}, nil},
	{"fail after the data", false, func(w *world, _ *wire) soft.Fault {
		return soft.Fault{Kind: soft.FailAfterData, Status: w.status()}
	}, nil},
	{"fail a receive", false, func(w *world, _ *wire) soft.Fault {
		return soft.Fault{Kind: soft.FailRecv,
			Status: w.status()}
	}, nil},
	{"refuse sends for good", false,
		func(w *world, _ *wire) soft.Fault { return soft.Fault{Kind: soft.RefuseSend, Err: w.refusal()} },
		nil},
	{"refuse receives for good", false,
		func(w *world, _ *wire) soft.Fault { return soft.Fault{Kind: soft.RefuseRecv, Err: w.refusal()} },
		nil},
	{"queue pair dies at a request", false,
		func(*world, *wire) soft.Fault { return soft.Fault{Kind: soft.FailQP} }, nil},
	{"link cut at a request", false, func(*world, *wire) soft.Fault { return soft.Fault{Kind: soft.CutLink} },
		linkMayCut},
	{"NIC dies at a request", false, func(*world, *wire) soft.Fault { return soft.Fault{Kind: soft.KillNIC} },
		nicMayDie},
	{"completion queue overruns", false,
		func(*world, *wire) soft.Fault { return soft.Fault{Kind: soft.OverrunCQ} }, cqMayDie},
	{"queue pair dies", false, nil, killWire},
	{"link down", false, nil, cutLink},
	{"link flaps", false, nil, flapLink},
	{"NIC dies", false, nil, killNIC},
}

func (w *world) transient() error {
	return []error{verbs.ErrNoMemory, verbs.ErrQueueFull}[w.rng.IntN(2)]
}

func (w *world) refusal() error {
	return []error{verbs.ErrNotSupported, verbs.ErrInvalid, verbs.ErrState,
		verbs.ErrDeviceGone}[w.rng.IntN(4)]
}

// status is any status but success.
func (w *world) status() verbs.Status { return verbs.Status(1 + w.rng.IntN(23)) }

// slow puts a gentle fault in force.
func (w *world) slow(e *end) { w.inject(e, w.drawFault(func(r *faultRow) bool { return r.gentle })) }

// strike puts any fault in force. What changes the world for many is rarer.
func (w *world) strike(e *end) {
	wide := w.rng.IntN(2) == 0
	w.inject(e, w.drawFault(func(r *faultRow) bool { return !r.gentle && (wide || r.also == nil) }))
}

// drawFault draws a row of the table that fits.
func (w *world) drawFault(fits func(*faultRow) bool) faultRow {
	for {
		if row := faultRows[w.rng.IntN(len(faultRows))]; fits(&row) {
			return row
		}
	}
}

func (w *world) inject(e *end, row faultRow) {
	q := e.wires[w.rng.IntN(len(e.wires))]
	if e.state == closed {
		return
	}
	s := &strike{name: row.name, conn: e.conn}
	w.logf("  %s: %v", row.name, q)
	if !row.gentle {
		e.conn.because(row.name)
	}
	if row.also != nil {
		s.undo = row.also(w, q)
		s.conn = nil
	}
	if row.make != nil {
		f := row.make(w, q)
		f.Device, f.QPNum, f.Skip = q.nic.Device, q.Num(), w.rng.IntN(4)
		s.injection = w.fabric.Inject(f)
	}
	w.active = append(w.active, s)
}

// blameNIC notes that every connection over a NIC may fail.
func (w *world) blameNIC(d *nic, reason string) {
	for _, e := range w.ends {
		for _, q := range e.wires {
			if q.nic == d {
				e.conn.because(reason)
			}
		}
	}
}

func linkMayCut(w *world, q *wire) func() {
	w.blameNIC(q.nic, "its link may go down")
	q.nic.down++
	return func() { q.nic.down-- }
}

func nicMayDie(w *world, q *wire) func() {
	w.blameNIC(q.nic, "its NIC may die")
	q.nic.died = true
	q.nic.dead++
	return func() { q.nic.dead-- }
}

func cqMayDie(w *world, q *wire) func() {
	q.end.cq.mayDie = true
	for _, e := range q.end.cq.ends {
		for _, other := range e.wires {
			if other.nic == q.nic {
				e.conn.because("its completion queue may overrun")
			}
		}
	}
	return nil
}

func killWire(_ *world, q *wire) func() {
	// past the tap: it is not the library's doing
	_ = q.QP.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	return nil
}

func cutLink(w *world, q *wire) func() {
	undo := linkMayCut(w, q)
	q.nic.SetLink(false)
	return func() { q.nic.SetLink(true); undo() }
}

func flapLink(w *world, q *wire) func() {
	w.blameNIC(q.nic, "its link has flapped")
	q.nic.SetLink(false)
	w.steps(1 + w.rng.IntN(10))
	q.nic.SetLink(true)
	return nil
}

func killNIC(w *world, q *wire) func() {
	undo := nicMayDie(w, q)
	q.nic.Kill()
	return func() { q.nic.Restore(); undo() }
}

// heal ends one of the faults in force.
func (w *world) heal() {
	if len(w.active) == 0 {
		return
	}
	i := w.rng.IntN(len(w.active))
	w.logf("  heals: %s", w.active[i].name)
	w.active[i].end()
	w.active = append(w.active[:i], w.active[i+1:]...)
}

// endFaults ends those that concern one connection only.
func (w *world) endFaults(c *conn) {
	rest := w.active[:0]
	for _, s := range w.active {
		if s.conn == c || c == nil {
			s.end()
		} else {
			rest = append(rest, s)
		}
	}
	w.active = rest
}
