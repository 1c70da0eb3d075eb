package sendside

import (
	"errors"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// end is an endpoint, and the model of it.
type end struct {
	w         *transportWorld
	site      *site
	pair      *pair
	peer      *end
	ep        *transport.Endpoint
	wires     []*wire
	card      transport.Card // the peer's; set by connect
	flushAt   uint64         // address in the peer's memory that remote flushes read
	connected bool
	dead      bool // it could not connect
	operations
	messages
	pendingQueue
	life
}

// operations are an endpoint's accepted operations, and the fences and flushes between them.
//
// Invariant: ended <= len(ops), and ops before ended have ended; fences <= len(ops).
type operations struct {
	ops   []*op // in the order of the calls
	ended int   // ops before this index have ended
	// firstFailed is the first operation whose own completion has reported an error.
	firstFailed *op
	puts        []*op // those with bytes among the puts

	fences    int  // ops before this index must land before those from it on
	fenced    bool // there was a fence
	fenceNext bool // there was one while requests were queued: it applies after them

	dirty          bool // something was written since the last remote flush
	waitingFlushes int  // programs in Flush, whose requests may be in the queue
}

// messages counts the active messages of an endpoint.
//
// Invariant: givenBack <= handled <= len(peer.sent) <= givenBack + the endpoint's receive buffers.
type messages struct {
	sent      []*op
	handled   int // messages of the peer that were handled
	givenBack int // those of them whose buffers the program has given back
}

// pendingQueue has the pending requests of an endpoint.
type pendingQueue struct {
	queue       []*request // in the order in which they must be served
	running     *request   // its function runs
	handing     *request   // it ran during a purge and wants to stay: it must be handed back
	notifyReq   *request   // the request that stands for OnReady
	notifyAgain bool       // a send met ErrNoResource while OnReady ran
	// by other endpoint: how often it was served while the first request waited for a bounce buffer
	skipped    map[*end]int
	turnedAway bool // a NIC has refused an operation: requests may be queued until the next progress
}

// life is an endpoint's progress towards its end, or how it has ended.
type life struct {
	fate
	aborted      bool
	soundAtAbort bool // it had not failed before Abort
	released     bool // Close has returned, or the completion of Abort has fired
	closedWell   bool // Close has succeeded, so the peer knows
}

// newEnd makes an endpoint.
func (w *transportWorld) newEnd(c *pair, s *site, letter rune) *end {
	e := &end{w: w, site: s, pair: c}
	e.fate = fate{b: &w.testbed, name: sprintf("%d%c", len(w.pairs)-1, letter), home: s.Host, link: c.link}
	e.skipped = map[*end]int{}
	w.build = c.link
	before := len(c.wires)
	var err error
	e.ep, err = s.worker.NewEndpoint(transport.EndpointConfig{Name: e.name, Value: e, OnError: e.onError,
		OnReady: e.onReady})
	w.build = nil
	w.Must("new endpoint "+e.name, err)
	e.wires = slices.Clone(c.wires[before:])
	e.notifyReq = &request{e: e, own: true}
	w.ends, s.ends = append(w.ends, e), append(s.ends, e)
	return e
}

// manner is the way in which an operation is tried.
type manner uint8

const (
	plain     manner = iota
	notifying        // on the view for which OnReady is called
	fromQueue        // on the view of a request at the head of the queue
)

// act tries an operation that it draws, and returns why that was not accepted.
func (e *end) act(how manner) error {
	if !e.connected {
		return transport.ErrNotConnected
	}
	o, ok := e.newOp()
	if !ok {
		return transport.ErrNoResource
	}
	face := e.ep
	if how == notifying {
		face = e.ep.NotifyReady()
	}
	return e.try(o, face, how)
}

// try tries an operation on a view, and drops it if it is not accepted.
func (e *end) try(o *op, face *transport.Endpoint, how manner) error {
	err := e.sendOn(o, face, how)
	if err != nil {
		o.drop()
	}
	return err
}

// drop ends an operation that is not accepted, and its share in a completion.
func (o *op) drop() {
	if o.group != nil {
		o.group.countDown(1)
	}
	o.forget()
}

// gauge has the library's counters for an endpoint.
type gauge struct {
	transport.EndpointStats
	bounce int // bounce buffers that it can take: shared ones and its own
}

func (e *end) gauge() gauge {
	g := gauge{EndpointStats: e.ep.Stats()}
	g.bounce = e.site.worker.Stats().BounceFree + g.OwnBuffers
	return g
}

// sendOn tries an operation on a view, and checks the result and effect of the call.
func (e *end) sendOn(o *op, face *transport.Endpoint, how manner) error {
	w := e.w
	before := e.gauge()
	refusing := w.Refusing()
	o.prepare(how)
	w.calling++
	done, err := o.call(face)
	w.calling--
	after := e.gauge()
	w.Logf("  %v: %v, %d bytes: done %v, %v", e, o.kind, o.n, done, err)
	switch {
	case err == nil:
		e.accept(o, how, done, before, after)
	case errors.Is(err, transport.ErrNoResource):
		e.refused(o, how, before, after, refusing)
	default:
		e.failed(o, err, before, after)
	}
	return err
}

// prepare records what the state before the call means for the operation.
func (o *op) prepare(how manner) {
	e := o.e
	o.fence = 0
	if e.fenceNext && how != fromQueue && len(e.queue) == 0 && e.running == nil {
		e.fenceHere() // nothing that is still queued could be accepted earlier
	}
	if e.fenced {
		o.fence = e.fences
	}
	if o.fromPut != nil {
		o.fromSure = o.fromPut.ended && o.fromPut.err == nil || o.fromPut.seq < o.fence && !o.fromPut.ended
	}
	if o.kind == flushRemote {
		o.must = e.dirty && e.waitingFlushes == 0 // a program that waits may have flushed it
		o.reads = o.reads[:0]
		for _, q := range e.wires {
			o.reads = append(o.reads, q.readsOf(e.flushAt))
		}
	}
}

// accept handles an accepted operation.
func (e *end) accept(o *op, how manner, done bool, before, after gauge) {
	w := e.w
	switch {
	// an operation of no bytes overtakes nothing
	case how != fromQueue && (len(e.queue) != 0 || before.Pending != 0) &&
		(!done || o.n != 0 || o.kind.flush()):
		w.Broken(ruleOvertaking, "%v was accepted, and %d requests wait", o,
			max(len(e.queue), before.Pending))
	case e.closed || e.closing && how != fromQueue || e.errors != 0:
		w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", o)
	case after.Outstanding > after.Limit && !o.kind.flush():
		w.Broken(ruleResource, "%v: %d are outstanding, the limit is %d", o, after.Outstanding, after.Limit)
	case done && o.group == nil && o.kind.completes() && o.n != 0 && !o.kind.flush():
		w.Broken(ruleOnce, "%v is done already", o)
	}
	if done { // there was nothing to do
		if o.kind.flush() {
			for _, earlier := range e.ops {
				if earlier.unreported() {
					w.Broken(ruleFlush, "%v: nothing to wait for, it says, and the completion of %v was "+
						"not delivered", o, earlier)
				}
				earlier.end(nil)
			}
			e.advance()
			if o.must {
				w.Broken(ruleFlush, "%v: nothing to wait for, it says, and nothing was read behind the data",
					o)
			}
		}
		o.drop()
		return
	}
	if !o.kind.flush() && after.Outstanding != before.Outstanding+1 {
		w.Broken(ruleBalance, "%v: %d outstanding before, and %d after", o, before.Outstanding,
			after.Outstanding)
	}
	if how != fromQueue {
		e.fenceNext = false
	}
	o.ownBuffer = after.OwnBuffers < before.OwnBuffers
	o.seq = len(e.ops)
	e.ops = append(e.ops, o)
	switch {
	case o.kind.am():
		e.sent = append(e.sent, o)
		e.checkCredits(o, before, after)
	case o.kind.put():
		e.puts = append(e.puts, o)
		e.dirty = true
	case o.kind.atomic():
		e.dirty = true
	case o.kind == flushRemote && o.must:
		e.dirty = false
	}
	if !o.kind.completes() { // the program may reuse the source
		e.site.Memory.Reuse(o.src)
	}
	if o.group != nil {
		o.group.ops = append(o.group.ops, o)
	}
}

// checkCredits checks that the peer has room for an active message.
func (e *end) checkCredits(o *op, before, after gauge) {
	if after.Credits != before.Credits-1 {
		e.w.Broken(ruleCredits, "%v: %d credits before, %d after", o, before.Credits, after.Credits)
	}
	if n, most := len(e.sent)-e.peer.givenBack, e.peer.site.cfg.AMBuffers; n > most {
		e.w.Broken(ruleCredits, "%v: %d messages are with a peer that has %d buffers", o, n, most)
	}
}

// refused handles ErrNoResource.
func (e *end) refused(o *op, how manner, before, after gauge, refusing bool) {
	w := e.w
	switch {
	case how != notifying || slices.Contains(e.queue, e.notifyReq):
	case e.running == e.notifyReq:
		e.notifyAgain = true
	default:
		e.enqueue(e.notifyReq)
	}
	e.turnedAway = e.turnedAway || refusing
	same := before
	same.Pending = after.Pending
	if after != same {
		w.Broken(ruleNoEffect, "%v met ErrNoResource: %+v before, %+v after", o, before, after)
	}
	missing := before.Outstanding >= before.Limit || o.kind.am() && before.Credits == 0 || !o.kind.flush() &&
		before.bounce == 0 || refusing ||
		how != fromQueue && before.Pending+len(e.queue) != 0 || how != fromQueue && e.running != nil
	if !missing {
		w.Broken(ruleResource, "%v met ErrNoResource, and nothing is missing: %+v", o, before)
	}
}

// enqueue records that a request is in the queue. A fence called after earlier requests applies
// from here.
func (e *end) enqueue(r *request) {
	r.fence, e.fenceNext = e.fenceNext, false
	e.queue = append(e.queue, r)
}

// failed handles any other error.
func (e *end) failed(o *op, err error, before, after gauge) {
	w := e.w
	var ended *transport.EndpointError
	switch {
	case lab.Injected(err) && e.mayFail() != "": // a single queue pair returns its NIC's own errors
	case e.ends():
		if !errors.Is(err, transport.ErrClosed) && !errors.As(err, &ended) {
			w.Broken(lab.Refusal, "%v on an endpoint that was closed: %v", o, err)
		}
	case !errors.As(err, &ended) || ended.Peer != e.name || !errors.Is(err, e.ep.Err()):
		w.Broken(lab.Refusal, "%v: %v: the endpoint says %v", o, err, e.ep.Err())
	case e.mayFail() == "":
		w.Broken(lab.Isolation, "%v: %v", o, err)
	}
	if after.Credits != before.Credits || after.bounce != before.bounce {
		w.Broken(ruleNoEffect, "%v was refused (%v): %+v before, %+v after", o, err, before, after)
	}
}

// fence orders the following operations.
func (e *end) fence() {
	if !e.connected || e.closed {
		return
	}
	e.ep.Fence()
	if len(e.queue) != 0 || e.running != nil {
		e.fenceNext = true // after the queued requests
		return
	}
	e.fenceHere()
}

// fenceHere orders later operations after all that were accepted so far.
func (e *end) fenceHere() { e.fences, e.fenced = len(e.ops), true }

// checkFence checks the order in which puts have landed so far.
func (e *end) checkFence() {
	hole := -1 // the first put that has not landed whole
	for _, o := range e.ops[e.ended:] {
		if !o.kind.put() {
			continue
		}
		if hole >= 0 && o.fence > hole && !e.peer.site.Memory.Untouched(o.dst) {
			e.w.Broken(ruleFence, "%v has begun to land, and %v, before the fence, has not ended", o,
				e.ops[hole])
		}
		if hole < 0 && !o.landed() {
			hole = o.seq
		}
	}
}

// onError is EndpointConfig.OnError.
func (e *end) onError(ep *transport.Endpoint, err error) {
	w := e.w
	w.enter(e.site, sprintf("%v fails: %v", e, err))
	defer w.leave()
	e.fails(ep == e.ep && ep.Value() == any(e), err)
	switch closed := errors.Is(err, transport.ErrPeerClosed); {
	case !closed && !errors.Is(err, transport.ErrPeerFailed):
		w.Broken(ruleNoticed, "%v: OnError: %v", e, err)
	case closed && e.handled != len(e.peer.sent):
		w.Broken(ruleMessages, "%v: the peer has closed: %d of its %d messages were handled", e, e.handled,
			len(e.peer.sent))
	}
	if w.OneIn(4) {
		e.purge() // what waits is still in the queue
	}
	e.react()
}

// react plays a program inside a callback.
func (e *end) react() {
	w := e.w
	if w.finishing || !w.OneIn(3) {
		return
	}
	on := e
	if w.OneIn(3) {
		if on = w.ends[w.Rng.IntN(len(w.ends))]; on.site != e.site {
			on = e
		}
	}
	switch w.Rng.IntN(8) {
	case 0:
		on.sendOrQueue()
	case 1:
		on.act(notifying)
	case 2:
		on.fence()
	case 3:
		w.release() // perhaps of another endpoint
	case 4:
		if w.OneIn(4) {
			on.purge()
		}
	default:
		on.act(plain)
	}
}
