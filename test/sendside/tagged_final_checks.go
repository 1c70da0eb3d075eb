package sendside

import (
	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// finish ends a world of messages: all messages between endpoints that work are received, and every
// request ends.
func (w *tagWorld) finish() {
	w.Logf("the end")
	w.finishing = true
	w.EndFaults(nil)
	w.settle(w)
	for _, o := range w.sites {
		for _, r := range o.recvs {
			r.checkUnmatched()
		}
	}
	for _, cancel := range w.cancels {
		cancel()
	}
	w.settle(w)
	for _, o := range w.sites {
		for _, r := range o.recvs {
			if !r.cancelled {
				r.cancel(w, r)
			}
		}
	}
	w.look()
	w.receiveAll()
	for _, e := range w.ends {
		if e.mayFail() != "" && !e.ends() {
			e.abort() // its peer is gone, and nothing would tell it
		}
	}
	w.settle(w)
	w.mustReturn()
	w.checkAllDone()
	for _, o := range w.sites {
		w.closeWorker(o.Host, o.worker.Close)
	}
	w.Audit()
	w.Close()
}

// receiveAll receives all messages that are left.
func (w *tagWorld) receiveAll() {
	w.ending = true
	for range 2000 {
		if !w.unreceived() {
			return
		}
		for _, o := range w.sites {
			if _, found := o.worker.Probe(0, 0); !found {
				continue
			}
			if r := o.recv(); r == nil {
				w.Broken(lab.Liveness, "%s has no memory left", o.Name)
			}
		}
		w.settle(w)
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.cancelled && e.mayFail() == "" {
				w.Broken(lab.Liveness, "%v is never received: %+v", m, e.ep.Stats())
			}
		}
	}
}

// unreceived says whether a message is left that must be received.
func (w *tagWorld) unreceived() bool {
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.cancelled && e.mayFail() == "" && e.peer.mayFail() == "" {
				return true
			}
		}
	}
	return false
}

// checkAllDone checks that every request has ended, and that workers hold nothing.
func (w *tagWorld) checkAllDone() {
	for _, o := range w.sites {
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
		if e.ep.Err() != nil && !e.closed && e.errors != 1 {
			w.Broken(ruleNoticed, "%v: %v, and OnError ran %d times", e, e.ep.Err(), e.errors)
		}
	}
	for _, e := range w.ends {
		if s, p := e.ep.Stats(), e.peer.ep.Stats(); e.mayFail() == "" && e.peer.mayFail() == "" {
			if most := w.plan.configs[e.peer.site.Index].MaxUnexpected; s.Window+p.Owed != most {
				w.Broken(ruleCredits, "%v has a window of %d of %d, and %d are to be given back", e, s.Window,
					most, p.Owed)
			}
			e.checkTraffic(s, p)
		}
	}
	for _, o := range w.sites {
		s, t := o.worker.Stats(), o.worker.Transport().Stats()
		if s.Requests != 0 || s.Posted != 0 || s.Leaked != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, s)
		}
		if t.BounceFree != t.BounceTotal || t.AMKept != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, t)
		}
		clean := true
		for _, e := range o.ends {
			clean = clean && e.mayFail() == "" && e.peer.mayFail() == ""
		}
		if clean && (s.Violations != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0) {
			w.Broken(ruleBalance, "%s keeps messages when all is over: %+v", o.Name, s)
		}
	}
}

// checkTraffic checks what both ends have counted of the messages that an end has sent.
func (e *tagEnd) checkTraffic(s, peer tagged.EndpointStats) {
	var sent, sentBytes, received, receivedBytes uint64
	for _, m := range e.msgs {
		if m.cancelled {
			continue
		}
		sent++
		sentBytes += uint64(m.n)
		if !m.long || m.n <= m.match.dst.N {
			received++
			receivedBytes += uint64(m.n)
		}
	}
	if s.Sent != sent || s.SentBytes != sentBytes || peer.Received != received ||
		peer.ReceivedBytes != receivedBytes {
		e.w.Broken(ruleBalance, "%v has sent %d messages of %d bytes, and %d of %d were read: %+v, %+v", e,
			sent,
			sentBytes, received, receivedBytes, s, peer)
	}
}
