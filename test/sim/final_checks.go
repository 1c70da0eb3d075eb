package sim

import (
	"encoding/json"
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

// settle lets the fabric run until nothing moves any more. With balance the programs post what each
// other waits for.
func (w *world) settle(balance bool) {
	still := 0 // rounds in which nothing moved; a poll may set things going that show in the next
	for range 20_000 {
		before := w.Moves
		w.Moves += w.Fabric.Run(50)
		moved := 0
		for _, c := range w.cqs {
			moved += c.pollAll()
		}
		for _, e := range w.ends {
			if e.state == draining {
				e.drain()
			}
		}
		for _, c := range w.conns {
			if balance {
				moved += c.balance()
			}
		}
		if still++; moved != 0 || w.Moves != before {
			still = 0
		}
		if still == 3 {
			return
		}
	}
	w.Broken(lab.Liveness, "it does not come to rest")
}

// well says whether both ends work, and truthfully.
func (c *conn) well() bool {
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			return false
		}
	}
	return !c.lied
}

// balance makes as many receives as messages of each kind: it posts the receives that are missing,
// and lets the peer send what is waited for in vain. A receive that nothing matches would hold up
// all behind it.
func (c *conn) balance() (moved int) {
	if c.lied {
		return 0
	}
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			continue
		}
		var waiting [2]int
		for _, r := range e.recvs[e.recvHead:] {
			if r.message && !e.single {
				waiting[kindMessage]++
			} else {
				waiting[kindNote]++
			}
		}
		var coming [messageKinds]int
		for kind, list := range e.expect {
			for len(list) != 0 && list[0].life < e.life {
				list = list[1:]
			}
			coming[kind] = len(list)
		}
		coming[kindMessage] += coming[kindRelaxed]
		for kind, n := range waiting {
			for range coming[kind] - n {
				moved += e.feed(kind == kindMessage || e.single)
			}
			for range n - coming[kind] {
				moved += e.peer.serve(kind == kindMessage)
			}
		}
		if n := len(e.sends); e.single && e.sendHead < n && e.sends[n-1].flags&verbs.SendSignaled == 0 {
			moved += e.serve(false) // a signaled one vouches for those before it
		}
	}
	return moved
}

// feed posts a receive.
func (e *end) feed(message bool) int {
	before := len(e.recvs)
	if wr, ok := e.makeRecv(message); ok {
		e.postGoodRecvs([]ibverbx.RecvWR{wr})
	}
	return len(e.recvs) - before
}

// serve sends a byte: as a message, or with a notification.
func (e *end) serve(message bool) int {
	if e.state != connected || e.vq.Err() != nil {
		return 0
	}
	s := &send{index: len(e.sends), life: e.life, op: verbs.OpRDMAWriteWithImm, flags: verbs.SendSignaled,
		length: 1, imm: 5}
	if message {
		s.op = verbs.OpSend
	}
	wr := ibverbx.SendWR{ID: e.id(false, s.index), Opcode: s.op, Imm: s.imm}
	if !e.giveMemory(s, &wr) {
		e.w.Broken(lab.Leak, "the simulation has too little memory to come to its end")
	}
	wr.Flags = s.flags
	e.enter(s)
	e.postGood([]ibverbx.SendWR{wr}, s.index)
	return 1
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

func (e *end) stats() string {
	text, err := json.Marshal(e.vq.Stats())
	e.w.Must("marshal stats", err)
	return string(text)
}

// checkCounters: with nothing under way every gauge is back to nothing, and the totals are what was
// done.
func (e *end) checkCounters() {
	st := e.vq.Stats()
	if st.SendsWaiting != 0 || st.SendWindow != 0 || st.RecvWindow != 0 || st.OutOfOrder != 0 ||
		st.Banked != 0 || st.NumbersOpen != 0 || st.StaleEvents != 0 && !e.stale {
		e.w.Broken(ruleCounters, "%v is quiet, and its counters are not: %s", e, e.stats())
	}
	if e.single {
		return
	}
	if st.Sends != uint64(len(e.sends)) || st.SendsCompleted != st.Sends ||
		st.Recvs != uint64(len(e.recvs)) || st.RecvsCompleted != st.Recvs {
		e.w.Broken(ruleCounters, "%v: %d sends and %d receives have completed: %s", e, len(e.sends),
			len(e.recvs), e.stats())
	}
	if e.used != len(e.numbers) || st.NumbersSent != uint64(e.used) && e.vq.Scheme() == ibverbx.DQPLB {
		e.w.Broken(ruleWire, "%v has used %d numbers up to the %d-th: %s", e, e.used, len(e.numbers),
			e.stats())
	}
	if ring := 128; st.SendRing > max(ring, 2*e.most) {
		e.w.Broken(ruleCounters, "%v: a ring of %d slots for %d requests at a time", e, st.SendRing, e.most)
	}
	var total, carried uint64
	for _, s := range e.sends {
		total += uint64(s.length)
	}
	for i, r := range st.Rails {
		carried += r.Bytes
		if r.Outstanding != 0 || e.wires[i].most > r.Limit && r.Limit == st.Rails[i].Limit && e.life == 1 {
			e.w.Broken(ruleCounters, "%v: rail %d: %s", e, i, e.stats())
		}
	}
	if e.life == 1 && carried != total {
		e.w.Broken(ruleCounters, "%v: its rails have carried %d bytes of %d: %s", e, carried, total,
			e.stats())
	}
}

// look asks for everything that can be asked for, at any moment.
func (e *end) look() {
	st := e.vq.Stats()
	open := e.state == connected || e.state == draining
	if !e.single && (st.Sends != uint64(len(e.sends)) || st.SendsCompleted < uint64(e.sendHead) ||
		st.RecvsCompleted < uint64(e.recvHead) ||
		open && st.SendWindow != int(st.Sends-st.SendsCompleted)) {
		e.w.Broken(ruleCounters, "%v: %d sends, %d and %d completed: %s", e, len(e.sends), e.sendHead,
			e.recvHead, e.stats())
	}
	for i, r := range st.Rails {
		if q := e.wires[i]; open && !e.single && !e.conn.lied &&
			(r.Outstanding < len(q.sends) || r.Outstanding > r.Limit || r.QPNum != q.Num()) {
			e.w.Broken(ruleCounters, "%v: rail %d has %d requests on the NIC: %s", e, i, len(q.sends),
				e.stats())
		}
	}
	cq := e.cq.cq.Stats()
	openEnds := 0
	for _, other := range e.cq.ends {
		if other.state != closed {
			openEnds++
		}
	}
	if cq.VirtualQPs != openEnds || cq.ReadyRing > 4096 {
		e.w.Broken(ruleCounters, "%s: %+v, want %d virtual queue pairs", e.cq.name, cq, openEnds)
	}
	cfg := e.vq.Config()
	if e.vq.CQ() != e.cq.cq || e.vq.DataRails() != e.conn.plan.rails || cfg.Scheme != e.vq.Scheme() ||
		(e.vq.Domain() == nil) != (e.conn.plan.byHand[e.index%2] != nil) {
		e.w.Broken(ruleCounters, "%v does not know itself", e)
	}
	if len(e.cq.cq.Devices()) != len(e.host.NICs) || len(e.host.Dom.Devices()) != len(e.host.NICs) {
		e.w.Broken(ruleCounters, "%v: wrong devices", e)
	}
	e.checkErr()
	for range 4 {
		e.fumble()
	}
}

// gauges checks what must hold at any moment: nothing above its limit, and what DQPLB keeps for
// receives that are late is bounded by the bank and by the credits that were out when it filled.
func (e *end) gauges() {
	st := e.vq.Stats()
	bank := e.vq.Config().MaxBanked
	for i, r := range st.Rails {
		bank += r.RecvLimit
		if r.Outstanding > r.Limit || r.Recvs > r.RecvLimit {
			e.w.Broken(ruleBackpressure, "%v: rail %d is above its limits: %s", e, i, e.stats())
		}
	}
	if st.Banked > bank {
		e.w.Broken(ruleCounters, "%v keeps %d notifications, where %d is the limit: %s", e, st.Banked, bank,
			e.stats())
	}
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
