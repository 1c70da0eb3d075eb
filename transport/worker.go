package transport

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// AMID names a handler of active messages: 0 to MaxAMID.
type AMID uint8

// MaxAMID is the largest id of an active message.
const MaxAMID AMID = 63

// Handler handles an active message. It runs inside progress; see the package's rules for
// callbacks.
type Handler func(m *Message)

const localWrite = verbs.AccessLocalWrite

// Worker makes progress for endpoints that share a virtual CQ, registered memory, and the handlers
// of active messages. It is safe for concurrent use.
//
// Two locks, always taken in this order: progressing is held by the one goroutine that makes
// progress and so runs callbacks; mu guards all state, and is never held while a callback runs.
type Worker struct {
	dom     *ibverbx.Domain
	cfg     Config
	longest int // message of a port, bytes

	progressing sync.Mutex
	events      []event      // what the present round of progress reports; guarded by progressing
	wcs         []ibverbx.WC // what it polls; guarded by progressing
	calling     calling      // what callback runs now; 0 for none; guarded by progressing

	mu         sync.Mutex
	cq         *ibverbx.VirtualCQ
	bounce     *bouncePool
	packing    int32       // bounce buffer that a pack function writes into now, or noBuffer
	flushArea  *ibverbx.MR // what the remote flushes of peers read
	handlers   [MaxAMID + 1]Handler
	handled    uint64       // set of ids that have a handler
	cardGiven  bool         // a card was given out: it lists the handlers, so Handle takes no more
	endpoints  []*peerState // by id; nil where one was released
	open       int          // endpoints that are not nil
	templates  templates
	watch      watch
	chores     chores
	scheduled  ring.FIFO[*peerState] // endpoints with pending requests, the next to be served first
	afterRound []event               // events that follow those of the present round
	round      uint64                // number of the present round of events, from 1 on
	dispatches uint64                // rounds of dispatchPending
	sinceClock int                   // rounds of progress since keepAlive last looked at the clock
	probeAt    time.Time             // when silent peers are probed next
	stats      counters
	gone       traffic     // of endpoints that were released
	closed     atomic.Bool // set with mu held; goroutines that wait read it without
	dead       atomic.Bool // likewise: a callback has left the worker
	deadBy     string      // which, if it is dead
	freed      bool        // free has run: Close is over

	sleep          sleepers
	missedProgress atomic.Bool // a goroutine could not make progress because another did

	completionPool, flushPool sync.Pool // see newPools
}

// pollBatch is how many completions a round of progress takes: enough to share the cost of the
// locks, few enough to stay in the cache.
const pollBatch = 64

// NewWorker makes a worker over the NICs of a domain, which several workers may share. The caller
// registers memory with the domain, and closes it after the worker.
func NewWorker(dom *ibverbx.Domain, cfg Config) (*Worker, error) {
	if dom == nil {
		return nil, fmt.Errorf("transport: new worker: %w: no domain", verbs.ErrInvalid)
	}
	limits, err := limitsOf(dom, int(cfg.QP.Conn.Port))
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(&limits)
	if err := cfg.validate(&limits, len(dom.Devices())); err != nil {
		return nil, err
	}
	depth, err := cfg.fitEndpoints(limits.cqe)
	if err != nil {
		return nil, err
	}
	w := &Worker{dom: dom, cfg: cfg, longest: limits.message.most, packing: noBuffer, round: 1,
		wcs:    make([]ibverbx.WC, pollBatch),
		events: make([]event, 0, 2*pollBatch)}
	fail := func(err error) (*Worker, error) {
		return nil, errors.Join(fmt.Errorf("transport: new worker: %w", err), w.free())
	}
	if w.cq, err = dom.NewCQ(depth); err != nil {
		return fail(err)
	}
	if w.bounce, err = newBouncePool(dom, cfg.BounceBuffers, cfg.BufferSize); err != nil {
		return fail(err)
	}
	if w.flushArea, err = dom.Register(make([]byte, 8*ibverbx.MaxRails), verbs.AccessRemoteRead); err != nil {
		return fail(err)
	}
	w.probeAt = time.Now().Add(cfg.KeepAlive)
	w.templates = newTemplates(cfg.QP.MaxInline)
	w.newPools()
	w.watch.begin(dom)
	return w, nil
}

// Domain is the domain that the worker was made over: register memory with it.
func (w *Worker) Domain() *ibverbx.Domain { return w.dom }

// Config is the configuration in force.
func (w *Worker) Config() Config { return w.cfg }

// MaxMessage is the longest message of the NICs' ports in bytes: over a single queue pair no put or
// get is longer.
func (w *Worker) MaxMessage() int { return w.longest }

// Handle sets the handler for active messages with an id. It is refused for an id that has one, and
// once an endpoint has given out its card, which lists the ids.
func (w *Worker) Handle(id AMID, h Handler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed.Load():
		return fmt.Errorf("transport: handle: %w", ErrClosed)
	case w.dead.Load():
		return w.deadError("handle")
	case id > MaxAMID || h == nil:
		return fmt.Errorf("transport: handle: %w: id %d must be 0 to %d, and the handler not nil",
			verbs.ErrInvalid, id, MaxAMID)
	case w.handlers[id] != nil:
		return fmt.Errorf("transport: handle: %w: id %d has a handler", verbs.ErrInvalid, id)
	case w.cardGiven:
		return fmt.Errorf("transport: handle: %w: id %d: an endpoint has given out its card, which lists "+
			"the handlers: set them before", verbs.ErrInvalid, id)
	}
	w.handlers[id] = h
	w.handled |= 1 << id
	return nil
}

// Close closes the worker. It aborts the endpoints that are open, and runs the callbacks that
// follow from it; to lose nothing, call Close of each endpoint before. Messages that the program
// keeps stay readable. A dead worker gives everything back, too, and Close returns ErrWorkerDead:
// completions that had not fired do not. A callback may leave Close itself so, by a panic or
// runtime.Goexit: call Close again then.
func (w *Worker) Close() error {
	w.mu.Lock()
	if w.closed.Swap(true) {
		defer w.mu.Unlock()
		if w.dead.Load() && !w.freed { // it may have left an earlier Close
			return w.free()
		}
		return fmt.Errorf("transport: close worker: %w", ErrClosed)
	}
	var errs []error
	var told []*peerState
	for _, p := range w.endpoints {
		if p != nil && p.sayAborted() {
			told = append(told, p)
		}
	}
	letOut(told)
	for _, p := range w.endpoints {
		if p != nil && p.ending.stage < stageAborted {
			errs = append(errs, p.abort(ErrClosed, nil))
		}
	}
	w.unlock()
	w.sleep.stop()
	w.progressing.Lock()
	for w.progress() != 0 {
	}
	w.progressing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(append(errs, w.free())...)
}

// free releases what the worker holds, if it was not released already.
func (w *Worker) free() error {
	errs := []error{w.deadError("close worker")}
	if w.freed {
		return errors.Join(errs...)
	}
	if w.freed = true; w.dead.Load() {
		w.bury()
	}
	w.watch.end()
	if w.cq != nil {
		errs = append(errs, w.cq.Close())
	}
	if w.bounce != nil && w.bounce.mr != nil {
		errs = append(errs, w.bounce.mr.Close())
	}
	if w.flushArea != nil {
		errs = append(errs, w.flushArea.Close())
	}
	return errors.Join(errs...)
}
