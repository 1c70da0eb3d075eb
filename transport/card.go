package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Card is what the peer has to know to connect. It travels as JSON.
type Card struct {
	Version    int                  `json:"version"` // of the wire format: 2
	QP         ibverbx.BusinessCard `json:"qp"`
	AMBuffers  int                  `json:"amBuffers"`       // receive buffers for active messages
	BufferSize int                  `json:"bufferSize"`      // of each, bytes
	Handlers   uint64               `json:"handlers,string"` // set of the ids that have a handler
	Flush      ibverbx.RemoteMR     `json:"flush"`           // memory that a remote flush reads
}

// wireVersion is the version of the wire format that this package speaks. Version 1 had no
// wireAbort.
const wireVersion = 2

// Card describes the endpoint to its peer. The card lists the worker's handlers, so after the first
// one [Worker.Handle] takes no more.
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

// check returns what is wrong with a peer's card; nil if nothing is.
func (c *Card) check(rails int) error {
	switch {
	case c.Version != wireVersion:
		return fmt.Errorf("%w: the peer speaks version %d, this end %d", verbs.ErrNotSupported, c.Version,
			wireVersion)
	case c.AMBuffers < 1 || c.AMBuffers > MaxAMBuffers:
		return fmt.Errorf("%w: card: amBuffers %d: must be 1 to %d", verbs.ErrInvalid, c.AMBuffers,
			MaxAMBuffers)
	case c.BufferSize < wireHeader+MaxHeader || c.BufferSize > 1<<30:
		return fmt.Errorf("%w: card: bufferSize %d: must be %d bytes to 1 GiB", verbs.ErrInvalid,
			c.BufferSize, wireHeader+MaxHeader)
	case c.Flush.Len() < uint64(8*rails):
		return fmt.Errorf("%w: card: flush area of %d bytes: %d queue pairs need %d", verbs.ErrInvalid,
			c.Flush.Len(), rails, 8*rails)
	}
	return nil
}
