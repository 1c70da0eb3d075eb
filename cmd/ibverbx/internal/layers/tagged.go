package layers

import (
	"context"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
)

// taggedEnd is an end of package tagged. Message i of a round has a tag of its own, so that it
// finds its slot whatever endpoint it came over.
type taggedEnd struct {
	shape  Shape
	worker *tagged.Worker
	dom    *ibverbx.Domain
	src    *tagged.Region // nil where nothing is sent
	dst    *tagged.Region
	mem    struct{ src, dst []byte }
	eps    []*tagged.Endpoint
	limit  int // of eager messages, bytes

	task     Task
	sends    requests
	receives requests
	expected int // receives posted
	one      [1][]byte
	broken   error
}

// maxUnexpected is how many messages that no receive has matched a worker keeps at most, of all its
// peers: a peer may send messages that no receive takes.
const maxUnexpected = 1 << 16

// requests are those under way, oldest first: a ring.
//
// Invariant: head <= tail <= head+len(ring).
type requests struct {
	ring       []*tagged.Request
	head, tail int
}

func (r *requests) full() bool { return r.tail-r.head == len(r.ring) }

func (r *requests) push(req *tagged.Request) {
	r.ring[r.tail%len(r.ring)] = req
	r.tail++
}

// first is the oldest request if that is done, else nil.
func (r *requests) first() *tagged.Request {
	if r.head == r.tail {
		return nil
	}
	if req := r.ring[r.head%len(r.ring)]; req.Done() {
		return req
	}
	return nil
}

// pop gives the oldest request back.
func (r *requests) pop() {
	at := r.head % len(r.ring)
	r.ring[at].Free()
	r.ring[at] = nil
	r.head++
}

func newTagged(cfg *Config) (*taggedEnd, *transport.Worker, error) {
	e := &taggedEnd{shape: cfg.Shape}
	e.mem.src, e.mem.dst = cfg.Src, cfg.Dst
	window := cfg.Window * cfg.Endpoints
	e.sends.ring, e.receives.ring = make([]*tagged.Request, window), make([]*tagged.Request, 2*window)
	var err error
	if e.dom, err = ibverbx.NewDomain(cfg.Devices...); err != nil {
		return nil, nil, err
	}
	if err := e.open(cfg); err != nil {
		return nil, nil, errors.Join(err, e.close(context.Background()))
	}
	return e, e.worker.Transport(), nil
}

func (e *taggedEnd) open(cfg *Config) (err error) {
	c := tagged.Config{Transport: transportConfig(cfg), MaxUnexpected: min(1024, maxUnexpected/cfg.Endpoints)}
	switch cfg.Kind {
	case Eager:
		c.EagerLimit = max(cfg.Largest, 1)
	case Rendezvous:
		c.EagerLimit = -1
	}
	if e.worker, err = tagged.NewWorker(e.dom, c); err != nil {
		return err
	}
	e.limit = e.worker.Config().EagerLimit
	if len(cfg.Src) > 0 {
		if e.src, err = e.worker.Register(cfg.Src); err != nil {
			return err
		}
	}
	if e.dst, err = e.worker.Register(cfg.Dst); err != nil {
		return err
	}
	for range cfg.Endpoints {
		ep, err := e.worker.NewEndpoint(tagged.EndpointConfig{OnError: e.failed})
		if err != nil {
			return err
		}
		e.eps = append(e.eps, ep)
	}
	return nil
}

// failed notes that an endpoint serves no more.
func (e *taggedEnd) failed(_ *tagged.Endpoint, err error) {
	if e.broken == nil {
		e.broken = err
	}
}

func (e *taggedEnd) kind(size int) Kind {
	if size > e.limit {
		return Rendezvous
	}
	return Eager
}

func (e *taggedEnd) begin(t *Task) error {
	e.task, e.expected = *t, 0
	e.receives.head, e.receives.tail = 0, 0
	return errors.Join(e.broken, e.expect())
}

// tag is message i's.
func (e *taggedEnd) tag(i int) uint64 { return e.task.Round.Number<<24 | uint64(i) }

// expect posts receives.
func (e *taggedEnd) expect() error {
	for e.expected < e.task.Take && !e.receives.full() {
		at := e.task.Round.Target(e.expected)
		e.one[0] = e.mem.dst[at : at+e.task.Round.Size]
		req, err := e.worker.Recv(e.tag(e.expected), tagged.Exact, e.one[:]...)
		if err != nil {
			if errors.Is(err, transport.ErrNoResource) {
				return nil
			}
			return err
		}
		e.receives.push(req)
		e.expected++
	}
	return nil
}

func (e *taggedEnd) arrived() (int, error) {
	before := e.receives.head
	for req := e.receives.first(); req != nil; req = e.receives.first() {
		if err := req.Err(); err != nil {
			return 0, err
		}
		if info := req.Info(); info.Length != e.task.Round.Size || info.Tag != e.tag(e.receives.head) {
			return 0, fmt.Errorf("%w: tag %#x with %d bytes; tag %#x has %d", ErrMessages, info.Tag,
				info.Length, e.tag(e.receives.head), e.task.Round.Size)
		}
		e.receives.pop()
	}
	if e.receives.head != before {
		if err := e.expect(); err != nil {
			return 0, err
		}
	}
	return e.receives.head, e.broken
}

func (e *taggedEnd) post(i, n int) (int, error) {
	for k := range n {
		if err := e.startOne(i + k); err != nil {
			return k, err
		}
	}
	return n, nil
}

// startOne starts message i.
func (e *taggedEnd) startOne(i int) error {
	if e.sends.full() {
		if _, err := e.completed(); err != nil {
			return err
		}
		if e.sends.full() {
			return transport.ErrNoResource
		}
	}
	r := e.task.Round
	at := r.Source(i)
	e.one[0] = e.mem.src[at : at+r.Size]
	ep := e.eps[i%e.task.Endpoints]
	var req *tagged.Request
	var err error
	if e.shape.Op == SendSync {
		req, err = ep.SendSync(e.tag(i), e.one[:]...)
	} else {
		req, err = ep.Send(e.tag(i), e.one[:]...)
	}
	if err == nil && req != nil {
		e.sends.push(req)
	}
	return err
}

func (e *taggedEnd) settle() error { return nil }
func (e *taggedEnd) seal() error   { return nil }

func (e *taggedEnd) completed() (bool, error) {
	for req := e.sends.first(); req != nil; req = e.sends.first() {
		if err := req.Err(); err != nil {
			return false, err
		}
		e.sends.pop()
	}
	return e.sends.head == e.sends.tail, e.broken
}

func (e *taggedEnd) target() []byte    { return e.mem.dst }
func (e *taggedEnd) counter() uint64   { return 0 }
func (e *taggedEnd) longest() int      { return 0 }
func (e *taggedEnd) results() []uint64 { return nil }

func (e *taggedEnd) card() (c Card, err error) {
	var src, dst *ibverbx.MR = nil, e.dst.MR()
	if e.src != nil {
		src = e.src.MR()
	}
	c.Regions = regionsOf(src, dst)
	for _, ep := range e.eps {
		card, err := ep.Card()
		if err != nil {
			return c, err
		}
		c.Tagged = append(c.Tagged, card)
	}
	return c, nil
}

func (e *taggedEnd) connect(peer *Card) error {
	if len(peer.Tagged) != len(e.eps) {
		return fmt.Errorf("the peer has %d endpoints, this end %d", len(peer.Tagged), len(e.eps))
	}
	for i, ep := range e.eps {
		if err := ep.Connect(peer.Tagged[i]); err != nil {
			return err
		}
	}
	return nil
}

func (e *taggedEnd) close(ctx context.Context) error {
	var errs []error
	for _, ep := range e.eps {
		errs = append(errs, closing(ep.Close(ctx)))
	}
	for _, r := range []*tagged.Region{e.src, e.dst} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	if e.worker != nil {
		errs = append(errs, e.worker.Close())
	}
	return errors.Join(append(errs, e.dom.Close())...)
}
