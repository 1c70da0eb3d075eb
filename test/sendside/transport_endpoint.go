package sendside

import (
	"context"
	"errors"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// end is an endpoint, and the model of it.
type end struct {
	w    *world
	site *site
	pair *pair
	peer *end // nil when the peer is an intruder
	name string
	ep   *transport.Endpoint

	wires     []*wire
	flushAt   uint64 // where remote flushes read
	connected bool
	dead      bool // it could not connect, and is not used

	ops       []*op // accepted, in the order of the calls
	ended     int   // this many of them have ended
	puts      []*op // the puts among them that have bytes
	fences    int   // operations before this one are behind the last fence
	fenced    bool  // there was a fence
	fenceNext bool  // there was one while requests were queued: behind them
	dirty     bool  // something was written since the last remote flush

	sent     []*op // active messages
	handled  int   // of the peer's
	gone     int   // of the peer's: the program has given their buffers back
	queue    []*request
	running  *request
	handing  *request // it ran while the queue was emptied, wants to stay, and is to be handed back
	own      *request // of the face that wakes
	ownAgain bool     // a send on it met ErrNoResource while OnReady ran
	// how often others were served while the first request here waited for a bounce buffer
	skipped map[*end]int

	errors   int             // how often OnError ran
	blame    string          // why it may fail though the link is sound
	ctx      context.Context // of Close
	closing  bool            // Close was called
	closed   bool            // Close has returned, or Abort was called
	aborted  bool
	wasSound bool // when it was aborted
	released bool // Close has returned, or the completion of Abort has fired
	farewell bool // it has closed well, and so has told the peer
	hidden   int  // flushes that wait, perhaps in the queue
}

func (e *end) String() string { return e.name }

func (e *end) intruder() *intruder { return e.pair.intruder }

// newEnd makes an endpoint.
func (w *world) newEnd(c *pair, s *site, letter rune) *end {
	e := &end{w: w, skipped: map[*end]int{}, site: s, pair: c, name: sprintf("%d%c", len(w.pairs)-1, letter)}
	w.build = c.link
	before := len(c.wires)
	var err error
	e.ep, err = s.worker.NewEndpoint(transport.EndpointConfig{Name: e.name, Value: e, OnError: e.onError,
		OnReady: e.onReady})
	w.build = nil
	w.Must("new endpoint "+e.name, err)
	e.wires = slices.Clone(c.wires[before:])
	e.own = &request{e: e, own: true}
	w.ends = append(w.ends, e)
	return e
}

// mayFail says whether there is a reason for the endpoint to fail.
func (e *end) mayFail() string {
	if e.pair.Blame != "" {
		return e.pair.Blame
	}
	return e.blame
}

// manner is how an operation is tried.
type manner uint8

const (
	plain  manner = iota
	waking        // on the face that has OnReady called
	turn          // from the head of the queue
)

// act tries an operation that is drawn. It returns why it did not start.
func (e *end) act(how manner) error {
	if !e.connected {
		return transport.ErrNotConnected
	}
	o, ok := e.newOp()
	if !ok {
		return transport.ErrNoResource
	}
	face := e.ep
	if how == waking {
		face = e.ep.NotifyReady()
	}
	err := e.sendOn(o, face, how)
	if err != nil {
		o.drop()
	}
	return err
}

// drop gives up an operation that is not accepted.
func (o *op) drop() {
	if o.group != nil {
		o.group.less(1)
	}
	o.forget()
}

// send tries an operation that needs no memory.
func (e *end) send(o *op, how manner) error {
	if o == nil {
		return nil
	}
	err := e.sendOn(o, e.ep, how)
	if err != nil && o.group != nil {
		o.group.less(1)
	}
	return err
}

// gauge is what the library counts.
type gauge struct {
	transport.EndpointStats
	bounce int
}

func (e *end) gauge() gauge {
	return gauge{e.ep.Stats(), e.site.worker.Stats().BounceFree}
}

// sendOn tries an operation, and checks what the call may do and say.
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

// prepare notes what the state before the call makes of the operation.
func (o *op) prepare(how manner) {
	e := o.e
	o.fence = 0
	if e.fenceNext && how != turn && len(e.queue) == 0 && e.running == nil {
		e.fenceHere() // where it is accepted, which nothing that is queued can be before
	}
	if e.fenced {
		o.fence = e.fences
	}
	if o.fromPut != nil {
		o.fromSure = o.fromPut.ended && o.fromPut.err == nil || o.fromPut.seq < o.fence && !o.fromPut.ended
	}
	if o.kind == flushRemote {
		o.must = e.dirty && e.hidden == 0 // a program that waits may have seen to it
		o.reads = o.reads[:0]
		for _, q := range e.wires {
			o.reads = append(o.reads, q.readsOf(e.flushAt))
		}
	}
}

// accept takes in that an operation was accepted.
func (e *end) accept(o *op, how manner, done bool, before, after gauge) {
	w := e.w
	switch {
	// no bytes overtake nobody
	case how != turn && (len(e.queue) != 0 || before.Pending != 0) && (!done || o.n != 0 || o.kind.flush()):
		w.Broken(ruleOvertaking, "%v was accepted, and %d requests wait", o,
			max(len(e.queue), before.Pending))
	case e.closed || e.closing && how != turn || e.errors != 0:
		w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", o)
	case after.Outstanding > after.Limit && !o.kind.flush():
		w.Broken(ruleResource, "%v: %d are outstanding, the limit is %d", o, after.Outstanding, after.Limit)
	case done && o.group == nil && o.kind.completes() && o.n != 0 && !o.kind.flush():
		w.Broken(ruleOnce, "%v is done already", o)
	}
	if done { // nothing was to be done
		if o.kind.flush() {
			for _, earlier := range e.ops {
				if earlier.untold() {
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
	if how != turn {
		e.fenceNext = false
	}
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
	if !o.kind.completes() { // the source is the program's again
		e.site.Memory.Reuse(o.src, sprintf("the source of %v", o))
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
	if e.peer == nil {
		return
	}
	if n, most := len(e.sent)-e.peer.gone, e.peer.site.cfg.AMBuffers; n > most {
		e.w.Broken(ruleCredits, "%v: %d messages are with a peer that has %d buffers", o, n, most)
	}
}

// refused takes in ErrNoResource.
func (e *end) refused(o *op, how manner, before, after gauge, refusing bool) {
	w := e.w
	switch {
	case how != waking || slices.Contains(e.queue, e.own):
	case e.running == e.own:
		e.ownAgain = true
	default:
		e.enqueue(e.own)
	}
	same := before
	same.Pending = after.Pending
	if after != same {
		w.Broken(ruleNoEffect, "%v met ErrNoResource: %+v before, %+v after", o, before, after)
	}
	lacks := before.Outstanding >= before.Limit || o.kind.am() && before.Credits == 0 || !o.kind.flush() &&
		before.bounce == 0 || refusing ||
		how != turn && before.Pending+len(e.queue) != 0 || how != turn && e.running != nil
	if !lacks {
		w.Broken(ruleResource, "%v met ErrNoResource, and nothing lacks: %+v", o, before)
	}
}

// enqueue notes that a request is in the queue. It takes a fence along that was called behind those
// before it.
func (e *end) enqueue(r *request) {
	r.fence, e.fenceNext = e.fenceNext, false
	e.queue = append(e.queue, r)
}

// failed takes in any other error.
func (e *end) failed(o *op, err error, before, after gauge) {
	w := e.w
	var ended *transport.EndpointError
	switch {
	case e.closed || e.closing:
		if !errors.Is(err, transport.ErrClosed) && !errors.As(err, &ended) {
			w.Broken(lab.Refusal, "%v on an endpoint that was closed: %v", o, err)
		}
	case lab.Injected(err) && e.mayFail() != "": // a single queue pair passes on what the NIC says
	case !errors.As(err, &ended) || ended.Peer != e.name || !errors.Is(err, e.ep.Err()):
		w.Broken(lab.Refusal, "%v: %v: the endpoint says %v", o, err, e.ep.Err())
	case e.mayFail() == "":
		w.Broken(lab.Isolation, "%v: %v", o, err)
	}
	if after.Credits != before.Credits || after.bounce != before.bounce {
		w.Broken(ruleNoEffect, "%v was refused (%v): %+v before, %+v after", o, err, before, after)
	}
}

// fence orders what follows.
func (e *end) fence() {
	if !e.connected || e.closed {
		return
	}
	e.ep.Fence()
	if len(e.queue) != 0 || e.running != nil {
		e.fenceNext = true // behind what is queued
		return
	}
	e.fenceHere()
}

// fenceHere puts what comes behind what was accepted so far.
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
	e.errors++
	switch {
	case e.errors > 1:
		w.Broken(ruleNoticed, "%v: OnError ran %d times", e, e.errors)
	case ep != e.ep || ep.Value() != any(e):
		w.Broken(ruleNoticed, "%v: OnError is given another endpoint", e)
	case !errors.Is(err, transport.ErrPeerFailed) && !errors.Is(err, transport.ErrPeerClosed) &&
		!errors.Is(err, transport.ErrProtocol):
		w.Broken(ruleNoticed, "%v: OnError: %v", e, err)
	case e.mayFail() == "":
		w.Broken(lab.Isolation, "%v: %v", e, err)
	case errors.Is(err, transport.ErrProtocol) && e.intruder() == nil:
		w.Broken(lab.Isolation, "%v: %v, and the peer keeps the rules", e, err)
	case errors.Is(err, transport.ErrPeerClosed) && e.peer != nil:
		if !e.peer.closing {
			w.Broken(ruleNoticed, "%v: %v, and the peer has not closed", e, err)
		}
		if e.handled != len(e.peer.sent) {
			w.Broken(ruleMessages, "%v: the peer has closed: %d of its %d messages were handled", e,
				e.handled, len(e.peer.sent))
		}
	}
	e.react()
}

// react does what a program may do inside of a callback.
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
	switch w.Rng.IntN(6) {
	case 0:
		on.later()
	case 1:
		on.act(waking)
	case 2:
		on.fence()
	default:
		on.act(plain)
	}
}
