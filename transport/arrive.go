package transport

import "fmt"

// arrived handles a completed receive of n bytes.
func (p *peerState) arrived(slot uint32, n uint64) {
	w, r := p.w, &p.receiving
	if int(slot) >= len(r.messages) || r.messages[slot].state != messagePosted {
		w.stats.stale++
		return
	}
	m := &r.messages[slot]
	msg := p.mem.bytes(slot)
	msg = msg[:min(n, uint64(len(msg)))]
	var h header
	if err := h.parse(msg); err != nil {
		p.violated(err)
		return
	}
	if !p.credits.Regain(h.credits) {
		p.violated(fmt.Errorf("%d credits for %d buffers", p.credits.Room()+int(h.credits), p.credits.Most()))
		return
	}
	if h.kind != wireAM {
		p.repost(slot, true) // the peer counts on room for these
		switch h.kind {
		case wireBye:
			p.fail(stagePeerClosed, ErrPeerClosed, nil)
		case wireAbort:
			p.fail(stagePeerClosed, ErrPeerFailed, ErrPeerAborted)
		}
		return
	}
	switch {
	case !p.credits.Arrive():
		p.violated(fmt.Errorf("active message %d without a credit", h.id))
		return
	case !w.handlers.has(h.id):
		p.violated(fmt.Errorf("active message %d, which has no handler", h.id))
		return
	}
	if p.credits.PeerWaits() && len(r.toRepost) != 0 {
		w.chores.repost(p)
	}
	w.stats.amReceived++
	r.bytes += uint64(len(msg) - wireHeader)
	m.id, m.state = h.id, messageHandled
	m.header, m.length = h.length, uint32(len(msg))
	w.round.report(event{kind: eventMessage, peer: p, m: m})
}

// violated fails the endpoint because of what the peer has sent.
func (p *peerState) violated(why error) {
	p.w.stats.violations++
	p.fail(stageViolated, ErrProtocol, why)
}
