package sim

import (
	"encoding/json"

	"ibverbx"
)

func (e *end) stats() string {
	text, err := json.Marshal(e.vq.Stats())
	e.w.Must("marshal stats", err)
	return string(text)
}

// checkCounters checks an end with nothing outstanding: all gauges are zero, and the totals match
// the posts.
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
	e.checkLostRails()
	if e.over {
		e.checkTold()
	}
	var total, carried uint64
	for _, s := range e.sends {
		total += uint64(s.length)
	}
	for i, r := range st.Rails {
		carried += r.Bytes
		if r.Outstanding != 0 || e.wires[i].most > r.Limit && e.sessionNo == 1 && st.RailsLost == 0 {
			e.w.Broken(ruleCounters, "%v: rail %d: %s", e, i, e.stats())
		}
	}
	if e.sessionNo == 1 && carried != total && st.RailsLost == 0 {
		e.w.Broken(ruleCounters, "%v: its rails have carried %d bytes of %d: %s", e, carried, total,
			e.stats())
	}
}

// look checks all results of queries that are possible at any moment, and makes some wrong calls.
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
		if q := e.wires[i]; open && !e.single && !e.conn.hostile &&
			(r.Outstanding < q.requests() && !r.Down || r.Outstanding > r.Limit || r.QPNum != q.Num()) {
			e.w.Broken(ruleCounters, "%v: rail %d has %d requests on the NIC: %s", e, i, len(q.sends),
				e.stats())
		}
	}
	if open && e.over {
		e.checkTold()
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
	if e.vq.CQ() != e.cq.cq || e.vq.DataRails() != e.conn.plan.rails ||
		e.vq.Config().Scheme != e.vq.Scheme() ||
		len(e.cq.cq.Devices())+len(e.cq.cq.CQs()) != 2*len(e.host.NICs) ||
		(e.vq.Domain() == nil) != (e.conn.plan.byHand[e.index%2] != nil) ||
		len(e.host.Dom.Devices()) != len(e.host.NICs) {
		e.w.Broken(ruleCounters, "%v does not know itself", e)
	}
	qps := 0
	for _, n := range e.vq.Carrier().NICs {
		qps += n.QPs
	}
	if total, own := e.cq.cq.Total(), e.vq.Stats(); qps != len(e.vq.QPs()) || total.Sends < own.Sends ||
		total.RailsLost < own.RailsLost || total.Reposted < own.Reposted {
		e.w.Broken(ruleCounters, "%v: the carrier has %d queue pairs, the sums are %+v: %s", e, qps, total,
			e.stats())
	}
	e.checkErr()
	for range 4 {
		e.callWrongly()
	}
}

// gauges checks limits: of requests on each rail, and of notifications that DQPLB keeps for later
// receives. Those are at most the bank and the credits that the peer had when the bank was full.
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
