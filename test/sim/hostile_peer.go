package sim

import (
	"encoding/json"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Peers that break the rules. Their own connection may fail. The other end must still keep its
// promises to its program, and no other connection may be affected.

// breakRules has an end send, past the library, what it must not: wrong, old and far-away numbers,
// more messages than there are credits, SENDs where receives are credits. Or it alters what the end
// sends.
func (w *world) breakRules(e *end) {
	if e.state != connected || e.single {
		return
	}
	q := e.wires[w.Rng.IntN(len(e.wires))]
	e.conn.turnHostile("an end breaks the rules")
	e.stale = true
	if w.Rng.IntN(3) == 0 {
		w.Logf("  what %v sends on %v is altered", e, q)
		flip := uint32(1) << w.Rng.IntN(32)
		match := func(wr *verbs.SendWR) bool { return wr.Opcode.HasImm() }
		if e.over && w.OneIn(2) { // a false count of what has arrived
			flip = 1 << w.Rng.IntN(16)
			match = func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSendWithImm && wr.Bytes() == 0 }
		}
		if w.plan.net != nil {
			w.Alter("alter", &e.conn.Conn, &q.QP, w.Rng.IntN(3), w.Pick(1, 3),
				func(wr *verbs.SendWR) { wr.Imm ^= flip })
			return
		}
		w.Inject("alter", &e.conn.Conn, &q.QP, soft.Fault{
			Kind: soft.Rewrite, Count: w.Pick(1, 3), Skip: w.Rng.IntN(3),
			Match:   match,
			Rewrite: func(wr *verbs.SendWR) { wr.Imm ^= flip },
		})
		return
	}
	for range w.Pick(1, 1, 2, 10, 40) {
		wr := verbs.SendWR{ID: w.Rng.Uint64() | 0xf<<60, Opcode: verbs.OpRDMAWriteWithImm,
			Flags: verbs.SendSignaled, Imm: w.forgedImmediate(e)}
		if w.Rng.IntN(5) == 0 {
			wr.Opcode = verbs.OpSend
		}
		n, err := q.QP.PostSend([]verbs.SendWR{wr})
		w.Logf("  %v forges on %v: %v, imm %#x: %d, %v", e, q, wr.Opcode, wr.Imm, n, err)
	}
}

func (w *world) forgedImmediate(e *end) uint32 {
	sent := uint32(e.used) + e.conn.plan.cfg[e.index%2].Testing.FirstNumber
	flags := uint32(w.Pick(0, bitLast, bitLast, bitRaw, bitLast|bitRaw, 1<<27))
	switch w.Rng.IntN(5) {
	case 0:
		return w.Rng.Uint32()
	case 1:
		return immediate(sent, flags) // the next
	case 2:
		return immediate(sent+numberModulo-1-uint32(w.Rng.IntN(3)), flags) // one that was used
	case 3:
		return immediate(sent+1+uint32(w.Rng.IntN(1<<19)), flags) // one to come, or far away
	}
	return immediate(0, flags) | 0xffffff00 // 0xffffff, on the wire
}

// connectFalseCard connects two ends, one of them with a false card. That is refused without any
// effect, or believed.
func (w *world) connectFalseCard(c *conn) {
	c.session++
	c.Blame, c.falseCard = "", true
	c.turnHostile("a card lied")
	c.raw = false
	var cards [2]ibverbx.BusinessCard
	for i, e := range c.ends {
		card, err := e.vq.Card()
		if err != nil {
			return
		}
		cards[i] = w.sendCard(c, e, card)
	}
	liar := w.Rng.IntN(2)
	if !w.falsify(&cards[liar]) {
		return // its text is refused
	}
	c.failover = false
	for i, e := range c.ends {
		peer := &cards[1-i]
		e.over = c.plan.failover[i] && c.plan.rails > 1 && peer.Failover && len(peer.Rails) != 0
		c.failover = c.failover || e.over
	}
	c.causeToTouch()
	for i, e := range c.ends {
		before := e.vq.State()
		err := e.vq.Connect(cards[1-i])
		w.Logf("  %v connects to %+v: %v", e, cards[1-i], err)
		switch {
		case err == nil:
			e.begin(c.session, &cards[1-i])
		case i == liar:
			w.Broken(lab.Isolation, "%v: connect: %v", e, err)
		case e.vq.State() != before:
			w.Broken(lab.Refusal, "%v: a card was refused (%v) and left it in %v", e, err, e.vq.State())
		}
	}
}

// falsify changes a card by way of its text. It reports false when the text is refused.
func (w *world) falsify(card *ibverbx.BusinessCard) bool {
	text, err := json.Marshal(*card)
	w.Must("marshal card", err)
	keys := map[string]any{}
	w.Must("card", json.Unmarshal(text, &keys))
	lies := []func(){
		func() { keys["credits"] = w.Pick(0, 1, 1<<30, -1) },
		func() { keys["mtu"] = w.Pick(0, 256, 4096, 999) },
		func() { keys["rdAtomic"] = w.Pick(0, 1, 255, 256) },
		func() { keys["rawImm"] = !card.RawImm },
		func() { keys["scheme"] = []string{"spray", "dqplb", "other", ""}[w.Rng.IntN(4)] },
		func() { keys["firstNum"] = w.Pick(0, 1, 1<<24-2, 1<<24-1) },
		func() { keys["notifyQpNum"] = []string{"0000000000", "0000000017", "16777216", "x"}[w.Rng.IntN(4)] },
		func() { keys["qpNums"] = keys["qpNums"].([]any)[1:] },
		func() { keys["qpNums"].([]any)[0] = []string{"0000000018", "0", "99999999999"}[w.Rng.IntN(3)] },
		func() { delete(keys, "rails") },
		func() { keys["rails"] = keys["rails"].([]any)[1:] },
		func() { w.rail(keys)["device"] = w.Pick(0, 1, 2, 3, 63, 64) },
		func() { w.rail(keys)["psn"] = w.falsePSN() },
		func() { w.rail(keys)["gid"] = []string{"::", "::ffff:10.77.0.1", "fe80::1", "?"}[w.Rng.IntN(4)] },
	}
	if card.Failover || len(card.SpareQPNums) != 0 {
		lies = append(lies,
			func() { keys["failover"] = !card.Failover },
			func() { keys["spareQpNums"] = [][]int{nil, {17}, {0}, {1 << 24}}[w.Rng.IntN(4)] })
	}
	lies[w.Rng.IntN(len(lies))]()
	text, err = json.Marshal(keys)
	w.Must("marshal card", err)
	var got ibverbx.BusinessCard
	if err := json.Unmarshal(text, &got); err != nil {
		w.Logf("  a card is refused: %v", err)
		return false
	}
	*card = got
	return true
}

// falsePSN is a false packet sequence number. On a network it is one that is refused: what is sent
// may lie before it, which makes repeats of packets that were never carried out, and are
// acknowledged. No end can tell.
func (w *world) falsePSN() int {
	psn := w.Pick(0, 1<<24-1, 1<<24)
	if w.plan.net != nil {
		psn = 1 << 24
	}
	return psn
}

func (w *world) rail(keys map[string]any) map[string]any {
	rails := keys["rails"].([]any)
	return rails[w.Rng.IntN(len(rails))].(map[string]any)
}

// replay has completions appear that belong to no request: of an earlier session, of a queue pair
// that does not exist, or with an id that was never used. Single queue pairs are exempt, because
// they track nothing.
func (w *world) replay(e *end) {
	if e.cq.closed || e.single {
		return
	}
	t := e.cq.taps[w.Rng.IntN(len(e.cq.taps))]
	for _, q := range e.wires {
		if q.NIC == t.NIC && (e.state == closed || e.state == unconnected) {
			t.stale = append(t.stale, q.last...)
			w.Logf("  %v sees %d completions of %v again", e, len(q.last), q)
			q.last = nil
		}
	}
	e.stale = true
	t.stale = append(t.stale, verbs.WC{ID: w.Rng.Uint64(), Status: w.DrawStatus(), QPNum: 1 << 20})
	if q := w.wires[wireAt{t.NIC, e.wires[0].Num()}]; q != nil && !q.end.single {
		q.end.stale = true
		// no kind of the library's requests has this id
		t.stale = append(t.stale, verbs.WC{ID: w.Rng.Uint64() >> 4, Status: w.DrawStatus(), QPNum: q.Num(),
			Opcode: verbs.WCRecv})
	}
}
