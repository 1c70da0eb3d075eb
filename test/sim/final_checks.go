package sim

import (
	"errors"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// finish ends every fault, lets everything come to its end, checks that it did, and closes all in
// some order.
func (w *world) finish() {
	w.Logf("finish: faults end, links and NICs come back, and what can come to its end does")
	w.EndFaults(nil)
	for _, d := range w.NICs {
		d.SetLink(true)
		d.Restore()
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
			!c.closed && !c.told {
			w.Broken(ruleFirstError, "%s has lost a CQ, and no poll has said so", c.name)
		}
	}
	w.settle(true)
	for _, e := range w.ends {
		for i := 0; e.state == draining && e.single && i < 100; i++ {
			e.drain()
			// where a NIC refuses to tell what it has flushed, a drain waits until it is quiet
			time.Sleep(200 * time.Microsecond)
		}
	}
	for _, c := range w.conns {
		c.checkQuiet()
	}
	w.Audit()
	w.closeAll()
	w.Audit()
	w.Close()
}

// checkEnded: what has failed and does not linger comes to its end by itself, whatever the peer's
// program does.
func (e *end) checkEnded() {
	if e.vq.Err() == nil || e.state != connected || e.single || e.conn.plan.cfg[0].Linger > 0 {
		return
	}
	if e.sendHead != len(e.sends) || e.recvHead != len(e.recvs) {
		e.w.Broken(lab.Liveness, "%v has failed, and does not end: %d of %d sends and %d of %d receives "+
			"have completed: %v\n%s",
			e, e.sendHead, len(e.sends), e.recvHead, len(e.recvs), e.vq.Err(), e.stats())
	}
}

// checkNoticed: an end that works has no queue pair in ERR, and its peer has sent nothing that no
// peer may. Spray's rail 0 and the notify queue pair may hold no receive whose flush would tell.
func (e *end) checkNoticed() {
	if e.state != connected || e.vq.Err() != nil || e.single {
		return
	}
	if e.offended {
		e.w.Broken(ruleNoticed, "%v: the peer has sent what no peer may: %s", e, e.stats())
	}
	// credits are: then a rail may hold no receive either
	withheld := e.vq.Stats().Banked >= e.vq.Config().MaxBanked
	for i, q := range e.wires {
		if i == 0 && e.vq.Scheme() == ibverbx.Spray || withheld || !q.isData() {
			continue
		}
		if q.State() == verbs.StateErr {
			e.w.Broken(ruleNoticed, "%v: %v is in ERR: %s", e, q, e.stats())
		}
	}
}

// checkQuiet: nothing moves any more, so what has not ended never will.
func (c *conn) checkQuiet() {
	for _, e := range c.ends {
		if c.lied || e.state == unconnected || e.state == closed {
			continue
		}
		e.checkErr()
		if e.single && (e.mayBeLost() || e.onlyUnsignaled()) {
			continue // nothing will tell
		}
		if e.mayWaitForEver() {
			continue
		}
		if e.sendHead != len(e.sends) {
			e.w.Broken(lab.Liveness, "%v is stuck: %d of %d sends have completed; it is %v, %v; its peer "+
				"is %v, %v\n%s",
				e, e.sendHead, len(e.sends), e.state, e.vq.Err(), e.peer.state, e.peer.vq.Err(), e.stats())
		}
		if (e.vq.Err() != nil || e.state == drained || c.well()) && e.recvHead != len(e.recvs) {
			e.w.Broken(lab.Liveness, "%v is stuck: %d of %d receives have completed; %v\n%s\npeer:\n%s", e,
				e.recvHead, len(e.recvs), e.vq.Err(), e.stats(), e.peer.stats())
		}
		if e.state == draining {
			e.w.Broken(lab.Liveness, "%v does not come to the end of its drain\n%s", e, e.stats())
		}
		if c.well() {
			e.checkCounters()
		}
	}
}

// onlyUnsignaled says whether all that is left is requests without a completion.
func (e *end) onlyUnsignaled() bool {
	for _, s := range e.sends[e.sendHead:] {
		if s.flags&verbs.SendSignaled != 0 {
			return false
		}
	}
	return e.sendHead != len(e.sends)
}

// mayWaitForEver: neither end posts receives any more, and both wait for some. What has failed ends
// by itself where it does not linger; a drain is given up when its context ends.
func (e *end) mayWaitForEver() bool {
	waits := func(e *end) bool {
		return e.state == draining || e.vq.Err() != nil && e.conn.plan.cfg[0].Linger > 0
	}
	return waits(e) && waits(e.peer)
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
			w.Must("close domain", h.Dom.Close()) // it goes when the last of what it has made goes
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

// holds says whether a request that is outstanding names the host's memory.
func (w *world) holds(h *lab.Host) bool {
	for _, e := range w.ends {
		if e.host != h || e.single || e.state != connected || e.vq.Err() != nil {
			continue
		}
		for _, s := range e.sends[e.sendHead:] {
			if len(s.local) != 0 && s.local[0].N != 0 && s.life == e.life {
				return true
			}
		}
	}
	return false
}
