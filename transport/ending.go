package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// fail ends an endpoint's service, for the first reason that comes. What it has outstanding
// completes as the virtual queue pair flushes it.
func (c *core) fail(sentinel, cause error) {
	if c.err != nil {
		return
	}
	c.err = &EndpointError{Peer: c.cfg.Name, Err: sentinel, Cause: cause}
	c.cut = c.pending.any() || c.ops.len() > c.inControl
	wanted := errors.Is(sentinel, ErrCanceled) || errors.Is(sentinel, ErrClosed)
	parted := c.parting && !c.cut // the peer may be gone as soon as it has the goodbye, and nothing was lost
	if !wanted && !parted {
		c.w.failing = append(c.w.failing, c)
		c.w.stats.failures++
	}
	if c.deaf = errors.Is(sentinel, ErrProtocol); c.deaf || errors.Is(sentinel, ErrPeerClosed) {
		// The connection works, but what is outstanding would wait for a peer that is gone, or
		// cannot be trusted.
		_ = c.closeQP() // what is outstanding is flushed whatever a NIC says
	}
	if c.pending.head != nil {
		c.ring()
	}
	c.w.posted()
}

// Fence orders everything that is called on the endpoint after it behind everything before: no byte
// of a later put lands, and no later active message arrives, before the earlier ones have. It
// completes nothing, and costs nothing where nothing is outstanding.
//
// "Have landed" means that the peer's NIC has acknowledged. Where PCIe writes of several NICs may
// pass each other on the peer's host, an order that its processor can rely on takes a remote flush;
// see [ibverbx.Spray].
func (e *Endpoint) Fence() {
	c := e.c
	c.w.mu.Lock()
	if c.pending.any() && !e.turn {
		c.fenceNext = true // behind the queue: the next request that enters it takes it along
	} else if !c.ops.empty() {
		c.fence = true
	}
	c.w.mu.Unlock()
}

// FlushKind says what a flush waits for.
type FlushKind uint8

const (
	// FlushLocal waits for little: every earlier operation has completed: sources can be reused,
	// what was got is there.
	FlushLocal FlushKind = iota
	// FlushRemote waits for more: every earlier put and atomic is in the peer's memory besides,
	// visible to the peer's processor: a read on every queue pair has followed them (IBTA o9-20).
	FlushRemote
)

// String is the kind's name.
func (k FlushKind) String() string {
	switch k {
	case FlushLocal:
		return "local"
	case FlushRemote:
		return "remote"
	}
	return fmt.Sprintf("flush kind %d", uint8(k))
}

// StartFlush begins a flush: comp fires when every operation called before it has completed and its
// completion was delivered. Like a send it can meet ErrNoResource, while requests are pending for
// one. Done means that there was nothing to wait for; comp is not touched then.
func (e *Endpoint) StartFlush(kind FlushKind, comp *Completion) (done bool, err error) {
	w := e.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.startFlush(kind, comp)
}

func (e *Endpoint) startFlush(kind FlushKind, comp *Completion) (done bool, err error) {
	const name = "flush"
	c := e.c
	if err := e.usable(name); err != nil {
		return false, err
	}
	if kind > FlushRemote {
		return false, c.refuse(name, verbs.ErrInvalid, "%v: have local (%d) and remote (%d)", kind,
			FlushLocal, FlushRemote)
	}
	if err := e.admit(false, false); err != nil {
		return false, err
	}
	if kind == FlushRemote && c.dirty {
		return false, e.flushRemote(name, comp)
	}
	if c.ops.empty() {
		if c.untold == c.w.round { // what it waits for has ended, and whoever asks has not been told yet
			if comp != nil {
				c.w.late = append(c.w.late, event{kind: eventComplete, comp: comp})
			}
			return false, nil
		}
		return true, nil
	}
	o := c.ops.push()
	*o = op{kind: opFlush, buf: noBuffer, comp: comp}
	return false, nil
}

// flushRemote reads a word on every queue pair, behind everything.
func (e *Endpoint) flushRemote(name string, comp *Completion) error {
	c, w := e.c, e.c.w
	fence, fenceNext, rails := c.fence, c.fenceNext, c.qp.DataRails()
	n := uint64(8 * rails)
	// A single queue pair reads behind its writes and atomics anyhow. A fence would do harm there:
	// the kernel's rdma_rxe never repeats a fenced read that was lost, so that one to a dead peer
	// neither completes nor fails.
	if c.fence = rails > 1; !c.fence {
		c.fenceNext = false
	}
	wr := w.get[:]
	wr[0].Flags, wr[0].EveryRail = verbs.SendSignaled, true
	wr[0].Local = c.slab.Slice(c.scratch, n)
	wr[0].Remote = c.peer.Flush.Slice(0, n)
	_, err := e.post(name, wr, opData, noBuffer, comp)
	wr[0].EveryRail = false
	if err != nil || rails == 1 {
		c.fence, c.fenceNext = fence, fenceNext
	}
	if err == nil {
		c.dirty = false
	}
	return err
}

// Abort closes the endpoint at once. Every operation that is outstanding completes with
// ErrCanceled, unless it has ended before; the functions of pending requests run once more, and
// their sends fail. Completions fire in later progress, comp, which may be nil, after all of them.
// No NIC of this end touches memory on the endpoint's behalf once Abort has returned, so that no
// write of a cancelled operation lands after its completion; packets that are on the wire at that
// moment can. On a single queue pair this waits for the NIC to flush, a second at most, and the
// worker with it.
func (e *Endpoint) Abort(comp *Completion) error {
	c := e.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.aborted {
		return c.refuse("abort", ErrClosed, "")
	}
	c.onReleased = comp
	return c.abort(ErrCanceled)
}

// abort closes the queue pair and lets progress tell.
func (c *core) abort(sentinel error) error {
	c.fail(sentinel, nil)
	c.aborted, c.deaf = true, true
	err := c.closeQP()
	c.w.closing = append(c.w.closing, c)
	c.w.posted()
	return err
}

// closeQP destroys the queue pair: what is outstanding is flushed.
func (c *core) closeQP() error {
	if c.stage == stageAborted {
		return nil
	}
	c.stage = stageAborted
	return c.qp.Close()
}

// release gives back what an aborted endpoint holds, once the virtual CQ has told everything.
func (c *core) release() {
	if c.released {
		return
	}
	c.released = true
	w := c.w
	for !c.ops.empty() { // a single queue pair may drop what it flushes
		c.retire(false)
	}
	if c.onReleased != nil {
		w.tell(event{kind: eventComplete, comp: c.onReleased})
	}
	if err := c.slab.Close(); err != nil {
		w.stats.leaked++
	}
	w.endpoints[c.id] = nil
	w.open--
}

// cellValue is the result of the atomic in a slot.
func (c *core) cellValue(slot uint32) uint64 {
	return binary.NativeEndian.Uint64(c.slabMem[c.cellOffset(slot):])
}

// Close ends the endpoint well: pending requests go out, everything outstanding completes, the peer
// is told, and the queue pair is closed. The peer's calls are refused with ErrPeerClosed from then
// on; agree with it on the moment if it may have something to send. When ctx ends before, or the
// peer fails, the rest is aborted, and Close returns the error. An endpoint that has failed before
// is only given back.
func (e *Endpoint) Close(ctx context.Context) error {
	c := e.c
	w := c.w
	w.mu.Lock()
	if c.stage == stageClosing || c.aborted {
		w.mu.Unlock()
		return c.refuse("close", ErrClosed, "")
	}
	works := c.err == nil
	if works {
		c.stage = stageClosing
	}
	w.mu.Unlock()
	var err error
	if works && c.connected {
		err = w.WaitFor(ctx, 0, c.parted)
	}
	gone := NewCompletion(1, nil)
	w.mu.Lock()
	if works && err == nil && c.cut {
		err = c.err
	}
	if c.aborted { // by Abort or Worker.Close, which need not wait
		w.mu.Unlock()
		return c.err
	}
	c.onReleased = gone
	sentinel := ErrClosed
	if err != nil {
		sentinel = ErrCanceled
	}
	aborting := c.abort(sentinel)
	w.mu.Unlock()
	if released := w.Wait(ctx, gone); err == nil {
		err = released // somebody's callback holds progress up: what is left is given back in later progress
	}
	return errors.Join(err, aborting)
}

// parted carries a closing endpoint on: when nothing is outstanding it says goodbye, and reports
// true once the peer has that, or is gone.
func (c *core) parted() bool {
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case c.err != nil:
		return true
	case c.pending.any() || !c.ops.empty():
		return false
	case !c.parting:
		c.parting = c.sendControl(wireBye)
		return false
	}
	return true
}
