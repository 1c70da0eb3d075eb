package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Connect connects to the endpoint that sent the card. What the peer sends before that is repeated
// by its NIC for as long as the retries of Config.QP.Conn allow. After an error other than
// ErrClosed, Connect can be called again; if a NIC has stopped it half-way, give the peer a new
// card, because packet numbers are drawn anew.
func (e *Endpoint) Connect(peer Card) error {
	p := e.peer
	w := p.w
	w.mu.Lock()
	defer p.unlock()
	qp := p.conn.qp // nil once the endpoint is released
	if p.ending.err != nil {
		return p.refuse("connect", p.ending.err, "")
	}
	if p.ending.stage != stageNew {
		return p.refuse("connect", verbs.ErrInvalid, "the endpoint is connected")
	}
	if err := peer.check(qp.DataRails()); err != nil {
		return p.refuse("connect", err, "")
	}
	if c := &w.cfg.QP; c.Failover && !peer.QP.Failover && c.Scheme == ibverbx.Spray && qp.DataRails() > 1 {
		return p.refuse("connect", verbs.ErrInvalid, "this end offers failover, the peer does not: in spray "+
			"both must, or none, since active messages travel on other queue pairs then: set QP.Failover "+
			"alike")
	}
	// The receives first: a message of the peer can arrive from RTR on.
	err := p.postFirstReceives(&peer.QP)
	if err == nil {
		err = qp.Connect(peer.QP)
	}
	if err != nil {
		p.disconnect()
		return p.refuse("connect", err, "")
	}
	p.conn.maxAM = min(peer.BufferSize, w.longest)
	p.conn.handlers, p.conn.flush = peer.Handlers, peer.Flush
	p.credits.Connect(peer.AMBuffers)
	p.ending.move(stageOpen)
	p.receiving.aliveSinceProbe = true  // it has not been silent yet: the peer may still have to connect
	if len(p.receiving.toRepost) != 0 { // refused for now
		w.chores.repost(p)
	}
	return nil
}

// postFirstReceives takes the virtual queue pair to INIT and posts all buffers.
func (p *peerState) postFirstReceives(peer *ibverbx.BusinessCard) error {
	r, qp := &p.receiving, p.conn.qp
	if !r.ready {
		attr := verbs.QPAttr{State: verbs.StateInit, Access: qp.Config().Conn.Access}
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if err := qp.Modify(attr, mask, peer); err != nil {
			return err
		}
		for slot := range r.messages {
			r.toRepost = append(r.toRepost, uint32(slot))
		}
		r.ready = true
	}
	if err := p.postBuffers(); err != nil {
		return err
	}
	return qp.Err() // several queue pairs take what one of them then refuses permanently
}

// disconnect takes the virtual queue pair back to RESET after a Connect that has failed. It flushes
// the receives.
func (p *peerState) disconnect() {
	r := &p.receiving
	_ = p.conn.qp.Reset() // the error of Connect is the more useful one
	r.attempt++
	r.ready, r.toRepost = false, r.toRepost[:0]
}

// Connect connects two endpoints of this process.
func Connect(a, b *Endpoint) error {
	if a == nil || b == nil {
		return fmt.Errorf("transport: connect: %w: an endpoint is nil", verbs.ErrInvalid)
	}
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

// Card is an endpoint's description, which its peer needs to connect. It travels as JSON.
type Card struct {
	Version    int                  `json:"version"` // of the wire format: 2
	QP         ibverbx.BusinessCard `json:"qp"`
	AMBuffers  int                  `json:"am_buffers"`      // receive buffers for active messages
	BufferSize int                  `json:"buffer_size"`     // bytes of each buffer
	Handlers   uint64               `json:"handlers,string"` // set of the ids that have a handler
	Flush      ibverbx.RemoteMR     `json:"flush"`           // memory that a remote flush reads
}

// wireVersion is the version of the wire format that this package speaks. Version 1 had no
// wireAbort.
const wireVersion = 2

// Card describes the endpoint to its peer. The card lists the worker's handlers, so after the first
// card [Worker.Handle] accepts no more.
func (e *Endpoint) Card() (Card, error) {
	p := e.peer
	w := p.w
	w.mu.Lock()
	defer p.unlock()
	if p.ending.err != nil {
		return Card{}, p.refuse("card", p.ending.err, "")
	}
	qp, err := p.conn.qp.Card()
	if err != nil {
		return Card{}, p.refuse("card", err, "")
	}
	return Card{
		Version: wireVersion, QP: qp, AMBuffers: w.cfg.AMBuffers, BufferSize: w.cfg.BufferSize,
		Handlers: w.handlers.announce(), Flush: w.flushArea.Remote(),
	}, nil
}

// check returns an error if a peer's card is wrong.
func (c *Card) check(rails int) error {
	switch {
	case c.Version != wireVersion:
		return fmt.Errorf("%w: the peer speaks version %d, this end %d", verbs.ErrNotSupported, c.Version,
			wireVersion)
	case c.AMBuffers < 1 || c.AMBuffers > MaxAMBuffers:
		return fmt.Errorf("%w: card: am_buffers %d: must be 1 to %d", verbs.ErrInvalid, c.AMBuffers,
			MaxAMBuffers)
	case c.BufferSize < wireHeader+MaxHeader || c.BufferSize > 1<<30:
		return fmt.Errorf("%w: card: buffer_size %d: must be %d bytes to 1 GiB", verbs.ErrInvalid,
			c.BufferSize, wireHeader+MaxHeader)
	case c.Flush.Len() < uint64(8*rails):
		return fmt.Errorf("%w: card: flush area of %d bytes: %d queue pairs need %d", verbs.ErrInvalid,
			c.Flush.Len(), rails, 8*rails)
	}
	return nil
}
