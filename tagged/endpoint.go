package tagged

import (
	"fmt"

	"ibverbx/internal/errwrap"
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
	// Invariant: reads is the sum of inFlight over the messages being read, which are active; a
	// message is in readQueue if and only if reads for part of it are still to be posted. Once err
	// is set, queue, waiting, readQueue, posted and partial.req are empty: only the reads in flight
	// are left, and they end with their completions.
	_ guard.NoCopy

	w       *Worker
	tep     *transport.Endpoint
	name    string
	value   any
	onError func(*Endpoint, error)

	stage        stage
	dial         dial  // how far an endpoint on demand is connected
	err          error // why the endpoint is out of service; nil while it is in service
	failedBusy   bool  // something was outstanding when err was set; false while Close says goodbye
	limits       transport.Limits
	transportEnd transport.Completion // fires once nothing of an aborted transport endpoint is outstanding

	// The send direction. There are three queues, because each waits for something else: see push.
	queue     list.List[Request] // sends that have not gone out completely
	notices   ring.FIFO[uint32]  // ids of matched messages to notify the peer of: see queueNotice
	readQueue list.List[reading] // messages for which reads are still to be posted, the next in turn first
	reads     int                // chunks in flight, at most Config.Window
	active    int                // messages that are being read
	waiting   sendTable          // sends that wait for the notice of their match
	// scheduled is set while pending is in the transport's queue: resume pushes when resources are
	// back.
	scheduled bool
	pending   transport.Pending

	ledger  flow.Ledger // the window, in both directions: see package flow
	traffic traffic
	partial assembly   // the message that is arriving in fragments
	posted  posted     // receives that wait for a message of this peer
	kept    unexpected // messages of this peer that wait for a receive; matching.unexpected has them, too

	inDeparted list.Link[Endpoint] // of leftovers.departed
	joint
}

// joint is the part of an endpoint that workers use which have joined.
type joint struct {
	rank  int                 // of the peer; -1 if the program has made the endpoint
	loop  *transport.Endpoint // of the endpoint to this process itself: where its messages arrive
	relay *relay              // routed messages; nil if the endpoint carries none
	// peerWindow is the window that the peer's card announces: sends begin once both ends are
	// connected.
	peerWindow int
}

// stage is how far an endpoint's life has come. It only moves forward. A failure is recorded
// separately: see Endpoint.err.
type stage uint8

const (
	stageNew     stage = iota // Connect has not succeeded
	stageOpen                 // connected
	stageClosing              // Close was called: no new sends
	stageParting              // every request has ended, and the transport says goodbye
	stageEnded                // Close or Abort has finished
)

// NewEndpoint makes an endpoint. Exchange [Endpoint.Card] with the peer and call
// [Endpoint.Connect].
func (w *Worker) NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newEndpoint(cfg)
}

// newEndpoint is NewEndpoint with the lock held.
func (w *Worker) newEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	if w.closed {
		return nil, refuse("new endpoint", ErrClosed, "")
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("endpoint %d", w.endpoints.made)
	}
	e := &Endpoint{w: w, joint: joint{rank: -1}, name: cfg.Name, value: cfg.Value, onError: cfg.OnError,
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

// Peer returns the endpoint to a rank of a worker that has joined; that to this process itself
// leads to its own receives. With Config.OnDemand the first call makes the endpoint and returns
// before the peer has connected; sends wait until it has. If no rank is left on the way to it, Peer
// fails. An endpoint that has ended stays: [Endpoint.Err] says why.
func (w *Worker) Peer(rank int) (*Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ranks.peer(rank)
}

// Name returns EndpointConfig.Name, or its default.
func (e *Endpoint) Name() string { return e.name }

// String returns the endpoint's name.
func (e *Endpoint) String() string { return e.name }

// Rank returns the peer's rank among the processes that have joined: see [Join]. It is -1 for an
// endpoint of [Worker.NewEndpoint].
func (e *Endpoint) Rank() int { return e.rank }

// Value returns EndpointConfig.Value.
func (e *Endpoint) Value() any { return e.value }

// Transport returns the underlying transport endpoint, for puts, gets, atomics and the program's
// own active messages. The tagged endpoint closes it: the program must not.
func (e *Endpoint) Transport() *transport.Endpoint { return e.tep }

// Worker returns the endpoint's worker.
func (e *Endpoint) Worker() *Worker { return e.w }

// Err returns why the endpoint has ended; nil while it has not.
func (e *Endpoint) Err() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err
}

// admit returns why a send with a tag may not start; nil if it may.
func (e *Endpoint) admit(op string, tag uint64) error {
	switch {
	case e.err != nil:
		return e.err
	case e.stage == stageNew:
		return e.refuse(op, ErrNotConnected, "call Connect first")
	case e.stage > stageOpen:
		return e.refuse(op, ErrClosed, "")
	case tag > MaxTag && op != opCollective:
		return e.w.teams.refuses(op, e, tag, Exact)
	}
	return nil
}

// check panics if an invariant of the endpoint is broken. Builds with the race detector call it
// before they release the lock after a call or a callback on an endpoint.
func (e *Endpoint) check() {
	if err := e.broken(); err != nil {
		panic(fmt.Sprintf("tagged: %s: invariant: %v", e.name, err))
	}
}

// broken returns which invariant does not hold; nil if all do.
func (e *Endpoint) broken() error {
	if err := e.ledger.Check(); err != nil {
		return err
	}
	a := &e.partial
	switch {
	case e.reads < 0 || e.reads > e.w.cfg.Window:
		return fmt.Errorf("%d reads in flight: the window is %d", e.reads, e.w.cfg.Window)
	case e.active < e.readQueue.Len():
		return fmt.Errorf("%d messages are being read, and %d in the queue", e.active, e.readQueue.Len())
	case e.notices.Len() > e.w.cfg.MaxUnexpected:
		return fmt.Errorf("%d notices wait: the window is %d", e.notices.Len(), e.w.cfg.MaxUnexpected)
	case a.length == 0 && *a != assembly{}, a.length != 0 && (a.got <= 0 || a.got >= a.length),
		a.req != nil && a.in != nil:
		return fmt.Errorf("a message in fragments: %d of %d bytes", a.got, a.length)
	case e.err == nil:
		return nil
	case !e.queue.Empty() || e.waiting.count() != 0 || !e.readQueue.Empty() || a.req != nil ||
		e.posted.count != 0:
		return fmt.Errorf("the endpoint has failed, and has requests: %d, %d, %d, receive %t", e.queue.Len(),
			e.waiting.count(), e.readQueue.Len(), a.req != nil)
	}
	return nil
}

// refuse returns the error of a call on an endpoint that had no effect.
func (e *Endpoint) refuse(op string, err error, detail string) error {
	if detail != "" {
		return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %s: %w: %s", op, e.name, err, detail)}
	}
	return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %s: %w", op, e.name, err)}
}
