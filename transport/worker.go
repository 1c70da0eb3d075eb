package transport

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

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
	wcs         []ibverbx.WC // what a round of progress polls; guarded by progressing

	mu        sync.Mutex
	life      lifetime
	round     round
	cq        *ibverbx.VirtualCQ
	bounce    bouncePool
	flushArea *ibverbx.MR // the memory that the remote flushes of peers read
	endpoints endpointTable
	handlers  handlerTable
	templates templates
	schedule  schedule
	chores    chores
	probes    probeClock
	watch     watch
	stats     counters
	events    eventQueue // has a lock of its own

	abortPatience time.Duration // of drainAborts

	sleep                     sleepers
	completionPool, flushPool sync.Pool // see newPools
}

// pollBatch is the number of completions that a round of progress takes: enough to share the cost
// of the locks, few enough to stay in the cache.
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
	depth, err := cfg.fitEndpoints(limits.cqe, len(dom.Devices()))
	if err != nil {
		return nil, err
	}
	w := &Worker{dom: dom, cfg: cfg, longest: limits.message.most, round: newRound(),
		wcs: make([]ibverbx.WC, pollBatch), abortPatience: abortPatience}
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
	w.probes.at = time.Now().Add(cfg.KeepAlive)
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

// Close closes the worker. It aborts the endpoints that are open, and runs the callbacks that
// follow from it; to lose nothing, call Close of each endpoint before. Messages that the program
// keeps stay readable. A dead worker gives everything back, too, and Close returns ErrWorkerDead:
// completions that had not fired do not. A callback may leave Close itself so, by a panic or
// runtime.Goexit: call Close again then.
func (w *Worker) Close() error {
	w.mu.Lock()
	if !w.life.close() {
		defer w.mu.Unlock()
		if w.life.dead() && !w.life.released() { // it may have left an earlier Close
			return w.free()
		}
		return fmt.Errorf("transport: close worker: %w", ErrClosed)
	}
	var errs []error
	var notified []*peerState
	for p := range w.endpoints.all {
		if p.postAbort() {
			notified = append(notified, p)
		}
	}
	drainAborts(notified)
	for p := range w.endpoints.all {
		if p.ending.stage < stageAborted {
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
	errs := []error{w.life.deadError("close worker")}
	if !w.life.release() {
		return errors.Join(errs...)
	}
	if w.life.dead() {
		w.releaseDead()
	}
	w.watch.end()
	if w.cq != nil {
		errs = append(errs, w.cq.Close())
	}
	if w.bounce.mr != nil {
		errs = append(errs, w.bounce.mr.Close())
	}
	if w.flushArea != nil {
		errs = append(errs, w.flushArea.Close())
	}
	return errors.Join(errs...)
}

// endpointTable is the endpoints of a worker by id, which is part of every work-request id. The
// place of an endpoint that is released goes to the next one that is made. Worker.mu guards it.
//
// Invariant: open counts the places that are not nil, and the endpoint in place i has id i.
type endpointTable struct {
	places []*peerState
	open   int
}

// free returns the lowest id that no endpoint has.
func (t *endpointTable) free() int {
	if i := slices.Index(t.places, nil); i >= 0 {
		return i
	}
	return len(t.places)
}

// add puts an endpoint into its place, which must be free.
func (t *endpointTable) add(p *peerState) {
	if int(p.id) == len(t.places) {
		t.places = append(t.places, nil)
	}
	t.places[p.id] = p
	t.open++
}

// remove takes an endpoint out.
func (t *endpointTable) remove(p *peerState) {
	t.places[p.id] = nil
	t.open--
}

// at returns the endpoint with an id; nil if there is none.
func (t *endpointTable) at(id uint32) *peerState {
	if int(id) >= len(t.places) {
		return nil
	}
	return t.places[id]
}

// all yields the endpoints by id. They may be removed on the way.
func (t *endpointTable) all(yield func(*peerState) bool) {
	for _, p := range t.places {
		if p != nil && !yield(p) {
			return
		}
	}
}

// NewEndpoint makes an endpoint with a virtual queue pair of its own. Exchange [Endpoint.Card] with
// the peer and call [Endpoint.Connect]. While Config.MaxEndpoints are open, the error is
// [ErrNoRoom].
func (w *Worker) NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	w.mu.Lock()
	defer w.unlock()
	if w.life.closed() {
		return nil, fmt.Errorf("transport: new endpoint: %w", ErrClosed)
	}
	if err := w.life.deadError("new endpoint"); err != nil {
		return nil, err
	}
	id := w.endpoints.free()
	if id >= w.cfg.MaxEndpoints {
		return nil, fmt.Errorf("transport: new endpoint: %w: %d endpoints are open: raise "+
			"Config.MaxEndpoints, or close one and make progress", ErrNoRoom, w.endpoints.open)
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("endpoint %d", id)
	}
	p := &peerState{w: w, id: uint32(id), cfg: cfg}
	if err := p.init(); err != nil {
		return nil, fmt.Errorf("transport: new endpoint: %w", err)
	}
	w.endpoints.add(p)
	return &p.views[0], nil
}
