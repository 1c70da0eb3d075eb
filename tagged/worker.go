package tagged

import (
	"errors"
	"sync"

	"ibverbx"
	"ibverbx/transport"
)

// Worker holds the receives that wait for messages of its endpoints, and the messages that wait for
// receives. It is safe for concurrent use.
//
// One lock, mu, guards everything; it is taken before those of the transport and never while one of
// them is held: the transport calls back with none.
type Worker struct {
	cfg Config
	dom *ibverbx.Domain
	tw  *transport.Worker

	mu         sync.Mutex
	closed     bool
	endpoints  []*Endpoint
	numbered   int // endpoints so far
	posted     posted
	unexpected unexpected
	failed     []*Endpoint // whose OnError is to be called
	regions    regionTable
	requests   requestPool
	inbounds   inboundPool
	blocks     blockPool
	readings   *reading // free ones
	chunks     *chunk   // free ones
	stats      counters

	// What a send needs while it lasts.
	hdr     [maxHeader]byte
	short   [256]byte
	scratch []byte // the payload of an announcement
	src     pieces // what a send without a request copies
	from    *pieces
	left    int              // bytes to take from there
	pack    func([]byte) int // takes them
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
	w := &Worker{cfg: cfg, dom: dom, tw: tw, scratch: make([]byte, 0, cfg.Transport.BufferSize)}
	w.posted.exact.init()
	w.unexpected.byTag.init()
	w.requests.most = cfg.MaxRequests
	w.inbounds.most = cfg.MaxUnexpected
	w.blocks.most = cfg.MaxUnexpected * cfg.Transport.BufferSize
	w.pack, w.batch.pack = w.packPieces, w.batch.fill
	for id := amEager; id <= amBatch; id++ {
		if err := tw.Handle(id, w.arrived); err != nil {
			return nil, errors.Join(err, tw.Close())
		}
	}
	return w, nil
}

// packPieces is what AMBcopy calls: made once, so that no send makes a closure.
func (w *Worker) packPieces(dst []byte) int { return w.from.gather(dst[:w.left]) }

// Transport is the transport worker beneath: handlers for other active messages may be set there,
// before the first endpoint's card is shown, for ids below FirstAMID. Endpoints of the program's
// own may be made there, too; one whose peer sends messages of this package is aborted.
func (w *Worker) Transport() *transport.Worker { return w.tw }

// Config is the configuration in force.
func (w *Worker) Config() Config { return w.cfg }

// Progress takes in what has happened and carries messages on. It never blocks. It returns how much
// it did; 0 means that nothing had happened, or that another goroutine was making progress.
func (w *Worker) Progress() int { return w.tw.Progress() }

// Start has a goroutine make progress until Close. It polls for a while and then sleeps until the
// NICs have an event; see [transport.Worker.Start].
func (w *Worker) Start() error { return w.tw.Start() }

// unlockInProgress ends a call back of the transport: it calls the error functions that are due.
func (w *Worker) unlockInProgress() {
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

// Close closes the worker. Endpoints that are open are aborted; every request that is not done
// completes with ErrClosed. To end well, Close each endpoint before. Regions are closed with it.
func (w *Worker) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return refuse("close worker", ErrClosed, "")
	}
	w.closed = true
	err := refuse("worker", ErrClosed, "")
	var errs []error
	for _, e := range w.endpoints {
		errs = append(errs, e.end(err))
	}
	w.endpoints = nil
	for p := &w.posted; p.count != 0; {
		e := p.wild.head
		for i := 0; e == nil; i++ {
			e = p.exact.buckets[i].head
		}
		p.remove(e)
		e.req.complete(err)
	}
	w.mu.Unlock()
	errs = append(errs, w.tw.Close())
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := w.unexpected.all.head; e != nil; e = w.unexpected.all.head {
		w.drop(e.in)
	}
	return errors.Join(append(errs, w.regions.close())...)
}
