package sim

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// connect exchanges cards and connects both ends.
func (w *world) connect(c *conn) {
	c.session++
	c.failover = c.plan.failsOver()
	c.ends[0].over, c.ends[1].over = c.failover, c.failover
	c.Blame, c.drainOnly, c.hostile = w.causeToFail(c), false, false
	c.causeToTouch()
	c.raw = c.ends[0].vq.Scheme() == ibverbx.DQPLB && !c.plan.strip && c.plan.rails > 1
	var cards [2]ibverbx.BusinessCard
	for i, e := range c.ends {
		card, err := e.vq.Card()
		if err != nil && c.Blame == "" {
			w.Broken(lab.Isolation, "%v: card: %v", e, err)
		}
		if err != nil {
			return // a NIC is gone
		}
		e.mustBeNew(card)
		cards[i] = w.sendCard(c, e, card)
	}
	for i, e := range c.ends {
		if w.Rng.IntN(4) == 0 { // in two steps
			e.toInit()
		}
		err := e.vq.Connect(cards[1-i])
		w.Logf("  %v connects: %v", e, err)
		if err != nil {
			if c.Blame == "" {
				w.Broken(lab.Isolation, "%v: connect: %v", e, err)
			}
			continue // only Reset or Close can follow
		}
		e.begin(c.session, &cards[1-i])
	}
	for _, e := range c.ends {
		if e.state != connected {
			c.because("its peer has not connected")
		}
	}
}

// toInit moves an end to INIT, like programs that connect step by step.
func (e *end) toInit() {
	err := e.vq.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess, nil)
	if err != nil && e.conn.Blame == "" {
		e.w.Broken(lab.Isolation, "%v: to INIT: %v", e, err)
	}
}

// mustBeNew checks that each session begins with packet sequence numbers far from the last one's,
// so that no packet of the last session is accepted.
func (e *end) mustBeNew(card ibverbx.BusinessCard) {
	for i, r := range card.Rails {
		if q := e.wires[i]; e.renewed && q.began && !lab.PSNsApart(r.PSN, q.psn, 1<<20) {
			e.w.Broken(ruleWire, "%v: %v begins with the packet number %d after %d", e, q, r.PSN, q.psn)
		}
	}
	e.renewed = false
}

// sendCard sends a card to the other side as JSON, in some plans without the keys that the C++
// original does not know.
func (w *world) sendCard(c *conn, e *end, card ibverbx.BusinessCard) (got ibverbx.BusinessCard) {
	text, err := json.Marshal(card)
	w.Must("marshal card", err)
	if c.plan.strip {
		keys := map[string]any{}
		w.Must("card", json.Unmarshal(text, &keys))
		for _, key := range []string{"scheme", "mtu", "credits", "rdAtomic", "rawImm", "firstNum",
			"failover"} {
			delete(keys, key)
		}
		keys["somethingNew"] = 7
		text, err = json.Marshal(keys)
		w.Must("card", err)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		w.Broken(ruleWire, "%v: its card does not read back: %v", e, err)
	}
	return got
}

// begin starts a session, with the card of the peer.
func (e *end) begin(number int, peer *ibverbx.BusinessCard) {
	e.state = connected
	e.session = session{sessionNo: number, stopAt: forever, acked: len(e.sends), checked: len(e.peer.sends),
		plainPeer: peer.Scheme == "" && peer.Credits == 0 && !e.single && e.vq.Scheme() == ibverbx.DQPLB}
	for _, q := range e.wires {
		q.userImm, q.back = userImm{}, false
	}
	for _, word := range e.words {
		word.known = false
	}
}

const becauseDrained = "an end was drained"

// because records why a connection may fail. The first reason counts.
func (c *conn) because(reason string) {
	if c.Blame == "" {
		c.drainOnly = true
		c.w.Logf("  %s may fail: %s", c.Name, reason)
	}
	c.drainOnly = c.drainOnly && reason == becauseDrained
	c.Because(reason)
}

// causeToFail returns why a new session may fail from its beginning; "" if it may not.
func (w *world) causeToFail(c *conn) string {
	if c.plan.cfg[0].Conn.RNRRetry != 0 && c.plan.cfg[0].Conn.RNRRetry != verbs.RNRRetryForever {
		return "a receiver may be late"
	}
	for _, e := range c.ends {
		if e.cq.mayDie {
			return "its completion queue may overrun"
		}
		for _, q := range e.wires {
			if q.NIC.Dead != 0 || q.NIC.Down != 0 && !c.failover {
				return q.NIC.Name() + " is down"
			}
		}
	}
	return ""
}

// reconnect connects two ends that are both in RESET.
func (w *world) reconnect(c *conn) {
	for _, e := range c.ends {
		if e.state != unconnected || e.vq.State() != verbs.StateReset {
			return
		}
	}
	w.EndFaults(&c.Conn)
	w.connect(c)
}

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

// mayBeLost reports whether a NIC or CQ under the end has died.
func (e *end) mayBeLost() bool {
	died := func(q *wire) bool { return q.NIC.Died }
	return e.cq.mayDie || e.lostNIC || slices.ContainsFunc(e.wires, died)
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
			err = nil // it was interrupted, or had failed
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

// close closes a virtual CQ with its virtual queue pairs.
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
	c.checkTrace()
}
