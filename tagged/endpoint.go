package tagged

import (
	"fmt"

	"ibverbx/internal/flow"
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/internal/ring"
	"ibverbx/transport"
)

// Endpoint is one peer. It is safe for concurrent use; calls from one goroutine take effect in
// their order. It must not be copied.
type Endpoint struct {
	// Worker.mu guards all of it.
	//
	// Invariant: reads is the sum of under over the messages that are being read, which are active;
	// one of them is in readQueue if and only if some of it has not been asked for. Once err is
	// set, queue, waiting, readQueue, posted and partial.req are empty: only reads under way are
	// left, and end with their completions.
	_ guard.NoCopy

	w       *Worker
	tep     *transport.Endpoint
	name    string
	value   any
	onError func(*Endpoint, error)

	stage        stage
	err          error // why the endpoint serves no more
	limits       transport.Limits
	transportEnd transport.Completion // fires once nothing of an aborted transport endpoint is outstanding

	// The send direction. What has to go out waits in three queues, because each waits for
	// something else: see push.
	queue     list.List[Request] // sends that have not gone out, or not wholly
	notices   ring.FIFO[uint32]  // numbers of messages whose match the peer waits for: see queueNotice
	readQueue list.List[reading] // messages with bytes that no read has asked for, the next in turn first
	reads     int                // chunks under way, Config.Window at most
	active    int                // messages that are being read
	waiting   sendTable          // sends that wait for the notice of their match
	// Whether pending is in the transport's queue: then resume pushes, once resources are back.
	scheduled bool
	pending   transport.Pending

	ledger  flow.Ledger // the window, in both directions: see package flow
	traffic traffic
	partial assembly   // the message that is arriving in fragments
	posted  posted     // receives that wait for a message of this peer
	kept    unexpected // messages of this peer that wait for a receive; they are in matching.unexpected, too

	inDeparted list.Link[Endpoint] // of leftovers.departed
}

// stage is how far an endpoint's life has come. It only moves forward. A failure is apart from it:
// see Endpoint.err.
type stage uint8

const (
	stageNew     stage = iota // Connect has not succeeded
	stageOpen                 // connected
	stageClosing              // Close was called: no new sends
	stageParting              // every request has ended, and the transport says goodbye
	stageEnded                // Close or Abort has come to its end
)

// NewEndpoint makes an endpoint. Exchange [Endpoint.Card] with the peer and call
// [Endpoint.Connect].
func (w *Worker) NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, refuse("new endpoint", ErrClosed, "")
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("endpoint %d", w.endpoints.made)
	}
	e := &Endpoint{w: w, name: cfg.Name, value: cfg.Value, onError: cfg.OnError,
		ledger: flow.New(w.cfg.MaxUnexpected)}
	e.pending.Func = e.resume
	e.transportEnd.Init(1, e.transportEnded)
	var err error
	below := transport.EndpointConfig{Name: cfg.Name, Value: e, OnError: e.peerFailed}
	if e.tep, err = w.tw.NewEndpoint(below); err != nil {
		return nil, err
	}
	w.endpoints.add(e)
	return e, nil
}

// Name is EndpointConfig.Name, or the default that was made for it.
func (e *Endpoint) Name() string { return e.name }

// Value is EndpointConfig.Value.
func (e *Endpoint) Value() any { return e.value }

// Transport is the transport endpoint beneath, for puts, gets, atomics and the program's own active
// messages. The tagged endpoint closes it: the program must not.
func (e *Endpoint) Transport() *transport.Endpoint { return e.tep }

// Worker is the worker of the endpoint.
func (e *Endpoint) Worker() *Worker { return e.w }

// Err says why the endpoint serves no more; nil while it does.
func (e *Endpoint) Err() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err
}

// admit says why a send may not start; nil if it may.
func (e *Endpoint) admit(op string) error {
	switch {
	case e.err != nil:
		return e.err
	case e.stage == stageNew:
		return e.refuse(op, ErrNotConnected, "call Connect first")
	case e.stage > stageOpen:
		return e.refuse(op, ErrClosed, "")
	}
	return nil
}
