package transport

import (
	"fmt"

	"ibverbx/verbs"
)

// Outcome is what a pending function answers.
type Outcome uint8

const (
	// PendingDone removes the request.
	PendingDone Outcome = iota
	// PendingProgress keeps it; the next endpoint is served, and this one again in its turn.
	PendingProgress
	// PendingNoResource keeps it until resources are back: a send met ErrNoResource.
	PendingNoResource
)

// String is the answer's name.
func (o Outcome) String() string {
	switch o {
	case PendingDone:
		return "done"
	case PendingProgress:
		return "progress"
	case PendingNoResource:
		return "no resource"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Pending is a request to be called back when an endpoint has resources again. It may lie in a
// structure of the caller's, and be queued again once its function has answered PendingDone. It
// must not be copied while it is queued.
type Pending struct {
	_ noCopy

	// Func runs inside progress when it is this request's turn. Its sends go through turn, which is
	// the endpoint as seen from the head of its queue: on the endpoint itself they would meet
	// ErrNoResource, because nothing overtakes the queue. It may send on other endpoints, and queue
	// requests, this one included, on any. After the endpoint has failed it is called once, and its
	// sends fail.
	Func func(p *Pending, turn *Endpoint) Outcome

	next     *Pending
	queued   bool
	running  bool
	again    bool   // of an endpoint's own request: a send met ErrNoResource while it ran
	internal bool   // a flush that waits to begin: the program did not queue it, so Purge leaves it
	fence    bool   // Fence was called between the request before and this one
	lack     lack   // what has to come back before it is asked again; empty: it is asked in its turn
	taken    uint64 // with lackUnknown: how many completions there had been
}

// pendingQueue is the queue of an endpoint. Its first request leaves the queue while its function
// runs, and counts as pending nevertheless.
type pendingQueue struct {
	head, tail *Pending
	running    *Pending
	ringed     bool           // the endpoint is in Worker.waiting
	purge      func(*Pending) // takes the running request, too, if it wants to stay
	count      int
}

func (q *pendingQueue) any() bool { return q.head != nil || q.running != nil }

func (q *pendingQueue) push(p *Pending) {
	p.next, p.queued = nil, true
	if q.tail == nil {
		q.head = p
	} else {
		q.tail.next = p
	}
	q.tail = p
	q.count++
}

func (q *pendingQueue) pushFront(p *Pending) {
	p.next, p.queued = q.head, true
	q.head = p
	if q.tail == nil {
		q.tail = p
	}
	q.count++
}

func (q *pendingQueue) pop() *Pending {
	p := q.head
	if p == nil {
		return nil
	}
	if q.head = p.next; q.head == nil {
		q.tail = nil
	}
	p.next, p.queued = nil, false
	q.count--
	return p
}

// Pending queues a request behind those that the endpoint has. It is refused with ErrBusy when the
// endpoint has resources and no queue: try the send again, it may succeed now. So no wake-up is
// lost between a send that met ErrNoResource and this call.
func (e *Endpoint) Pending(p *Pending) error {
	c := e.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.Func == nil:
		return c.refuse("pending", verbs.ErrInvalid, "the request has no Func")
	case p.queued:
		return c.refuse("pending", verbs.ErrInvalid, "the request is queued already")
	case c.err != nil:
		return c.err
	case c.stage != stageOpen && !e.turn:
		return c.refuse("pending", ErrClosed, "")
	case !c.connected:
		return c.refuse("pending", ErrNotConnected, "call Connect first")
	case !c.pending.any() && !c.wants(c.lack, 0):
		c.lack = 0 // the next attempt tells what lacks now
		return ErrBusy
	}
	c.enqueue(p)
	return nil
}

// enqueue queues a request, and the endpoint with it.
func (c *core) enqueue(p *Pending) {
	p.fence, c.fenceNext = c.fenceNext, false
	if p.lack = 0; !c.pending.any() {
		p.lack = c.lack
	}
	c.lack = 0
	c.pending.push(p)
	c.w.stats.pending++
	c.ring()
}

// ring puts the endpoint behind those that wait to be served.
func (c *core) ring() {
	if !c.pending.ringed {
		c.pending.ringed = true
		c.w.waiting.push(c)
	}
}

// full reports whether the endpoint has as many operations outstanding as it may.
func (c *core) full() bool { return c.ops.len()-c.inControl >= c.limit }

// lacking is what of a set is lacking still. taken goes with lackUnknown.
func (c *core) lacking(l lack, taken uint64) lack {
	if !c.full() {
		l &^= lackWindow
	}
	if c.credits != 0 {
		l &^= lackCredit
	}
	if len(c.w.bounce.free) != 0 {
		l &^= lackBuffer
	}
	if !c.w.retrying {
		l &^= lackNIC
	}
	if c.w.taken != taken {
		l &^= lackUnknown
	}
	return l
}

// wants reports whether nothing of a set has come back: another attempt would fail the same way.
func (c *core) wants(l lack, taken uint64) bool {
	return c.full() || l != 0 && c.lacking(l, taken) == l
}

// NotifyReady is the endpoint with a call back built in: a send on it that meets ErrNoResource has
// EndpointConfig.OnReady called once resources are back. While that is due, nothing overtakes it,
// as with [Endpoint.Pending].
func (e *Endpoint) NotifyReady() *Endpoint {
	if e.turn {
		return &e.c.faces[faceTurn|faceWake]
	}
	return &e.c.faces[faceWake]
}

// BypassQueue is the endpoint past its queue: sends on it do not wait behind pending requests, nor for a
// [Endpoint.Fence] that does. It is for operations with which nothing is ordered, and which need
// less than what the queue may be waiting for: a get needs no credit, and need not stand behind
// active messages that do. When one meets ErrNoResource the first request of the queue is asked
// again once resources are back; if there is none, queue one.
func (e *Endpoint) BypassQueue() *Endpoint { return &e.c.faces[faceAside] }

// ready is the function of the endpoint's own request: it calls OnReady, and stays if a send on a
// waking face met ErrNoResource again.
func ready(_ *Pending, turn *Endpoint) Outcome {
	if f := turn.c.cfg.OnReady; f != nil {
		f(turn.NotifyReady())
	}
	return PendingDone // but see runPending
}

// Purge empties the endpoint's queue: it hands every request to fn, once, in order, without running
// its function. One whose function runs at that moment is handed over when that wants to keep it.
// fn runs during the call; it may queue requests anew.
func (e *Endpoint) Purge(fn func(p *Pending)) {
	c := e.c
	w := c.w
	w.mu.Lock()
	q := &c.pending
	if q.running != nil {
		q.purge = fn
	}
	var purged, stay pendingQueue
	for p := q.pop(); p != nil; p = q.pop() {
		if p.internal {
			stay.push(p)
			continue
		}
		c.fenceNext = c.fenceNext || p.fence
		p.fence = false
		switch p {
		case &c.own: // the caller never saw that one
		case q.running: // it has queued itself, and is not handed over a second time
			q.purge = func(*Pending) {}
			fallthrough
		default:
			purged.push(p)
		}
	}
	q.head, q.tail, q.count = stay.head, stay.tail, stay.count
	for {
		p := purged.pop() // under the lock: until then it counts as queued
		w.mu.Unlock()
		if p == nil {
			w.sleep.wake() // whoever closes, or stands behind in the queue, may wait for nothing else
			return
		}
		fn(p)
		w.mu.Lock()
	}
}

// dispatchBudget bounds the pending functions that one round of progress runs.
const dispatchBudget = 256

// dispatchPending serves endpoints in turn, one request each, as long as there is anything that
// they can use. It is called with mu held, and lets go of it around every function. Who could not
// go at all does not count as done: waiting for it would be polling.
func (w *Worker) dispatchPending() (did int) {
	ran, idle := 0, 0 // functions, and endpoints in a row that could not go
	for w.waiting.len() != 0 && idle < w.waiting.len() && ran < dispatchBudget {
		c := w.waiting.pop()
		c.pending.ringed = false
		if c.pending.head == nil || c.pending.running != nil {
			continue
		}
		if p := c.pending.head; c.err == nil && c.wants(p.lack, p.taken) {
			c.ring()
			idle++
			continue
		}
		ran++
		tail := c.ops.tail
		if w.runPending(c) == PendingNoResource && c.ops.tail == tail {
			idle++
		} else {
			did++
			idle = 0 // who was served stands behind all who were not when the round ends
		}
		if c.pending.head != nil {
			c.ring()
		}
	}
	return did
}

// runPending runs the function of an endpoint's first request and does what it answers.
func (w *Worker) runPending(c *core) Outcome {
	p := c.pending.pop()
	c.pending.running, p.running = p, true
	c.fence = c.fence || p.fence && !c.ops.empty()
	p.fence = false
	p.again, p.lack = false, 0
	last := c.err != nil
	w.mu.Unlock()
	outcome := p.Func(p, &c.faces[faceTurn])
	w.mu.Lock()
	c.pending.running, p.running = nil, false
	purge := c.pending.purge
	c.pending.purge = nil
	if p.again {
		outcome = PendingProgress // what another goroutine's send met may have been nothing but this request
		if p.lack != 0 {
			outcome = PendingNoResource
		}
	}
	switch {
	case outcome == PendingDone || outcome > PendingNoResource || last || p.queued:
		return PendingDone
	case purge != nil && !p.internal:
		if p != &c.own {
			w.mu.Unlock()
			purge(p)
			w.mu.Lock()
		}
		return PendingDone
	case outcome == PendingNoResource && p.lack == 0:
		// It met no refusal that says what it waits for: any completion may change its mind.
		p.lack, p.taken = lackUnknown, w.taken
	}
	c.pending.pushFront(p)
	return outcome
}

// coreRing is a queue of endpoints.
type coreRing struct {
	slots      []*core // a power of two
	head, tail uint32
}

func (r *coreRing) len() int { return int(r.tail - r.head) }

func (r *coreRing) grow() {
	if r.len() < len(r.slots) {
		return
	}
	slots := make([]*core, max(8, 2*len(r.slots)))
	n := r.len()
	for i := range n {
		slots[i] = r.slots[(r.head+uint32(i))&uint32(len(r.slots)-1)]
	}
	r.slots, r.head, r.tail = slots, 0, uint32(n)
}

func (r *coreRing) push(c *core) {
	r.grow()
	r.slots[r.tail&uint32(len(r.slots)-1)] = c
	r.tail++
}

func (r *coreRing) pop() *core {
	i := r.head & uint32(len(r.slots)-1)
	c := r.slots[i]
	r.slots[i] = nil
	r.head++
	return c
}
