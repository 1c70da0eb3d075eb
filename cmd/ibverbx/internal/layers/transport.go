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

// bcopyLimit is up to which size, in bytes,
// a copy counts as cheaper than sending from registered memory.
const bcopyLimit = 8 << 10

// transportEnd is an end of package transport: endpoints of one worker, served round robin.
type transportEnd struct {
	transportSetup
	transportRound
	olds   []uint64 // results of atomics
	pack   func(dst []byte) int
	broken error // what ended the end; nil while it goes on
}

// transportSetup is what an end is made of, and stays as it is from connect to close.
type transportSetup struct {
	shape    Shape
	asked    Kind
	worker   *transport.Worker
	dom      *ibverbx.Domain
	src, dst *ibverbx.MR // src is nil where nothing is read
	mem      struct{ src, dst []byte }
	tail     int
	eps      []*transport.Endpoint
	limits   transport.Limits
	remote   Regions
}

func newTransport(cfg *Config) (*transportEnd, *transport.Worker, error) {
	e := &transportEnd{transportRound: transportRound{idle: true, peers: make([]peerState, cfg.Endpoints)}}
	e.shape, e.asked, e.tail = cfg.Shape, cfg.Kind, cfg.Tail
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
	for i := range e.peers {
		e.peers[i].index = i
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

func (e *transportSetup) kind(size int) Kind {
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

func (e *transportSetup) longest() int {
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

func (e *transportSetup) target() []byte { return e.mem.dst }
func (e *transportSetup) counter() uint64 {
	return binary.NativeEndian.Uint64(e.mem.dst[e.tail+wordCounter:])
}

func (e *transportSetup) card() (c Card, err error) {
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

func (e *transportSetup) connect(peer *Card) error {
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

func (e *transportSetup) close(ctx context.Context) error {
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
