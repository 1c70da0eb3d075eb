package sim

import (
	"encoding/json"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// connect exchanges cards, which are true, and connects both ends.
func (w *world) connect(c *conn) {
	c.life++
	c.Blame, c.drainOnly, c.lied, c.cardLied = w.trouble(c), false, false, false
	c.raw = c.ends[0].vq.Scheme() == ibverbx.DQPLB && !c.plan.strip && c.plan.rails > 1
	var cards [2]ibverbx.BusinessCard
	for i, e := range c.ends {
		card, err := e.vq.Card()
		if err != nil && c.Blame == "" {
			w.Broken(lab.Isolation, "%v: card: %v", e, err)
		}
		if err != nil {
			return // a NIC is gone: nothing to connect yet
		}
		e.mustBeNew(card)
		cards[i] = w.travel(c, e, card)
	}
	for i, e := range c.ends {
		if w.Rng.IntN(4) == 0 { // step by step
			e.toInit()
		}
		err := e.vq.Connect(cards[1-i])
		w.Logf("  %v connects: %v", e, err)
		if err != nil {
			if c.Blame == "" {
				w.Broken(lab.Isolation, "%v: connect: %v", e, err)
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
	if err != nil && e.conn.Blame == "" {
		e.w.Broken(lab.Isolation, "%v: to INIT: %v", e, err)
	}
}

// mustBeNew checks that packets of a former life do not fit into this one: packet sequence numbers
// are drawn anew.
func (e *end) mustBeNew(card ibverbx.BusinessCard) {
	for i, r := range card.Rails {
		if q := e.wires[i]; e.life != 0 && r.PSN == q.psn && e.renewed {
			e.w.Broken(ruleWire, "%v: %v begins with the packet number %d again", e, q, r.PSN)
		}
		e.wires[i].psn = r.PSN
	}
	e.renewed = false
}

// travel sends a card to the other side: as JSON, and stripped to what the C++ original knows
// besides addresses if so planned.
func (w *world) travel(c *conn, e *end, card ibverbx.BusinessCard) (got ibverbx.BusinessCard) {
	text, err := json.Marshal(card)
	w.Must("marshal card", err)
	if c.plan.strip {
		keys := map[string]any{}
		w.Must("card", json.Unmarshal(text, &keys))
		for _, key := range []string{"scheme", "mtu", "credits", "rdAtomic", "rawImm", "firstNum"} {
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

// begin starts a life.
func (e *end) begin(life int) {
	e.life, e.state = life, connected
	e.firstErr, e.broke, e.offended, e.arrived = "", nil, false, nil
	e.stop, e.halt, e.noRecvs = forever, false, false
	e.acked, e.checked = len(e.sends), len(e.peer.sends)
	e.mail, e.relaxed, e.numbers, e.used, e.atomics, e.carrier = nil, nil, e.numbers[:0], 0, nil, nil
	for _, q := range e.wires {
		q.raw, q.rawIn, q.plain = false, false, false
	}
	for _, word := range e.words {
		word.sure = false
	}
}

const becauseDrained = "an end was drained"

// because notes why a connection may fail; the first reason counts.
func (c *conn) because(reason string) {
	if c.Blame == "" {
		c.drainOnly = true
		c.w.Logf("  %s may fail: %s", c.Name, reason)
	}
	c.drainOnly = c.drainOnly && reason == becauseDrained
	c.Because(reason)
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
			if q.NIC.Down+q.NIC.Dead != 0 {
				return q.NIC.Name() + " is down"
			}
		}
	}
	return ""
}

// reconnect connects two ends that are both in RESET, sometimes after a try with a card that lies.
func (w *world) reconnect(c *conn) {
	for _, e := range c.ends {
		if e.state != unconnected || e.vq.State() != verbs.StateReset {
			return
		}
	}
	w.EndFaults(&c.Conn)
	if w.plan.Mood == lab.Hostile && w.Rng.IntN(2) == 0 {
		w.connectLied(c)
		return
	}
	w.connect(c)
}
