package sim

import (
	"context"
	"encoding/json"
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// connect exchanges cards, which are true, and connects both ends.
func (w *world) connect(c *conn) {
	c.life++
	c.blame, c.drainOnly, c.lied, c.cardLied = w.trouble(c), false, false, false
	c.raw = c.ends[0].vq.Scheme() == ibverbx.DQPLB && !c.plan.strip && c.plan.rails > 1
	var cards [2]ibverbx.BusinessCard
	for i, e := range c.ends {
		card, err := e.vq.Card()
		if err != nil && c.blame == "" {
			w.broken(ruleIsolation, "%v: card: %v", e, err)
		}
		if err != nil {
			return // a NIC is gone: nothing to connect yet
		}
		cards[i] = w.travel(c, e, card)
	}
	for i, e := range c.ends {
		if w.rng.IntN(4) == 0 { // step by step
			e.toInit()
		}
		err := e.vq.Connect(cards[1-i])
		w.logf("  %v connects: %v", e, err)
		if err != nil {
			if c.blame == "" {
				w.broken(ruleIsolation, "%v: connect: %v", e, err)
			}
			continue // it is left in between: reset or close
		}
		e.begin(c.life)
	}
	for _, e := range c.ends {
		if e.state != connected {
			c.because("its peer has not connected")
		}
	}
}

// toInit takes an end to INIT by itself, as programs do that connect step by step.
func (e *end) toInit() {
	err := e.vq.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess, nil)
	if err != nil && e.conn.blame == "" {
		e.w.broken(ruleIsolation, "%v: to INIT: %v", e, err)
	}
}

// travel sends a card to the other side: as JSON, and stripped to what the C++ original knows besides addresses if so planned.
func (w *world) travel(c *conn, e *end, card ibverbx.BusinessCard) (got ibverbx.BusinessCard) {
	text, err := json.Marshal(card)
	w.must("marshal card", err)
	if c.plan.strip {
		keys := map[string]any{}
		w.must("card", json.Unmarshal(text, &keys))
		for _, key := range []string{"scheme", "mtu", "credits", "rdAtomic", "rawImm", "firstNum"} {
			delete(keys, key)
		}
		keys["somethingNew"] = 7
		text, err = json.Marshal(keys)
		w.must("card", err)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		w.broken(ruleWire, "%v: its card does not read back: %v", e, err)
	}
	return got
}

// begin starts a life.
func (e *end) begin(life int) {
	e.life, e.state = life, connected
	e.firstErr, e.broke, e.offended, e.came = "", nil, false, nil
	e.stop, e.halt = forever, false
	e.acked, e.checked = len(e.sends), len(e.peer.sends)
	e.mail, e.numbers, e.used, e.atomics = nil, e.numbers[:0], 0, nil
	for _, q := range e.wires {
		q.raw, q.rawIn, q.plain, q.bad = false, false, false, nil
	}
	for _, word := range e.words {
		word.sure = false
	}
}

const becauseDrained = "an end was drained"

// because notes why a connection may fail; the first reason counts.
func (c *conn) because(reason string) {
	c.drainOnly = c.drainOnly && reason == becauseDrained
	if c.blame == "" {
		c.blame, c.drainOnly = reason, reason == becauseDrained
		c.ends[0].w.logf("  connection %d may fail: %s", c.ends[0].index/2, reason)
	}
}

// trouble is what is wrong with the NICs under a connection; "" when nothing is.
func (w *world) trouble(c *conn) string {
	if c.plan.cfg[0].Conn.RNRRetry != 0 && c.plan.cfg[0].Conn.RNRRetry != verbs.RNRRetryForever {
		return "a receiver may be late"
	}
	for _, e := range c.ends {
		if e.cq.mayDie {
			return "its completion queue may overrun"
		}
		for _, q := range e.wires {
			if q.nic.down+q.nic.dead != 0 {
				return q.nic.Name() + " is down"
			}
		}
	}
	return ""
}

// reset takes an end back to RESET. Everything outstanding must end with it.
func (e *end) reset() {
	w := e.w
	if e.state == closed {
		if err := e.vq.Reset(); !errors.Is(err, ibverbx.ErrClosed) {
			w.broken(ruleRefusal, "%v: reset when closed: %v", e, err)
		}
		return
	}
	w.endFaults(e.conn)
	e.leaving = true
	err := w.waiting(e.vq.Reset)
	e.leaving = false
	w.logf("  %v", err)
	e.state = unconnected
	e.firstErr = ""
	if err != nil {
		if !e.mayBeLost() {
			w.broken(ruleIsolation, "%v: reset: %v", e, err)
		}
		e.beyond = true
		if e.vq.Err() == nil {
			w.broken(ruleFirstError, "%v: reset failed, and Err says nothing", e)
		}
	} else if e.vq.Err() != nil || e.vq.State() != verbs.StateReset {
		w.broken(ruleFirstError, "%v: after a reset it is in %v, %v", e, e.vq.State(), e.vq.Err())
	}
	e.peer.conn.because("its peer was reset")
	if w.rng.IntN(2) == 0 {
		e.cq.pollAll()
		e.mustBeDone("a reset")
	}
}

// mayBeLost says whether a NIC or CQ under the end has died.
func (e *end) mayBeLost() bool {
	if e.cq.mayDie || e.beyond {
		return true
	}
	for _, q := range e.wires {
		if q.nic.died {
			return true
		}
	}
	return false
}

// mustBeDone checks that everything which was ever accepted has completed. A single queue pair may lose what a NIC took along.
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
	if e.sendHead != len(e.sends) || e.recvHead != len(e.recvs) {
		e.w.broken(ruleOneForOne, "%v: after %s %d of %d sends and %d of %d receives have completed", e, after, e.sendHead, len(e.sends), e.recvHead, len(e.recvs))
	}
}

// writeOff gives up what a single queue pair has lost.
func (e *end) writeOff() {
	for ; e.sendHead < len(e.sends); e.sendHead++ {
		e.release(e.sends[e.sendHead], false)
	}
	for ; e.recvHead < len(e.recvs); e.recvHead++ {
		e.host.memory.settle(e.recvs[e.recvHead].buffer, -1, e.name+" "+e.recvs[e.recvHead].String())
	}
}

// reconnect connects two ends that are both in RESET, sometimes after a try with a card that lies.
func (w *world) reconnect(c *conn) {
	for _, e := range c.ends {
		if e.state != unconnected || e.vq.State() != verbs.StateReset {
			return
		}
	}
	w.endFaults(c)
	if w.plan.mood == hostile && w.rng.IntN(2) == 0 {
		w.connectLied(c)
		return
	}
	w.connect(c)
}

// drain lets an end finish, a bit further with each event.
func (e *end) drain() {
	w := e.w
	if e.state != connected && e.state != draining || e.cq.direct {
		return
	}
	e.state = draining
	e.conn.because(becauseDrained)
	err := w.waiting(func() error { return e.vq.Drain(ended) })
	for range w.pick(0, 0, 30) { // give it time, sometimes
		if !errors.Is(err, context.Canceled) {
			break
		}
		w.steps(20)
		for _, c := range w.cqs {
			c.pollAll()
		}
		err = w.waiting(func() error { return e.vq.Drain(ended) })
	}
	w.logf("  %v", err)
	var failed *ibverbx.FailedError
	switch {
	case errors.Is(err, context.Canceled):
		return
	case err != nil && !errors.As(err, &failed):
		w.broken(ruleLiveness, "%v: drain: %v", e, err)
	}
	e.cq.pollAll()
	e.checkErr()
	if e.conn.drainOnly && e.peer.state == connected && (err != nil || e.sendTorn.life == e.life) {
		w.broken(ruleIsolation, "%v: nothing but a drain, and a send has failed: %v", e, err)
	}
	e.state = drained
	e.mustBeDone("a drain")
}

// close ends a virtual queue pair, or a whole virtual CQ.
func (e *end) close() {
	w := e.w
	if e.state == closed {
		if err := e.vq.Close(); !errors.Is(err, ibverbx.ErrClosed) {
			w.broken(ruleRefusal, "%v: closed again: %v", e, err)
		}
		return
	}
	if w.rng.IntN(6) == 0 {
		e.cq.close()
		return
	}
	e.conn.because("its peer was closed")
	e.leaving = true
	var err error
	if w.rng.IntN(3) == 0 && !e.cq.direct {
		err = w.waiting(func() error { return e.vq.Shutdown(ended) })
		if errors.Is(err, context.Canceled) {
			err = nil // it would have taken longer
		}
		var failed *ibverbx.FailedError
		if errors.As(err, &failed) {
			err = nil
		}
	} else {
		err = w.waiting(e.vq.Close)
	}
	w.logf("  %v", err)
	e.afterClose(err)
}

func (e *end) afterClose(err error) {
	if err != nil && !e.mayBeLost() {
		e.w.broken(ruleLeak, "%v: close: %v", e, err)
	}
	e.state = closed
	for _, q := range e.wires {
		if len(q.sends)+len(q.recvs) != 0 {
			e.w.broken(ruleBuffer, "%v is closed, and %v still holds requests", e, q)
		}
	}
	if e.w.rng.IntN(2) == 0 {
		e.cq.pollAll()
		e.mustBeDone("a close")
	}
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
	w.logf("  %s closed: %v", c.name, err)
	if err != nil && !c.mayDie {
		w.broken(ruleLeak, "%s: close: %v", c.name, err)
	}
	c.closed = true
	for _, e := range c.ends {
		if e.state != closed {
			e.state = closed
			if len(e.wires[0].sends) != 0 {
				w.broken(ruleBuffer, "%v is closed, and %v still holds requests", e, e.wires[0])
			}
		}
	}
	c.pollAll()
	for _, e := range c.ends {
		e.mustBeDone("a close")
	}
}
