package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// amID is the active message that is measured.
const amID transport.AMID = 1

// bcopyLimit is up to which size, in bytes, a copy counts as cheaper than sending from registered
// memory.
const bcopyLimit = 8 << 10

// transportEnd is an end of package transport: endpoints of one worker, served round robin.
type transportEnd struct {
	shape    Shape
	asked    Kind
	worker   *transport.Worker
	dom      *ibverbx.Domain
	src, dst *ibverbx.MR // src is nil where nothing is read
	mem      struct{ src, dst []byte }
	tail     int
	eps      []*transport.Endpoint
	peers    []peerState
	limits   transport.Limits
	remote   Regions

	task     Task
	use      Kind
	comp     transport.Completion // what is to complete, in the whole round or of the one message
	counts   bool                 // operations count in comp themselves
	flushing int                  // endpoints whose flush was begun
	idle     bool                 // nothing is outstanding: comp is not in use
	// unflushed is where the one message of a series went that needs a flush to show that it has
	// completed; nil where there is none.
	unflushed *transport.Endpoint
	olds      []uint64 // results of atomics
	next      int      // message that packs
	pack      func(dst []byte) int
	one       [1]ibverbx.Segment
	word      [8]byte
	seen      int
	broken    error
}

// peerState is what an endpoint counts of what comes.
type peerState struct {
	e     *transportEnd
	index int
	came  int // messages of the round
}

func newTransport(cfg *Config) (*transportEnd, *transport.Worker, error) {
	e := &transportEnd{shape: cfg.Shape, asked: cfg.Kind, tail: cfg.Tail, idle: true}
	e.mem.src, e.mem.dst = cfg.Src, cfg.Dst
	e.pack = e.copyNext
	var err error
	if e.dom, err = ibverbx.NewDomain(cfg.Devices...); err != nil {
		return nil, nil, err
	}
	if err := e.open(cfg); err != nil {
		return nil, nil, errors.Join(err, e.close(context.Background()))
	}
	return e, e.worker, nil
}

func (e *transportEnd) open(cfg *Config) (err error) {
	if e.src, e.dst, err = register(e.dom, cfg); err != nil {
		return err
	}
	if e.worker, err = transport.NewWorker(e.dom, transportConfig(cfg)); err != nil {
		return err
	}
	if err := e.worker.Handle(amID, e.handle); err != nil {
		return err
	}
	e.peers = make([]peerState, cfg.Endpoints)
	for i := range e.peers {
		e.peers[i] = peerState{e: e, index: i}
		ep, err := e.worker.NewEndpoint(transport.EndpointConfig{Value: &e.peers[i], OnError: e.failed})
		if err != nil {
			return err
		}
		e.eps = append(e.eps, ep)
	}
	return nil
}

// register makes the memory of an end known to its NICs.
func register(dom *ibverbx.Domain, cfg *Config) (src, dst *ibverbx.MR, err error) {
	if len(cfg.Src) > 0 {
		if src, err = dom.Register(cfg.Src, verbs.AccessLocalWrite|verbs.AccessRemoteRead); err != nil {
			return nil, nil, err
		}
	}
	if dst, err = dom.Register(cfg.Dst, verbs.AccessAll); err != nil && src != nil {
		err = errors.Join(err, src.Close())
		src = nil
	}
	return src, dst, err
}

// Buffers cost memory, which a peer may have asked for: more than the layers' own defaults are
// available for few endpoints and usual sizes only.
const (
	fewEndpoints  = 8
	maxAMBuffers  = 1024
	maxBounce     = 4096
	defaultBuffer = 8 << 10
	// amRoom is what an active message takes of a buffer besides its data, at most.
	amRoom = 64
)

// transportConfig configures the worker: the defaults, but for the window that was asked for, and
// larger buffers for longer active messages.
func transportConfig(cfg *Config) transport.Config {
	c := transport.Config{QP: cfg.QP, MaxEndpoints: cfg.Endpoints, MaxOutstanding: cfg.Window, Spin: cfg.Spin}
	c.BounceBuffers = bounceBuffers(cfg)
	if room := cfg.Largest + amRoom; cfg.Shape.Op == AM && room > defaultBuffer {
		c.BufferSize = room
	} else if cfg.Endpoints <= fewEndpoints {
		c.AMBuffers = min(max(cfg.Window, 64), maxAMBuffers)
	}
	c.QP.MaxMsgCntPerQP = max(c.QP.MaxMsgCntPerQP, c.MaxOutstanding+8, c.AMBuffers+8, 72)
	return c
}

// bounceBuffers is enough for all that one endpoint has outstanding.
func bounceBuffers(cfg *Config) int { return min(max(256, 2*cfg.Window), maxBounce) }

// failed records that an endpoint has failed.
func (e *transportEnd) failed(_ *transport.Endpoint, err error) {
	if e.broken == nil {
		e.broken = err
	}
}

// handle copies an active message to its slot: message i goes over endpoint i modulo their number.
func (e *transportEnd) handle(m *transport.Message) {
	p := m.Endpoint().Value().(*peerState)
	i := p.came*max(e.task.Endpoints, 1) + p.index
	data := m.Data()
	if i >= e.task.Take || len(data) != e.task.Round.Size {
		if e.broken == nil {
			e.broken = fmt.Errorf("%w: message %d of %d bytes; the round has %d of %d bytes", ErrMessages, i,
				len(data), e.task.Take, e.task.Round.Size)
		}
		return
	}
	copy(e.mem.dst[e.task.Round.Target(i):], data)
	p.came++
	e.seen++
}

func (e *transportEnd) kind(size int) Kind {
	if e.asked != Auto || e.shape.Atomic {
		return e.asked
	}
	l := &e.limits
	short, bcopy := l.PutShort, l.PutBcopy
	switch e.shape.Op {
	case AM:
		short, bcopy = l.AMShort, l.AMBcopy
	case Get:
		short, bcopy = 0, l.GetBcopy
	}
	switch {
	case size <= short:
		return Short
	case size <= min(bcopy, bcopyLimit):
		return Bcopy
	}
	return Zcopy
}

func (e *transportEnd) longest() int {
	l := &e.limits
	switch e.shape.Op {
	case AM:
		switch e.asked {
		case Short:
			return l.AMShort
		case Bcopy:
			return l.AMBcopy
		}
		return l.AMZcopy
	case Get:
		if e.asked == Bcopy {
			return l.GetBcopy
		}
	case Put, PutPoll:
		switch e.asked {
		case Short:
			return l.PutShort
		case Bcopy:
			return l.PutBcopy
		}
	}
	return 0
}

func (e *transportEnd) target() []byte { return e.mem.dst }
func (e *transportEnd) counter() uint64 {
	return binary.NativeEndian.Uint64(e.mem.dst[e.tail+wordCounter:])
}

func (e *transportEnd) results() []uint64 { return e.olds }

func (e *transportEnd) card() (c Card, err error) {
	c.Regions = regionsOf(e.src, e.dst)
	for _, ep := range e.eps {
		card, err := ep.Card()
		if err != nil {
			return c, err
		}
		c.Transport = append(c.Transport, card)
	}
	return c, nil
}

func (e *transportEnd) connect(peer *Card) error {
	if len(peer.Transport) != len(e.eps) {
		return fmt.Errorf("the peer has %d endpoints, this end %d", len(peer.Transport), len(e.eps))
	}
	e.remote = peer.Regions
	for i, ep := range e.eps {
		if err := ep.Connect(peer.Transport[i]); err != nil {
			return err
		}
	}
	e.limits = e.eps[0].Limits()
	return nil
}

func (e *transportEnd) close(ctx context.Context) error {
	var errs []error
	for _, ep := range e.eps {
		errs = append(errs, closing(ep.Close(ctx)))
	}
	if e.worker != nil {
		errs = append(errs, e.worker.Close())
	}
	for _, mr := range []*ibverbx.MR{e.src, e.dst} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(append(errs, e.dom.Close())...)
}

// closing drops the errors that only say that the peer has closed first.
func closing(err error) error {
	for _, usual := range []error{transport.ErrPeerClosed, transport.ErrPeerFailed, transport.ErrCanceled,
		context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, usual) {
			return nil
		}
	}
	return err
}
