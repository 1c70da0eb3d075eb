package tagged

import (
	"fmt"

	"ibverbx/transport"
)

// Endpoint is one peer. It is safe for concurrent use; calls from one goroutine take effect in
// their order. Worker.mu guards it.
type Endpoint struct {
	w       *Worker
	tep     *transport.Endpoint
	name    string
	value   any
	onError func(*Endpoint, error)

	connected bool
	closing   bool
	parting   bool // everything has ended, and the transport says goodbye
	ended     bool // the caller has done with it
	err       error
	limits    transport.Limits

	// The send direction. What has to go out waits in three queues, because each waits for
	// something else: see push.
	queue     requestList // sends that have not gone out, or not wholly
	notices   noticeQueue
	readings  readingRing
	reads     int // chunks under way
	active    int // messages that are being read
	scheduled bool
	pending   transport.Pending
	waiting   sendTable // sends that wait to hear of their match

	ledger  ledger   // of both directions
	partial assembly // of the receive direction
	gone    transport.Completion
}

// NewEndpoint makes an endpoint. Exchange [Endpoint.Card] with the peer and call
// [Endpoint.Connect].
func (w *Worker) NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, refuse("new endpoint", ErrClosed, "")
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("endpoint %d", w.numbered)
	}
	e := &Endpoint{w: w, name: cfg.Name, value: cfg.Value, onError: cfg.OnError}
	e.pending.Func = e.resume
	e.ledger.open, e.ledger.keeps = w.cfg.MaxUnexpected, w.cfg.MaxUnexpected
	e.gone.Init(1, e.released)
	var err error
	if e.tep, err = w.tw.NewEndpoint(transport.EndpointConfig{Name: cfg.Name, Value: e,
		OnError: e.peerFailed}); err != nil {
		return nil, err
	}
	w.numbered++
	w.endpoints = append(w.endpoints, e)
	return e, nil
}

// Name says who the peer is.
func (e *Endpoint) Name() string { return e.name }

// Value is EndpointConfig.Value.
func (e *Endpoint) Value() any { return e.value }

// Transport is the transport endpoint beneath, for puts, gets, atomics and the program's own active
// messages. Closing it is the tagged endpoint's business.
func (e *Endpoint) Transport() *transport.Endpoint { return e.tep }

// Worker is the worker of the endpoint.
func (e *Endpoint) Worker() *Worker { return e.w }

// Err says why the endpoint serves no more; nil while it does.
func (e *Endpoint) Err() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err
}

// admit says whether a send may start.
func (e *Endpoint) admit(op string) error {
	switch {
	case e.err != nil:
		return e.err
	case !e.connected:
		return e.refuse(op, ErrNotConnected, "call Connect first")
	case e.closing:
		return e.refuse(op, ErrClosed, "")
	}
	return nil
}
