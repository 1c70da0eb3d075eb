package sim

import (
	"encoding/json"

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

// toInit moves an end to INIT, as programs do that connect step by step.
func (e *end) toInit() {
	err := e.vq.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess, nil)
	if err != nil && e.conn.Blame == "" {
		e.w.Broken(lab.Isolation, "%v: to INIT: %v", e, err)
	}
}

// mustBeNew checks that each session begins with packet sequence numbers that are far from those of
// the last one, so that no packet of that is accepted.
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

// because notes why a connection may fail. The first reason counts.
func (c *conn) because(reason string) {
	if c.Blame == "" {
		c.drainOnly = true
		c.w.Logf("  %s may fail: %s", c.Name, reason)
	}
	c.drainOnly = c.drainOnly && reason == becauseDrained
	c.Because(reason)
}

// causeToFail is why a new session may fail from its beginning; "" when it may not.
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
