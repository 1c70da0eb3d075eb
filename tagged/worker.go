package tagged

import (
	"errors"
	"math/rand/v2"
	"sync"

	"ibverbx"
	"ibverbx/internal/list"
	"ibverbx/transport"
)

// Worker holds the receives that wait for messages of its endpoints, and the messages that wait for
// receives. It is safe for concurrent use.
//
// One lock, mu, guards everything. It is taken before the transport's lock and never while that is
// held: the transport holds no lock when it calls back.
type Worker struct {
	_   noCopy
	cfg Config
	dom *ibverbx.Domain
	tw  *transport.Worker

	mu         sync.Mutex
	closed     bool
	endpoints  []*Endpoint // that the program has not closed or aborted
	numbered   int         // endpoints made so far, for their default names
	posted     posted      // receives that wait for a message of any peer
	receives   uint64      // receives posted so far: their sequence numbers
	unexpected unexpected  // messages that wait for a receive
	failed     []*Endpoint // whose OnError has to be called: see unlockAndReport
	regions    regionTable
	stats      counters

	alive    int                 // endpoints whose err is not set
	departed list.List[Endpoint] // that were closed and have left messages, the first one first
	leftover int                 // fragments of their messages, at most Config.MaxLeftover
	factor   uint64              // of all hash tables

	// What is kept for use again.
	requests     requestPool
	inbounds     inboundPool
	blocks       blockPool
	freeReadings list.List[reading]
	freeChunks   *chunk

	// What a send needs while it goes out, under mu.
	hdr     [maxHeader]byte  // of the active message
	short   [256]byte        // payload of an active message that is sent inline
	scratch []byte           // payload of an announcement
	src     pieces           // the buffers of a send without a request
	from    *pieces          // what pack copies from
	left    int              // bytes that pack copies
	pack    func([]byte) int // packPieces: made once, so that no send makes a closure
	batch   batch
}

// NewWorker makes a worker, with a transport worker of its own, over the NICs of a domain. The
// domain stays the caller's, who closes it after the worker; several workers may share one.
func NewWorker(dom *ibverbx.Domain, cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tw, err := transport.NewWorker(dom, cfg.Transport)
	if err != nil {
		return nil, err
	}
	cfg.Transport = tw.Config()
	cfg.Chunk = min(cfg.Chunk, tw.MaxMessage()) // a single queue pair fragments nothing
	w := &Worker{cfg: cfg, dom: dom, tw: tw, scratch: make([]byte, 0, cfg.Transport.BufferSize)}
	w.factor = rand.Uint64()
	w.posted.exact.init(w.factor)
	w.unexpected.hash(w.factor)
	w.requests.most = cfg.MaxRequests
	w.inbounds.most = cfg.MaxUnexpected
	w.blocks.most, w.blocks.largest = cfg.MaxUnexpected*cfg.Transport.BufferSize, cfg.Transport.BufferSize
	w.pack, w.batch.pack = w.packPieces, w.batch.fill
	for id := amEager; id <= amBatch; id++ {
		if err := tw.Handle(id, w.arrived); err != nil {
			return nil, errors.Join(err, tw.Close())
		}
	}
	return w, nil
}

// packPieces is the pack function of a fragment.
func (w *Worker) packPieces(dst []byte) int { return w.from.gather(dst[:w.left]) }

// Transport is the transport worker beneath. The program may set handlers for other active messages
// there, with ids below FirstAMID, before it asks for the first endpoint's card. It may also make
// endpoints there for itself; one whose peer sends messages of this package is aborted.
func (w *Worker) Transport() *transport.Worker { return w.tw }

// Config is the configuration in force.
func (w *Worker) Config() Config { return w.cfg }

// Progress handles what has completed and arrived, and sends what can go out. It never blocks. It
// returns how much it did; 0 means that nothing had happened, or that another goroutine was making
// progress.
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

// Close closes the worker and its regions. It aborts endpoints that are open, and completes every
// request that is not done with ErrClosed. To end in order, close each endpoint before. Like
// [Endpoint.Abort] it spends a millisecond at most for each endpoint that is open. If a callback
// leaves Close by a panic or runtime.Goexit, call it again: see [transport.Worker.Close].
func (w *Worker) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		if err := w.tw.Close(); errors.Is(err, transport.ErrWorkerDead) { // it had left an earlier Close
			return errors.Join(err, w.free())
		}
		return refuse("close worker", ErrClosed, "")
	}
	w.closed = true
	err := refuse("worker", ErrClosed, "")
	var errs []error
	for _, e := range w.endpoints {
		errs = append(errs, e.end(err))
	}
	w.endpoints = nil
	w.posted.endAll(err)
	w.mu.Unlock()
	return errors.Join(append(errs, w.tw.Close(), w.free())...)
}

// free releases what the worker holds beside its transport worker, which is closed.
func (w *Worker) free() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := w.unexpected.all.First(); e != nil; e = w.unexpected.all.First() {
		w.drop(e.in)
	}
	return w.regions.close()
}
