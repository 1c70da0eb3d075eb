package transport

import "ibverbx/verbs"

// Connect connects to the endpoint that sent the card. What the peer sends before that is repeated
// by its NIC for as long as the retries of Config.QP.Conn allow. After an error other than
// ErrClosed, Connect can be called again.
func (e *Endpoint) Connect(peer Card) error {
	p := e.peer
	w, qp := p.w, p.conn.qp
	w.mu.Lock()
	defer p.unlock()
	if p.ending.err != nil {
		return p.refuse("connect", p.ending.err, "")
	}
	if p.ending.stage != stageNew {
		return p.refuse("connect", verbs.ErrInvalid, "the endpoint is connected")
	}
	if err := peer.check(qp.DataRails()); err != nil {
		return p.refuse("connect", err, "")
	}
	if err := qp.Connect(peer.QP); err != nil {
		if qp.State() != verbs.StateReset {
			_ = qp.Reset() // the error of Connect is the more useful one
		}
		return p.refuse("connect", err, "")
	}
	p.conn.maxAM, p.conn.handlers, p.conn.flush = peer.BufferSize, peer.Handlers, peer.Flush
	p.credits.Connect(peer.AMBuffers)
	p.ending.move(stageOpen)
	for slot := range p.receiving.messages {
		p.repost(uint32(slot), true)
	}
	w.postReceives()
	return p.ending.err // set if a NIC has refused the buffers
}

// Connect connects two endpoints of this process.
func Connect(a, b *Endpoint) error {
	ca, err := a.Card()
	if err != nil {
		return err
	}
	cb, err := b.Card()
	if err != nil {
		return err
	}
	if err := a.Connect(cb); err != nil {
		return err
	}
	return b.Connect(ca)
}
