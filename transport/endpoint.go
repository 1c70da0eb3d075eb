package transport

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/internal/flow"
	"ibverbx/internal/guard"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Endpoint is one peer. It is safe for concurrent use; calls from one goroutine take effect in
// their order.
//
// An Endpoint is a view of the peer's state: all views of a peer share it, and differ in how they
// treat a send while requests are pending, or when it meets ErrNoResource. So a send from the
// function at the head of the queue differs from one that would overtake it.
type Endpoint struct {
	_      guard.NoCopy
	peer   *peerState
	head   bool // sends go before the queue: the view that pending functions get
	bypass bool // sends go past the queue: BypassQueue
	notify bool // ErrNoResource queues the endpoint's own request, which calls OnReady: NotifyReady
}

// The views of an endpoint in peerState.views. The first two can be added; viewBypass goes alone.
const (
	viewHead   = 1
	viewNotify = 2
	viewBypass = 4
)

// ordinary reports whether the view's sends have their place behind the queue.
func (e *Endpoint) ordinary() bool { return !e.head && !e.bypass }

// peerState is the state that all views of an endpoint share. Worker.mu guards it. Each part has
// its invariant above it; check.go checks them. The fields that a send reads stand together: with a
// hundred endpoints each cache line counts.
type peerState struct {
	w     *Worker
	id    uint32 // its place in Worker.endpoints, and part of every work-request id
	views [5]Endpoint

	ending  ending
	conn    conn
	sending sending
	// credits counts the receive buffers that active messages may fill: those of the peer, and
	// those that the peer may fill here.
	credits   flow.Ledger
	receiving receiving
	mem       slab
	cfg       EndpointConfig
}

// conn is the connection to the peer.
type conn struct {
	qp       *ibverbx.VirtualQP // nil once the endpoint is released; last is what it had counted
	last     *ibverbx.Stats
	maxAM    int              // longest active message that the peer takes, with its headers; 0 until Connect
	handlers uint64           // set of the ids that the peer has a handler for
	flush    ibverbx.RemoteMR // the peer's memory that remote flushes and probes read
}

// connected reports whether Connect has ever succeeded.
func (c *conn) connected() bool { return c.maxAM != 0 }

// init creates the endpoint's own objects.
func (p *peerState) init() (err error) {
	w := p.w
	for i := range p.views {
		v := &p.views[i]
		v.peer = p
		v.head, v.notify, v.bypass = i&viewHead != 0, i&viewNotify != 0, i&viewBypass != 0
	}
	cfg := w.cfg.QP
	cfg.Events = w.events.behind(cfg.Events)
	if p.conn.qp, err = w.dom.NewQP(w.cq, cfg); err != nil {
		return err
	}
	receives, depth := w.cfg.AMBuffers+controlSlots, p.conn.qp.Config().MaxMsgCntPerQP
	if depth < receives {
		_ = p.conn.qp.Close()
		return fmt.Errorf("%w: the NIC's queues hold %d requests, %d buffers for active messages need %d: "+
			"lower Config.AMBuffers",
			verbs.ErrInvalid, depth, w.cfg.AMBuffers, receives)
	}
	s, r := &p.sending, &p.receiving
	s.ops = ring.NewWindow[op]()
	s.limit = min(w.cfg.MaxOutstanding, depth-controlSlots)
	s.ownBuffers = 1<<ownBuffers - 1
	s.readyRequest.Func = callOnReady
	p.mem, err = newSlab(w.dom, receives, w.cfg.BufferSize, s.limit+controlSlots, p.conn.qp.DataRails())
	if err != nil {
		_ = p.conn.qp.Close()
		return err
	}
	r.messages = make([]Message, receives)
	for i := range r.messages {
		m := &r.messages[i]
		m.peer, m.slot, m.length = p, uint32(i), wireHeader
	}
	r.toRepost = make([]uint32, 0, receives)
	p.credits = flow.New(w.cfg.AMBuffers)
	return nil
}

// Name returns the peer's name in errors.
func (e *Endpoint) Name() string { return e.peer.cfg.Name }

// Value returns EndpointConfig.Value.
func (e *Endpoint) Value() any { return e.peer.cfg.Value }

// Worker returns the worker of the endpoint.
func (e *Endpoint) Worker() *Worker { return e.peer.w }

// Err returns why the endpoint has ended, as an [*EndpointError]; nil while it has not.
func (e *Endpoint) Err() error {
	e.peer.w.mu.Lock()
	defer e.peer.w.mu.Unlock()
	return e.peer.ending.err
}

// Limits says how long the data of an operation may be, in bytes. Puts and gets from registered
// memory have no limit, except over a single queue pair: there one takes at most Config.QP.MaxSGE
// pieces and [Worker.MaxMessage] bytes.
type Limits struct {
	Header   int // header of an active message
	AMShort  int // active message: header and payload together
	AMBcopy  int
	AMZcopy  int
	PutShort int
	PutBcopy int
	GetBcopy int
	Pieces   int // pieces of registered memory in one active message by zcopy
}

// Limits returns how long the data of each operation may be, once the endpoint is connected.
func (e *Endpoint) Limits() Limits {
	e.peer.w.mu.Lock()
	defer e.peer.w.mu.Unlock()
	return e.peer.limits()
}

func (p *peerState) limits() Limits {
	inline, size := p.w.cfg.QP.MaxInline, p.w.cfg.BufferSize
	short := inline
	if short < shortWithoutInline {
		short = min(shortWithoutInline, size) // through a bounce buffer
	}
	most := max(p.conn.maxAM, wireHeader)
	return Limits{
		Header:  MaxHeader,
		AMShort: min(short, most) - wireHeader, AMBcopy: min(size, most) - wireHeader,
		AMZcopy:  most - wireHeader,
		PutShort: short, PutBcopy: size, GetBcopy: size, Pieces: p.w.cfg.QP.MaxSGE - 1,
	}
}

// refuse returns the error of a call on the endpoint.
func (p *peerState) refuse(op string, err error, format string, args ...any) error {
	if e := (*EndpointError)(nil); errors.As(err, &e) {
		return e // names the peer and the reason already
	}
	return &OpError{Op: op, Peer: p.cfg.Name, Err: err, Detail: fmt.Sprintf(format, args...)}
}

// flushable reports whether a flush of the worker includes the endpoint. One that has failed is
// included, so that the flush returns its error.
func (p *peerState) flushable() bool { return p.conn.connected() && p.ending.stage < stageAborted }
