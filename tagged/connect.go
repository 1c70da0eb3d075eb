package tagged

import (
	"encoding/json"
	"fmt"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Connect connects to the endpoint that made the card. After an error other than ErrClosed it can
// be called again.
func (e *Endpoint) Connect(peer Card) error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.err != nil:
		return e.err
	case e.stage > stageOpen:
		return e.refuse("connect", ErrClosed, "")
	case e.stage == stageOpen:
		return e.refuse("connect", verbs.ErrInvalid, "the endpoint is connected")
	}
	if err := e.connect(peer); err != nil {
		return err
	}
	e.ledger.Connect(e.peerWindow)
	e.stage = stageOpen
	return nil
}

// connect connects the endpoint by its peer's card. No message goes out before ledger.Connect.
func (e *Endpoint) connect(peer Card) error {
	if err := peer.check(); err != nil {
		return e.refuse("connect", err, "")
	}
	if err := e.tep.Connect(peer.Transport); err != nil {
		return err
	}
	e.peerWindow, e.limits = peer.MaxUnexpected, e.tep.Limits()
	return nil
}

// connected opens an endpoint whose both ends are connected: the sends that wait go out.
func (e *Endpoint) connected() {
	e.dial = dialDone
	e.ledger.Connect(e.peerWindow)
	if e.w.cfg.OnDemand && adjacent(e.rank, e.w.cfg.Rank) {
		e.relay = &relay{e: e}
	}
	if e.canPush() {
		e.kick()
	}
}

// Connect connects two endpoints of this process.
func Connect(a, b *Endpoint) error {
	if a == nil || b == nil {
		return refuse("connect", verbs.ErrInvalid, "an endpoint is nil")
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

// Card is an endpoint's description for its peer, which connects with it. It travels as JSON.
type Card struct {
	Version       int            `json:"version"` // of the wire format: 1
	MaxUnexpected int            `json:"max_unexpected"`
	Transport     transport.Card `json:"transport"`
}

// MarshalJSON refuses the zero Card, which no endpoint has: a list of cards with an empty place
// could be sent, but not read.
func (c Card) MarshalJSON() ([]byte, error) {
	if len(c.Transport.QP.QPNums) == 0 {
		return nil, fmt.Errorf("tagged: card: %w: transport.qp names no queue pair: it is no card of an "+
			"endpoint; in a list give each place one, or make it a list of *Card with nil places",
			verbs.ErrInvalid)
	}
	type plain Card // without this method
	return json.Marshal(plain(c))
}

// wireVersion is the version of the wire format that this package speaks.
const wireVersion = 1

// leastBuffer is the least length of a transport buffer: an announcement of one piece on 64 NICs
// fits.
const leastBuffer = 416

// leastAMBcopy is what every peer takes in an active message: leastBuffer without the transport's
// header.
const leastAMBcopy = leastBuffer - 8

// Card describes the endpoint to its peer.
func (e *Endpoint) Card() (Card, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.card()
}

// card is Card with the lock held.
func (e *Endpoint) card() (Card, error) {
	if e.err != nil {
		return Card{}, e.err
	}
	t, err := e.tep.Card()
	return Card{Version: wireVersion, MaxUnexpected: e.w.cfg.MaxUnexpected, Transport: t}, err
}

// check returns an error if a peer's card is wrong.
func (c *Card) check() error {
	switch {
	case c.Version != wireVersion:
		return fmt.Errorf("%w: the peer speaks version %d, this end %d", verbs.ErrNotSupported, c.Version,
			wireVersion)
	case c.MaxUnexpected < 1 || c.MaxUnexpected > maxWindow:
		return fmt.Errorf("%w: card: max_unexpected %d: must be 1 to %d", verbs.ErrInvalid, c.MaxUnexpected,
			maxWindow)
	case c.Transport.BufferSize < leastBuffer:
		return fmt.Errorf("%w: card: buffer_size %d: must be at least %d", verbs.ErrInvalid,
			c.Transport.BufferSize, leastBuffer)
	}
	for id := amEager; id <= amBatch; id++ {
		if c.Transport.Handlers&(1<<id) == 0 {
			return fmt.Errorf("%w: card: no handler for active message %d: the peer has no tagged messages",
				verbs.ErrInvalid, id)
		}
	}
	return nil
}
