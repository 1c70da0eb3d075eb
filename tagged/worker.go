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
	teams     teams
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
	w.teams.init(w)
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

// World returns the team of all ranks that have joined. Its collective calls are those of the
// worker.
func (w *Worker) World() *Team { return &w.teams.world }

func (w *Worker) team() *Team {
	if w == nil {
		return nil
	}
	return &w.teams.world
}

// Config returns the configuration in force, with its defaults filled in.
func (w *Worker) Config() Config { return w.cfg }

// Progress handles what has completed and arrived, and sends what can go out. It never blocks. It
// returns how many events it handled; 0 means that there were none, or that another goroutine is
// making progress.
func (w *Worker) Progress() int {
	n := w.tw.Progress()
	w.teams.drive()
	return n
}

// Start has a goroutine make progress until Close. It polls for a while and then sleeps until the
// NICs have an event; see [transport.Worker.Start].
func (w *Worker) Start() error { return w.tw.Start() }

// unlockAndReport ends a callback of the transport: it calls OnError of the endpoints that have
// failed, with mu released, lets collective calls go on, and returns with mu released.
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
	w.teams.drive()
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
	w.teams.close(err)
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

// counters count since the worker was made.
type counters struct {
	announced, unexpected uint64
	batches, dropped      uint64
	registered, staged    uint64
	failures, violations  uint64
	leaked                uint64
}

// Stats is a snapshot of a worker. Counters count since it was made.
type Stats struct {
	Endpoints       int `json:"endpoints"`
	Posted          int `json:"posted"`           // receives that wait for a message
	Unexpected      int `json:"unexpected"`       // messages that wait for a receive
	UnexpectedBytes int `json:"unexpected_bytes"` // memory that they take
	Leftover        int `json:"leftover"`         // of these, fragments from closed endpoints
	SpareBytes      int `json:"spare_bytes"`      // free memory kept for such messages
	Requests        int `json:"requests"`         // requests that are not done
	SpareRequests   int `json:"spare_requests"`   // requests kept for reuse
	// RequestsMade is how many requests were allocated. It stops growing once the pool is warm, if
	// the program frees its requests.
	RequestsMade   uint64 `json:"requests_made"`
	Announced      uint64 `json:"announced"`       // long messages sent
	Batches        uint64 `json:"batches"`         // active messages that carried several short sends
	CameUnexpected uint64 `json:"came_unexpected"` // messages that arrived before their receive
	// Dropped is how many complete messages were dropped because their endpoint was aborted, or
	// because closed endpoints had left more than Config.MaxLeftover.
	Dropped uint64 `json:"dropped"`
	// Registered is how many registrations were made for one message, outside of every Region.
	Registered uint64 `json:"registered"`
	// Staged is how many long messages had too many pieces and went through a buffer made for them.
	Staged     uint64 `json:"staged"`
	Failures   uint64 `json:"failures"`   // endpoints that failed
	Violations uint64 `json:"violations"` // of these, because the peer broke the protocol
	Leaked     uint64 `json:"leaked"`     // registrations that could not be undone

	Transport transport.Stats `json:"transport"`
}

// Stats takes a snapshot.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, m := &w.stats, &w.matching
	blocks, requests := &w.spares.blocks, &w.spares.requests
	return Stats{
		Endpoints: len(w.endpoints.list), Posted: m.posted.count, Unexpected: m.unexpected.all.Len(),
		UnexpectedBytes: blocks.used, SpareBytes: blocks.bytes, Leftover: w.leftovers.fragments,
		Requests: requests.busy, SpareRequests: len(requests.free), RequestsMade: requests.made,
		Announced: s.announced, Batches: s.batches, CameUnexpected: s.unexpected, Dropped: s.dropped,
		Registered: s.registered, Staged: s.staged,
		Failures: s.failures, Violations: s.violations, Leaked: s.leaked,
		Transport: w.tw.Stats(),
	}
}

// traffic counts the messages and bytes of an endpoint since it was made.
type traffic struct{ sent, sentBytes, received, receivedBytes uint64 }

// EndpointStats is a snapshot of an endpoint.
type EndpointStats struct {
	// Messages and their bytes, since the endpoint was made. Copied ones count as they go out and
	// arrive. Long ones count as they are read, and at the sender when it learns of that.
	Sent          uint64 `json:"sent"`
	SentBytes     uint64 `json:"sent_bytes"`
	Received      uint64 `json:"received"`
	ReceivedBytes uint64 `json:"received_bytes"`

	Queued    int `json:"queued"`    // sends that have not gone out completely
	Unmatched int `json:"unmatched"` // sends that wait for the notice that they were matched, or read
	Reading   int `json:"reading"`   // messages that are being read from the peer
	Window    int `json:"window"`    // eager fragments and announcements that the peer has room for
	Owed      int `json:"owed"`      // places of the window that can be granted to the peer again
	Notices   int `json:"notices"`   // matches that the peer has not been notified of yet

	Transport transport.EndpointStats `json:"transport"`
}

// Stats takes a snapshot.
func (e *Endpoint) Stats() EndpointStats {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	t := &e.traffic
	return EndpointStats{
		Sent: t.sent, SentBytes: t.sentBytes, Received: t.received, ReceivedBytes: t.receivedBytes,
		Queued: e.queue.Len(), Unmatched: e.waiting.count(), Reading: e.active,
		Window: e.ledger.Room(), Owed: e.ledger.Due(), Notices: e.notices.Len(),
		Transport: e.tep.Stats(),
	}
}

// Carrier returns what carries the endpoint: see [transport.Endpoint.Carrier].
func (e *Endpoint) Carrier() ibverbx.Carrier { return e.tep.Carrier() }
