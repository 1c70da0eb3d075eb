package tagged

import "ibverbx/verbs"

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
	if err := peer.check(); err != nil {
		return e.refuse("connect", err, "")
	}
	if err := e.tep.Connect(peer.Transport); err != nil {
		return err
	}
	e.ledger.Connect(peer.MaxUnexpected)
	e.limits = e.tep.Limits()
	e.stage = stageOpen
	return nil
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
