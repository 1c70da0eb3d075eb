package sendside

// finish brings a world of messages to its end: whatever was sent to who is sound is received, and
// every request ends.
func (w *post) finish() {
	w.logf("the end")
	w.finishing = true
	w.endFaults()
	w.settle()
	for _, o := range w.offices {
		for _, r := range o.recvs {
			r.checkUnmatched()
		}
	}
	for _, cancel := range w.cancels {
		cancel()
	}
	w.settle()
	for _, o := range w.offices {
		for _, r := range o.recvs {
			if !r.done && r.req != nil && !r.gone {
				r.gone = r.req.Cancel()
			}
		}
	}
	w.sweep()
	w.receiveAll()
	for _, e := range w.ends {
		if e.mayFail() != "" && !e.ended && !e.closing {
			e.abort() // it waits for a peer of whom nothing tells that it is gone
		}
	}
	w.settle()
	for _, p := range w.waiting() {
		w.broken(ruleLiveness, "%s for ever", p.name)
	}
	w.checkAllDone()
	w.shut()
	w.audit()
	w.raze()
}

// receiveAll receives what is left, with room for all of it.
func (w *post) receiveAll() {
	w.ending = true
	for range 2000 {
		if !w.unreceived() {
			return
		}
		for _, o := range w.offices {
			if _, found := o.worker.Probe(0, 0); !found {
				continue
			}
			if r := o.recv(); r == nil {
				w.broken(ruleLiveness, "%s has no memory left", o.name)
			}
		}
		w.settle()
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.gone && e.mayFail() == "" {
				w.broken(ruleLiveness, "%v is never received: %+v", m, e.ep.Stats())
			}
		}
	}
}

// unreceived says whether a message is still to be received.
func (w *post) unreceived() bool {
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.gone && e.mayFail() == "" && e.peer.mayFail() == "" {
				return true
			}
		}
	}
	return false
}

// settle lets everything move until nothing does.
func (w *post) settle() {
	for quiet, rounds := 0, 0; quiet < rest; rounds++ {
		if rounds > 20000 {
			w.broken(ruleLiveness, "it moves for ever")
		}
		moved := 0
		w.actions = w.fabric.Actions(w.actions[:0])
		if len(w.actions) != 0 {
			w.steps(1 + w.rng.IntN(2*len(w.actions)))
			moved++
		}
		for _, o := range w.offices {
			moved += o.progress()
		}
		for _, p := range append([]*player(nil), w.waiting()...) {
			w.turn(p)
			if p.over {
				moved++
			}
		}
		w.sweep()
		if quiet++; moved != 0 {
			quiet = 0
		}
	}
}

// checkAllDone checks that every request has ended, and that workers hold nothing.
func (w *post) checkAllDone() {
	for _, o := range w.offices {
		for _, r := range o.recvs {
			if !r.done {
				w.broken(ruleLiveness, "%v does not end", r)
			}
		}
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if !m.done {
				w.broken(ruleLiveness, "%v does not end: %+v, %v", m, e.ep.Stats(), e.ep.Err())
			}
		}
		if e.ep.Err() != nil && !e.ended && e.errors != 1 {
			w.broken(ruleNoticed, "%v: %v, and OnError ran %d times", e, e.ep.Err(), e.errors)
		}
	}
	for _, e := range w.ends {
		if s, p := e.ep.Stats(), e.peer.ep.Stats(); e.mayFail() == "" && e.peer.mayFail() == "" {
			if most := w.plan.configs[e.peer.office.index].MaxUnexpected; s.Window+p.Owed != most {
				w.broken(ruleCredits, "%v has a window of %d of %d, and %d are to be given back", e, s.Window,
					most, p.Owed)
			}
		}
	}
	for _, o := range w.offices {
		s, t := o.worker.Stats(), o.worker.Transport().Stats()
		if s.Requests != 0 || s.Posted != 0 || s.Leaked != 0 {
			w.broken(ruleBalance, "%s when all is over: %+v", o.name, s)
		}
		if t.BounceFree != t.BounceTotal || t.AMKept != 0 {
			w.broken(ruleBalance, "%s when all is over: %+v", o.name, t)
		}
		clean := true
		for _, e := range w.ends {
			clean = clean && (e.office != o || e.mayFail() == "" && e.peer.mayFail() == "")
		}
		if clean && (s.Violations != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0) {
			w.broken(ruleBalance, "%s keeps messages when all is over: %+v", o.name, s)
		}
	}
}

func (w *post) shut() {
	for _, o := range w.offices {
		o.inside = true
		if err := o.worker.Close(); err != nil && !o.struck {
			w.broken(ruleLeak, "%s: close worker: %v", o.name, err)
		}
		o.inside = false
	}
}
