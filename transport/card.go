package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Card is what two endpoints tell each other to connect. It travels as JSON.
type Card struct {
	Version    int                  `json:"version"` // of the wire format: 1
	QP         ibverbx.BusinessCard `json:"qp"`
	AMBuffers  int                  `json:"amBuffers"`  // receive buffers for active messages
	BufferSize int                  `json:"bufferSize"` // of each, bytes
	Handlers   uint64               `json:"handlers,string"`
	Flush      ibverbx.RemoteMR     `json:"flush"` // memory that a remote flush reads
}

// wireVersion is the version of the wire format that this package speaks.
const wireVersion = 1

// Card describes the endpoint to its peer. From the first one on the worker takes no more handlers:
// the card lists them.
func (e *Endpoint) Card() (Card, error) {
	c := e.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err != nil {
		return Card{}, c.refuse("card", c.err, "")
	}
	qp, err := c.qp.Card()
	if err != nil {
		return Card{}, c.refuse("card", err, "")
	}
	w.shown = true
	return Card{
		Version: wireVersion, QP: qp, AMBuffers: w.cfg.AMBuffers, BufferSize: w.cfg.BufferSize,
		Handlers: w.handled, Flush: w.flushArea.Remote(),
	}, nil
}

// check says what is wrong with a peer's card.
func (p *Card) check(rails int) error {
	switch {
	case p.Version != wireVersion:
		return fmt.Errorf("%w: the peer speaks version %d, this end %d", verbs.ErrNotSupported, p.Version,
			wireVersion)
	case p.AMBuffers < 1 || p.AMBuffers > MaxAMBuffers:
		return fmt.Errorf("%w: card: amBuffers %d: must be 1 to %d", verbs.ErrInvalid, p.AMBuffers,
			MaxAMBuffers)
	case p.BufferSize < wireHeader+MaxHeader || p.BufferSize > 1<<30:
		return fmt.Errorf("%w: card: bufferSize %d: must be %d bytes to 1 GiB", verbs.ErrInvalid,
			p.BufferSize, wireHeader+MaxHeader)
	case p.Flush.Len() < uint64(8*rails):
		return fmt.Errorf("%w: card: flush area of %d bytes: %d queue pairs need %d", verbs.ErrInvalid,
			p.Flush.Len(), rails, 8*rails)
	}
	return nil
}

// Connect connects to the endpoint that sent the card. What the peer sends before that is repeated
// by its NIC for as long as the retries of Config.QP.Conn allow. After an error other than
// ErrClosed it can be called again.
func (e *Endpoint) Connect(peer Card) error {
	c := e.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err != nil {
		return c.refuse("connect", c.err, "")
	}
	if c.connected {
		return c.refuse("connect", verbs.ErrInvalid, "the endpoint is connected")
	}
	if err := peer.check(c.qp.DataRails()); err != nil {
		return c.refuse("connect", err, "")
	}
	if err := c.qp.Connect(peer.QP); err != nil {
		if c.qp.State() != verbs.StateReset {
			_ = c.qp.Reset() // the error of Connect says more
		}
		return c.refuse("connect", err, "")
	}
	c.peer = peer
	c.credits, c.maxAM = peer.AMBuffers, peer.BufferSize
	c.connected = true
	for slot := range c.messages {
		c.repost(uint32(slot), true)
	}
	w.postReceives()
	if c.err != nil {
		return c.err // a NIC has refused the buffers
	}
	return nil
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
