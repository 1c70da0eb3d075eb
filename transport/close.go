package transport

import (
	"context"
	"errors"
	"time"

	"ibverbx"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// fail ends an endpoint's service because of the queue pair or the peer; only the first reason
// counts. Outstanding operations complete as the virtual queue pair flushes them.
func (p *peerState) fail(to stage, sentinel, cause error) {
	if p.ending.err != nil {
		return
	}
	parting := p.ending.stage == stageParting
	p.end(to, sentinel, cause)
	if !parting || p.ending.failedBusy { // otherwise the peer has the goodbye, and nothing was lost
		p.w.chores.failing = append(p.w.chores.failing, p)
		p.ending.reporting = true
		p.w.stats.failures++
		if to == stageViolated {
			p.w.stats.violations++
		}
	}
	if to.qpClosed() {
		_ = p.conn.qp.Close() // flushes what is outstanding even if a NIC reports an error
	}
	p.w.wakeForChores()
}

// end enters a stage that ends the service. Requests that are pending, for which the endpoint is
// scheduled already, are called once more, after OnError.
func (p *peerState) end(to stage, sentinel, cause error) {
	p.ending.fail(to, p.newError(sentinel, cause), p.sending.busy())
}

// failQP fails the endpoint because its virtual queue pair refused work that it should accept.
func (p *peerState) failQP(err error) {
	cause := p.conn.qp.Err()
	if cause == nil {
		cause = reason(err)
	}
	p.fail(stageFailed, ErrPeerFailed, cause)
}

// Abort closes the endpoint at once. Every outstanding operation completes with ErrCanceled, unless
// it has ended before; the functions of pending requests run once more, and their sends fail.
// Completions fire in later progress; comp, which may be nil, fires after all of them. Once Abort
// has returned, no NIC of this end accesses memory on the endpoint's behalf, so no write of a
// cancelled operation lands after its completion; packets that are on the wire at that moment can.
// On a single queue pair Abort waits for the NIC to flush, a second at most, and holds up the
// worker.
//
// If the queue pair still works, the peer learns of the abort, and its endpoint fails with
// ErrPeerAborted: a message follows the posted operations, and Abort gives it a millisecond to
// leave, during which all other calls on the worker wait, too. [Worker.Close] takes one millisecond
// for all endpoints together. Operations that end in that time have ended before. A peer that the
// message does not reach notices when operations to it fail, or by its keep-alive.
func (e *Endpoint) Abort(comp *Completion) error {
	p := e.peer
	p.w.mu.Lock()
	defer p.unlock()
	if p.ending.stage >= stageAborted {
		return p.refuse("abort", ErrClosed, "")
	}
	if p.postAbort() {
		drainAborts([]*peerState{p})
	}
	return p.abort(ErrCanceled, comp)
}

// abortPatience is how long the message about an abort may take to leave. On a working network it
// takes microseconds.
const abortPatience = time.Millisecond

// postAbort posts the message about an abort, unless the goodbye was posted. It reports whether one
// of them may be on its way.
func (p *peerState) postAbort() bool {
	s := p.ending.stage
	if s == stageParting {
		return true
	}
	return s.serves() && p.sendControl(wireAbort)
}

// drainAborts gives the messages of postAbort time to leave. The queue pairs accept nothing more.
func drainAborts(notified []*peerState) {
	if len(notified) == 0 || notified[0].w.cfg.Idle != nil {
		return // a program that moves its network by hand cannot do so while Abort waits
	}
	ctx, cancel := context.WithTimeout(context.Background(), notified[0].w.abortPatience)
	defer cancel()
	for _, p := range notified {
		_ = p.conn.qp.Drain(ctx) // it may fail: the queue pair is closed next
	}
	notified[0].w.sleep.wake() // Drain may have taken the event that a goroutine waits for
}

// abort closes the queue pair and leaves the rest to progress, which counts comp at the end. The
// endpoint must not be aborted.
func (p *peerState) abort(sentinel error, comp *Completion) (err error) {
	closed := p.ending.stage.qpClosed()
	if p.ending.err == nil {
		p.end(stageAborted, sentinel, nil)
	} else {
		p.ending.move(stageAborted)
	}
	p.ending.onReleased = comp
	if !closed {
		err = p.conn.qp.Close()
	}
	p.w.chores.closing = append(p.w.chores.closing, p)
	p.w.wakeForChores()
	return err
}

// release frees the resources of an aborted endpoint, once the virtual CQ has no completions of it
// left.
func (p *peerState) release() {
	w := p.w
	p.retireAll() // a single queue pair may drop what it flushes
	p.ending.move(stageReleased)
	if p.ending.onReleased != nil {
		w.round.report(event{kind: eventComplete, comp: p.ending.onReleased})
	}
	if err := p.mem.mr.Close(); err != nil {
		w.stats.leaked++
	}
	w.stats.closed.add(p)
	w.endpoints.remove(p)
	// The program may keep the endpoint for long; it refuses every call from now on.
	last := p.conn.qp.Stats()
	w.stats.railsLost, w.stats.railsBack = w.stats.railsLost+last.RailsLost, w.stats.railsBack+last.RailsBack
	w.stats.released.AddCounters(&last)
	w.stats.releases++
	p.conn.last, p.conn.qp, p.sending.ops = &last, nil, ring.NewWindow[op]()
	if !p.receiving.inUse() {
		p.mem, p.receiving.messages, p.receiving.toRepost = slab{}, nil, nil
	}
}

// Close ends the endpoint in order: pending requests are sent, outstanding operations complete, the
// peer gets a goodbye, and the queue pair is closed. From then on the peer's calls are refused with
// ErrPeerClosed; agree with the peer on the moment if it may have something to send. If ctx ends
// before, or the peer fails, the rest is aborted, and Close returns the error. Close of an endpoint
// that has failed before only releases it.
func (e *Endpoint) Close(ctx context.Context) error {
	if err := needContext("close", ctx); err != nil {
		return err
	}
	p := e.peer
	w := p.w
	var err error
	w.mu.Lock()
	switch s := p.ending.stage; {
	case s == stageClosing || s == stageParting || s >= stageAborted:
		w.mu.Unlock()
		return p.refuse("close", ErrClosed, "")
	case s == stageOpen:
		p.ending.move(stageClosing)
		p.unlock()
		err = w.await(ctx, 0, p.parted, awaited{peer: p})
		w.mu.Lock()
		if err == nil && p.ending.failedBusy {
			err = p.ending.err
		}
		if p.ending.stage >= stageAborted { // by Abort or Worker.Close, which need not wait
			defer w.mu.Unlock()
			return p.ending.err
		}
	}
	gone := NewCompletion(1, nil)
	sentinel := ErrClosed
	lost := p.sending.takeLostAtomic()
	if err != nil {
		sentinel = ErrCanceled
	}
	if err != nil && p.postAbort() {
		drainAborts([]*peerState{p})
	}
	aborting := p.abort(sentinel, gone)
	p.unlock()
	if released := w.Wait(ctx, gone); err == nil {
		err = released // a callback holds progress up: later progress releases the rest
	}
	if err == nil {
		err = lost
	}
	return errors.Join(err, aborting)
}

// parted moves a closing endpoint on: when nothing is outstanding it sends the goodbye. It reports
// true once the peer has that, or the endpoint has failed.
func (p *peerState) parted() bool {
	p.w.mu.Lock()
	defer p.unlock()
	switch {
	case p.ending.err != nil:
		return true
	case p.sending.pending.any() || !p.sending.idle():
		return false
	case p.ending.stage == stageClosing:
		if p.sendControl(wireBye) {
			p.ending.move(stageParting)
		}
		return false
	}
	return true
}

// newError makes the error of an endpoint that serves no more. It names the failed operation, of
// which the virtual queue pair knows only a number, and puts the event of this end's NIC first.
func (p *peerState) newError(sentinel, cause error) *EndpointError {
	e := &EndpointError{Peer: p.cfg.Name, Err: sentinel, Cause: cause}
	var failed *ibverbx.FailedError
	if !errors.As(cause, &failed) {
		return e
	}
	named := *failed // the virtual queue pair keeps its own
	named.Name = p.nameOf(failed)
	e.Cause, e.Op = &named, named.Name
	p.w.watch.look()
	e.Event = p.w.watch.explains(failed)
	return e
}

// nameOf returns a name for what has failed; "" if it is unknown.
func (p *peerState) nameOf(f *ibverbx.FailedError) string {
	if !f.HasID {
		return ""
	}
	if f.ID&wridRecv != 0 {
		return "receive of messages"
	}
	ops := &p.sending.ops
	for n := ops.Head; n != ops.Tail; n++ {
		if uint32(n) == wridLow(f.ID) {
			return opNames[ops.At(n).kind]
		}
	}
	switch f.Opcode { // its post was refused: it is no operation yet
	case verbs.WCSend:
		return opNames[opAM]
	case verbs.WCRDMAWrite:
		return opNames[opPut]
	case verbs.WCRDMARead:
		return opNames[opGet]
	case verbs.WCFetchAdd:
		return opNames[opFetchAdd]
	case verbs.WCCompSwap:
		return opNames[opCompareSwap]
	}
	return ""
}
