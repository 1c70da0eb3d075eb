package sendside

import "ibverbx/test/internal/lab"

// finish brings a world of messages to its end: whatever was sent to who is sound is received, and
// every request ends.
func (w *post) finish() {
	w.Logf("the end")
	w.finishing = true
	w.EndFaults(nil)
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
		w.Broken(lab.Liveness, "%s for ever", p.name)
	}
	w.checkAllDone()
	w.shut()
	w.Audit()
	w.Close()
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
				w.Broken(lab.Liveness, "%s has no memory left", o.Name)
			}
		}
		w.settle()
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.gone && e.mayFail() == "" {
				w.Broken(lab.Liveness, "%v is never received: %+v", m, e.ep.Stats())
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
	w.testbed.settle(func() (moved int) {
		for _, o := range w.offices {
			moved += o.progress()
		}
		return moved
	}, w.turn, w.sweep)
}

// checkAllDone checks that every request has ended, and that workers hold nothing.
func (w *post) checkAllDone() {
	for _, o := range w.offices {
		for _, r := range o.recvs {
			if !r.done {
				w.Broken(lab.Liveness, "%v does not end", r)
			}
		}
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if !m.done {
				w.Broken(lab.Liveness, "%v does not end: %+v, %v", m, e.ep.Stats(), e.ep.Err())
			}
		}
		if e.ep.Err() != nil && !e.ended && e.errors != 1 {
			w.Broken(ruleNoticed, "%v: %v, and OnError ran %d times", e, e.ep.Err(), e.errors)
		}
	}
	for _, e := range w.ends {
		if s, p := e.ep.Stats(), e.peer.ep.Stats(); e.mayFail() == "" && e.peer.mayFail() == "" {
			if most := w.plan.configs[e.peer.office.Index].MaxUnexpected; s.Window+p.Owed != most {
				w.Broken(ruleCredits, "%v has a window of %d of %d, and %d are to be given back", e, s.Window,
					most, p.Owed)
			}
		}
	}
	for _, o := range w.offices {
		s, t := o.worker.Stats(), o.worker.Transport().Stats()
		if s.Requests != 0 || s.Posted != 0 || s.Leaked != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, s)
		}
		if t.BounceFree != t.BounceTotal || t.AMKept != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, t)
		}
		clean := true
		for _, e := range w.ends {
			clean = clean && (e.office != o || e.mayFail() == "" && e.peer.mayFail() == "")
		}
		if clean && (s.Violations != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0) {
			w.Broken(ruleBalance, "%s keeps messages when all is over: %+v", o.Name, s)
		}
	}
}

func (w *post) shut() {
	for _, o := range w.offices {
		o.inside = true
		if err := o.worker.Close(); err != nil && !o.Struck {
			w.Broken(lab.Leak, "%s: close worker: %v", o.Name, err)
		}
		o.inside = false
	}
}
