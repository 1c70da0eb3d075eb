package transport

import "ibverbx/verbs"

// giveCredits sends credits by themselves where no active message carries them: when half of the
// buffers are free again, or when the peer cannot have any credit left (see flow.Ledger.MustGrant).
//
// The peer keeps controlSlots receives for such messages and a goodbye. They suffice: a message by
// the first rule carries at least half of all credits, and before one by the second the peer has
// handled every earlier one, so two at most arrive before the peer posts a receive again. Apart
// from that, two at most are unacknowledged: more wait until one of them has ended.
func (p *peerState) giveCredits() {
	s := p.ending.stage
	if !s.serves() || s == stageParting || p.sending.controlOps >= controlSlots-1 || !p.credits.MustGrant() {
		return
	}
	p.sendControl(wireCredits)
}

// creditsGiven counts all credits that are due as given: a message that carries them was posted.
func (p *peerState) creditsGiven() { p.credits.Granted(p.credits.Grant(0)) }

// sendControl sends a message of the transport itself, with all credits that are due. It reports
// whether the message was posted.
func (p *peerState) sendControl(kind wireKind) bool {
	w, t := p.w, &p.w.templates
	wr := t.control[:]
	wr[0].ID = p.sendID()
	buf := t.inline[:wireHeader]
	if n := p.sending.ops.Tail; w.cfg.QP.MaxInline < wireHeader {
		buf = p.mem.cellBytes(n) // registered memory, and as long as a header
		wr[0].Flags, wr[0].Local = verbs.SendSignaled, p.mem.cell(n)
	} else {
		wr[0].Inline = buf
	}
	header{kind: kind, credits: p.credits.Grant(0)}.put(buf)
	if _, err := p.conn.qp.PostSend(wr...); err != nil {
		switch {
		case kind == wireAbort: // this end is about to close anyhow
		case verbs.IsTransient(err):
			w.chores.refused = true
			w.chores.retryCredits(p)
			w.wakeForChores()
		default:
			p.failQP(err)
		}
		return false
	}
	p.sending.pushControl(controlOp(kind))
	p.creditsGiven()
	w.stats.control++
	w.wakeForChores()
	return true
}
