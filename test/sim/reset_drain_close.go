package sim

import (
	"context"
	"errors"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// reset moves an end back to RESET. Everything outstanding must complete.
func (e *end) reset() {
	w := e.w
	if e.state == closed {
		if err := e.vq.Reset(); !errors.Is(err, ibverbx.ErrClosed) {
			w.Broken(lab.Refusal, "%v: reset when closed: %v", e, err)
		}
		return
	}
	w.EndFaults(&e.conn.Conn)
	e.leaving = true
	err := w.waiting(e.vq.Reset)
	e.leaving, e.flushes = false, false
	w.Logf("  %v", err)
	e.state = unconnected
	e.firstErr = ""
	if err != nil {
		if !e.mayBeLost() {
			w.Broken(lab.Isolation, "%v: reset: %v", e, err)
		}
		e.lostNIC = true
		if e.vq.Err() == nil {
			w.Broken(ruleFirstError, "%v: reset failed, and Err says nothing", e)
		}
	} else if e.renewed = true; e.vq.Err() != nil || e.vq.State() != verbs.StateReset {
		w.Broken(ruleFirstError, "%v: after a reset it is in %v, %v", e, e.vq.State(), e.vq.Err())
	}
	e.peer.conn.because("its peer was reset")
	e.perhapsDone("a reset")
}

// perhapsDone polls, or leaves that to later events.
func (e *end) perhapsDone(after string) {
	if e.w.Rng.IntN(2) == 0 {
		e.cq.pollAll()
		e.mustBeDone(after)
	}
}

// mayBeLost says whether a NIC or CQ under the end has died.
func (e *end) mayBeLost() bool {
	if e.cq.mayDie || e.lostNIC {
		return true
	}
	for _, q := range e.wires {
		if q.NIC.Died {
			return true
		}
	}
	return false
}

// mustBeDone checks that all accepted requests have completed. A single queue pair may lose those
// of a NIC that died.
func (e *end) mustBeDone(after string) {
	if e.single {
		e.skipUnsignaled(len(e.sends), false)
		if e.mayBeLost() {
			if e.cq.closed {
				e.writeOff()
			}
			return
		}
	}
	if e.unfinished() {
		e.w.Broken(ruleOneForOne, "%v: after %s %s", e, after, e.howFar())
	}
}

// writeOff ends the requests that a single queue pair has lost.
func (e *end) writeOff() {
	for ; e.sendHead < len(e.sends); e.sendHead++ {
		e.release(e.sends[e.sendHead], false)
	}
	for ; e.recvHead < len(e.recvs); e.recvHead++ {
		e.host.Memory.Settle(e.recvs[e.recvHead].buffer, lab.AsItIs)
	}
}

// drain calls Drain, perhaps several times, with a context that has ended.
func (e *end) drain() {
	w := e.w
	if e.state != connected && e.state != draining || e.cq.direct {
		return
	}
	e.state = draining
	e.conn.because(becauseDrained)
	if e.conn.struck {
		e.conn.because("a rail may die while it drains")
	}
	err := w.waiting(func() error { return e.vq.Drain(ended) })
	// sometimes until it is done
	for i := w.Pick(0, 0, 30); i > 0 && errors.Is(err, context.Canceled); i-- {
		w.Steps(20)
		for _, c := range w.cqs {
			c.pollAll()
		}
		err = w.waiting(func() error { return e.vq.Drain(ended) })
	}
	w.Logf("  %v", err)
	switch {
	case errors.Is(err, context.Canceled):
		if state := e.vq.State(); e.vq.Err() == nil && e.vq.Stats().SendWindow != 0 &&
			state != verbs.StateSQD {
			w.Broken(lab.Refusal, "%v drains in state %v", e, state)
		}
		return
	case err != nil && !errors.As(err, new(*ibverbx.FailedError)):
		w.Broken(lab.Liveness, "%v: drain: %v", e, err)
	}
	e.cq.pollAll()
	e.checkErr()
	if e.conn.drainOnly && e.peer.state == connected && (err != nil || e.sendErrors.any == e.sessionNo) {
		w.Broken(lab.Isolation, "%v: nothing but a drain, and a send has failed: %v", e, err)
	}
	e.state = drained
	if state := e.vq.State(); state != verbs.StateErr {
		w.Broken(lab.Refusal, "%v is drained, in state %v", e, state)
	}
	e.mustBeDone("a drain")
}

// close closes a virtual queue pair, or its whole virtual CQ.
func (e *end) close() {
	w := e.w
	if e.state == closed {
		if err := e.vq.Close(); !errors.Is(err, ibverbx.ErrClosed) {
			w.Broken(lab.Refusal, "%v: closed again: %v", e, err)
		}
		return
	}
	if w.Rng.IntN(6) == 0 {
		e.cq.close()
		return
	}
	e.conn.because("its peer was closed")
	e.leaving = true
	var err error
	if w.Rng.IntN(3) == 0 && !e.cq.direct {
		err = w.waiting(func() error { return e.vq.Shutdown(ended) })
		if errors.Is(err, context.Canceled) || errors.As(err, new(*ibverbx.FailedError)) {
			err = nil // it was cut short, or had failed
		}
	} else {
		err = w.waiting(e.vq.Close)
	}
	w.Logf("  %v", err)
	e.afterClose(err)
}

func (e *end) afterClose(err error) {
	if err != nil && !e.mayBeLost() {
		e.w.Broken(lab.Leak, "%v: close: %v", e, err)
	}
	e.state = closed
	for _, q := range e.wires {
		if len(q.sends)+len(q.recvs) != 0 {
			e.w.Broken(lab.Ownership, "%v is closed, and %v still holds requests", e, q)
		}
	}
	e.perhapsDone("a close")
}

// close closes a virtual CQ with all that is on it.
func (c *vcq) close() {
	w := c.w
	for _, e := range c.ends {
		if e.state != closed {
			e.conn.because("its peer was closed")
			e.leaving = true
		}
	}
	err := w.waiting(c.cq.Close)
	w.Logf("  %s closed: %v", c.name, err)
	if err != nil && !c.mayDie {
		w.Broken(lab.Leak, "%s: close: %v", c.name, err)
	}
	c.closed = true
	for _, e := range c.ends {
		if e.state != closed {
			e.state = closed
			if len(e.wires[0].sends) != 0 {
				w.Broken(lab.Ownership, "%v is closed, and %v still holds requests", e, e.wires[0])
			}
		}
	}
	c.pollAll()
	for _, e := range c.ends {
		e.mustBeDone("a close")
	}
}
