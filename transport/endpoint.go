package transport

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Endpoint is one peer. It is safe for concurrent use; calls from one goroutine take effect in
// their order.
type Endpoint struct {
	_ noCopy
	c *core
	// What sends on this face of the endpoint may do. The functions of pending requests get a face
	// of their own: that is how a send from the head of the queue is told from one that would
	// overtake it.
	turn  bool // sends go before the queue
	aside bool // sends go past the queue
	wake  bool // ErrNoResource queues the endpoint's own request, which calls OnReady
}

// core is what the faces of an endpoint share. Worker.mu guards it.
type core struct {
	w     *Worker
	id    uint32
	cfg   EndpointConfig
	qp    *ibverbx.VirtualQP
	faces [5]Endpoint // by faceTurn and faceWake; faceAside goes alone

	connected bool
	peer      Card
	err       error // why it serves no more
	stage     stage
	released  bool // nothing of it is left

	// The send direction.
	ops       opRing
	limit     int         // operations that the user may have outstanding
	inControl int         // of the transport's own messages, outstanding
	fence     bool        // the next operation waits for all before it
	fenceNext bool        // so does the next one that does not come from the queue of pending requests
	dirty     bool        // memory of the peer was written since the last remote flush
	credits   int         // active messages that the peer has buffers for
	maxAM     int         // longest active message that the peer takes, with its headers
	stride    uint64      // from one receive buffer to the next,
	cells     uint64      // where in the slab the result cells begin,
	cellMask  uint32      // how many there are, less one: a power of two,
	scratch   uint64      // and where what remote flushes read begins
	slab      *ibverbx.MR // receive buffers, then result cells, then what remote flushes read into
	slabMem   []byte
	pending   pendingQueue
	lack      lack
	own       Pending // of the faces that wake

	// The receive direction.
	messages []Message
	again    []uint32 // buffers to post again
	listed   bool     // in Worker.reposts
	heard    bool     // something has completed since silent peers were asked
	owed     int      // credits that can be given back
	granted  uint64   // active messages that the peer was allowed so far
	received uint64
	untold   uint64 // round of progress that has, or had, completions of its operations to tell
	peerBye  bool   // the peer has said goodbye

	// The end.
	deaf       bool // what still arrives is not handled
	parting    bool // goodbye was sent
	aborted    bool // the caller has done with it
	cut        bool // operations were outstanding when it failed
	onReleased *Completion
}

// stage is how far an endpoint's life has come.
type stage uint8

const (
	stageOpen stage = iota
	stageClosing
	stageAborted // the queue pair is closed
)

const (
	faceTurn  = 1
	faceWake  = 2
	faceAside = 4
)

// NewEndpoint makes an endpoint with a virtual queue pair of its own. Exchange [Endpoint.Card] with
// the peer and call [Endpoint.Connect].
func (w *Worker) NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("transport: new endpoint: %w", ErrClosed)
	}
	id := len(w.endpoints)
	for i, c := range w.endpoints {
		if c == nil {
			id = i
			break
		}
	}
	if id >= w.cfg.MaxEndpoints {
		return nil, fmt.Errorf("transport: new endpoint: %w: %d endpoints are open: raise "+
			"Config.MaxEndpoints, or close one and make progress", verbs.ErrInvalid, w.open)
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("endpoint %d", id)
	}
	c := &core{w: w, id: uint32(id), cfg: cfg}
	if err := c.init(); err != nil {
		return nil, fmt.Errorf("transport: new endpoint: %w", err)
	}
	if id == len(w.endpoints) {
		w.endpoints = append(w.endpoints, nil)
	}
	w.endpoints[id] = c
	w.open++
	return &c.faces[0], nil
}

// init creates what the endpoint has of its own.
func (c *core) init() (err error) {
	w := c.w
	if c.qp, err = w.dom.NewQP(w.cq, w.cfg.QP); err != nil {
		return err
	}
	for i := range c.faces {
		c.faces[i] = Endpoint{c: c, turn: i&faceTurn != 0, wake: i&faceWake != 0, aside: i&faceAside != 0}
	}
	c.own.Func = ready
	depth := c.qp.Config().MaxMsgCntPerQP
	if depth < w.cfg.AMBuffers+controlSlots {
		_ = c.qp.Close()
		return fmt.Errorf("%w: the NIC's queues hold %d requests, %d buffers for active messages need %d: "+
			"lower Config.AMBuffers",
			verbs.ErrInvalid, depth, w.cfg.AMBuffers, w.cfg.AMBuffers+controlSlots)
	}
	c.limit = min(w.cfg.MaxOutstanding, depth-controlSlots)
	c.ops.init()
	for c.cellMask = 1; int(c.cellMask) <= c.limit+controlSlots; {
		c.cellMask = c.cellMask<<1 | 1
	}
	receives := w.cfg.AMBuffers + controlSlots
	c.stride = uint64(w.cfg.BufferSize+7) &^ 7
	c.cells = uint64(receives) * c.stride
	c.scratch = c.cells + 8*uint64(c.cellMask+1)
	c.slabMem = make([]byte, int(c.scratch)+8*c.qp.DataRails())
	if c.slab, err = w.dom.Register(c.slabMem, localWrite); err != nil {
		_ = c.qp.Close()
		return err
	}
	c.messages = make([]Message, receives)
	for i := range c.messages {
		c.messages[i] = Message{c: c, slot: uint32(i), length: wireHeader}
	}
	c.again = make([]uint32, 0, receives)
	c.granted = uint64(w.cfg.AMBuffers)
	return nil
}

// Name says who the peer is.
func (e *Endpoint) Name() string { return e.c.cfg.Name }

// Value is EndpointConfig.Value.
func (e *Endpoint) Value() any { return e.c.cfg.Value }

// Worker is the worker that makes progress for the endpoint.
func (e *Endpoint) Worker() *Worker { return e.c.w }

// Err says why the endpoint serves no more, as an [*EndpointError]; nil while it does.
func (e *Endpoint) Err() error {
	e.c.w.mu.Lock()
	defer e.c.w.mu.Unlock()
	return e.c.err
}

// Limits says how long the data of an operation may be, in bytes. Puts and gets from registered
// memory have no limit of their own, but over a single queue pair: there one takes Config.QP.MaxSGE
// pieces and 2 GiB at most.
type Limits struct {
	Header   int // header of an active message
	AMShort  int // active message: header and payload together
	AMBcopy  int
	AMZcopy  int
	PutShort int
	PutBcopy int
	GetBcopy int
	Pieces   int // of registered memory in one active message by zcopy
}

// Limits tells what the endpoint takes, once it is connected.
func (e *Endpoint) Limits() Limits {
	c := e.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.limits()
}

func (c *core) limits() Limits {
	inline, size := c.w.cfg.QP.MaxInline, c.w.cfg.BufferSize
	short := inline
	if short < shortWithoutInline {
		short = min(shortWithoutInline, size) // through a bounce buffer
	}
	most := max(c.peer.BufferSize, wireHeader)
	return Limits{
		Header:  MaxHeader,
		AMShort: min(short, most) - wireHeader, AMBcopy: min(size, most) - wireHeader,
		AMZcopy:  most - wireHeader,
		PutShort: short, PutBcopy: size, GetBcopy: size, Pieces: c.w.cfg.QP.MaxSGE - 1,
	}
}

// refuse makes the error of a call on the endpoint.
func (c *core) refuse(op string, err error, format string, args ...any) error {
	if e := (*EndpointError)(nil); errors.As(err, &e) {
		return e // says the peer and the reason already
	}
	detail := format
	if len(args) != 0 {
		detail = fmt.Sprintf(format, args...)
	}
	return &OpError{Op: op, Peer: c.cfg.Name, Err: err, Detail: detail}
}
