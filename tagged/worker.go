package tagged

import (
	"errors"
	"math/rand/v2"
	"sync"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Worker holds the receives that wait for messages of its endpoints, and the messages that wait for
// receives. It is safe for concurrent use.
//
// One lock, mu, guards everything. It is taken before the transport's lock and never while that is
// held: the transport holds no lock when it calls back.
type Worker struct {
	_   guard.NoCopy
	cfg Config
	dom *ibverbx.Domain
	tw  *transport.Worker

	mu        sync.Mutex
	closed    bool
	endpoints endpointList
	matching  matching
	leftovers leftovers
	failed    []*Endpoint // endpoints whose OnError is to be called: see unlockAndReport
	regions   regionTable
	stats     counters
	spares    spares
	outgoing  outgoing
	ranks     ranks
}

// NewWorker makes a worker, with a transport worker of its own, over the NICs of a domain. The
// caller keeps the domain and closes it after the worker; several workers may share one.
func NewWorker(dom *ibverbx.Domain, cfg Config) (*Worker, error) {
	if cfg.Rank != 0 || cfg.Size != 0 || cfg.Exchange != nil || cfg.OnDemand {
		return nil, refuse("new worker", verbs.ErrInvalid, "Config has a Rank, Size, Exchange or OnDemand: "+
			"call Join")
	}
	return newWorker(dom, cfg)
}

// newWorker makes a worker without endpoints.
func newWorker(dom *ibverbx.Domain, cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tw, err := transport.NewWorker(dom, cfg.Transport)
	if err != nil {
		return nil, err
	}
	cfg.Transport = tw.Config()
	cfg.Chunk = min(cfg.Chunk, tw.MaxMessage()) // a single queue pair does not fragment
	w := &Worker{cfg: cfg, dom: dom, tw: tw, leftovers: leftovers{most: cfg.MaxLeftover}}
	w.matching.init(rand.Uint64())
	w.spares.init(&cfg)
	w.outgoing.init(cfg.Transport.BufferSize)
	for id := amEager; id <= amRoute; id++ {
		if err := tw.Handle(id, w.arrived); err != nil {
			return nil, errors.Join(err, tw.Close())
		}
	}
	return w, nil
}

// Transport returns the underlying transport worker. The program may set handlers for other active
// messages there, with ids below FirstAMID, before it asks for the first endpoint's card. It may
// also make endpoints of its own there; if a peer of one sends messages of this package, that
// endpoint is aborted.
func (w *Worker) Transport() *transport.Worker { return w.tw }

// Config returns the configuration in force, with its defaults filled in.
func (w *Worker) Config() Config { return w.cfg }

// Progress handles what has completed and arrived, and sends what can go out. It never blocks. It
// returns how many events it handled; 0 means that there were none, or that another goroutine is
// making progress.
func (w *Worker) Progress() int { return w.tw.Progress() }

// Start has a goroutine make progress until Close. It polls for a while and then sleeps until the
// NICs have an event; see [transport.Worker.Start].
func (w *Worker) Start() error { return w.tw.Start() }

// unlockAndReport ends a callback of the transport: it calls OnError of the endpoints that have
// failed, with mu released, and returns with mu released.
func (w *Worker) unlockAndReport() {
	for len(w.failed) != 0 {
		e := w.failed[0]
		w.failed = w.failed[1:]
		err := e.err
		if e.onError == nil {
			continue
		}
		w.mu.Unlock()
		e.onError(e, err)
		w.mu.Lock()
	}
	w.mu.Unlock()
}

// Close closes the worker and its regions. It aborts open endpoints, and completes every request
// that is not done with ErrClosed. To end in order, close each endpoint first. Like
// [Endpoint.Abort], it spends at most a millisecond on each open endpoint. If a callback leaves
// Close by a panic or runtime.Goexit, call it again: see [transport.Worker.Close].
func (w *Worker) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		if err := w.tw.Close(); errors.Is(err, transport.ErrWorkerDead) { // an earlier Close was left
			return errors.Join(err, w.free())
		}
		return refuse("close worker", ErrClosed, "")
	}
	w.closed = true
	err := refuse("worker", ErrClosed, "")
	var errs []error
	for _, e := range w.endpoints.list {
		errs = append(errs, e.end(err))
	}
	w.endpoints.list = nil
	w.matching.posted.endAll(err)
	w.mu.Unlock()
	return errors.Join(append(errs, w.tw.Close(), w.free())...)
}

// free releases what the worker holds itself, once its transport worker is closed.
func (w *Worker) free() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := w.matching.unexpected.all.First(); e != nil; e = w.matching.unexpected.all.First() {
		w.drop(e.in)
	}
	for e := w.matching.claimed.First(); e != nil; e = w.matching.claimed.First() {
		w.drop(e.in)
	}
	return w.regions.close()
}

// endpointList holds the endpoints that the program has not closed or aborted. Worker.mu guards it.
//
// Invariant: alive counts the endpoints in service, whose err is nil. made counts those made so far
// and numbers their default names. last is why the most recent one ended; nil before. The endpoint
// to this process itself counts in alive only if there is no other rank.
type endpointList struct {
	list  []*Endpoint
	alive int
	made  int
	last  error
}

// add adds a new endpoint.
func (l *endpointList) add(e *Endpoint) {
	l.made++
	l.alive++
	l.list = append(l.list, e)
}

// ended counts an endpoint out of service, because of err.
func (l *endpointList) ended(e *Endpoint, err error) {
	if e.loop != nil && e.w.cfg.Size > 1 {
		return
	}
	l.alive--
	l.last = err
}

// remove removes an endpoint, if it is in the list.
func (l *endpointList) remove(e *Endpoint) {
	for i := range l.list {
		if l.list[i] == e {
			l.list = append(l.list[:i], l.list[i+1:]...)
			return
		}
	}
}

// allEnded reports whether there were endpoints and none is in service. A rank that has no endpoint
// yet cannot get one then: it would connect over one that is.
func (l *endpointList) allEnded() bool { return l.alive == 0 && l.made != 0 }

// leftovers are complete messages from closed endpoints that wait for a receive. Worker.mu guards
// it.
//
// Invariant: an endpoint is in departed if and only if it is closed and its list kept is not empty;
// fragments counts the fragments of all their messages, at most most between calls.
type leftovers struct {
	departed  list.List[Endpoint] // in the order in which they were closed
	fragments int
	most      int // Config.MaxLeftover
}

// add counts a message of an endpoint that is being closed.
func (l *leftovers) add(in *inbound) { l.fragments += in.fragments }

// depart adds a closed endpoint whose messages were added.
func (l *leftovers) depart(e *Endpoint) { l.departed.PushBack(&e.inDeparted, e) }

// removed notes that a message of an endpoint was removed from its list kept.
func (l *leftovers) removed(e *Endpoint, in *inbound) {
	if !e.inDeparted.Listed() {
		return
	}
	l.fragments -= in.fragments
	if e.kept.all.Empty() {
		l.departed.Remove(&e.inDeparted)
	}
}

// excess returns the oldest message if there are too many; nil otherwise.
func (l *leftovers) excess() *inbound {
	if l.fragments <= l.most {
		return nil
	}
	return l.departed.First().kept.all.First().in
}
