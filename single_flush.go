package ibverbx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"ibverbx/verbs"
)

// ownRequests are the requests that Drain, Close and Reset post on a single queue pair, to be told
// by their completions how far it is: a marker behind the sends, and then, in ERR, one on either
// queue, whose flush says that all before it was flushed. Counting would not do: which unsignaled
// requests still complete, the NIC alone knows. All have the same ID, which nobody else uses; their
// completions do not reach the user.
type ownRequests struct {
	id     uint64 // drawn by ownID
	left   int    // own requests on the queue pair
	marked bool   // the marker was posted

	sent, recvd      bool  // the send and the receive that are to be flushed were posted
	sendErr, recvErr error // why not
	tired            bool  // the NIC was waited for in vain

	past uint64 // sends of earlier lives that have no successful completion, and never will have

	outstanding int       // the user's requests, when quiet looked last
	looks       int       // how often it has found as many
	since       time.Time // when that last changed
}

const (
	flushPatience = time.Second // how long Close and Reset wait for a NIC that does not answer
	// how long flushed requests are awaited that cannot be asked about: NICs flush within
	// microseconds
	flushQuiet = 10 * time.Millisecond
	flushLooks = 50 // and how often the CQ is polled meanwhile, at least
)

// sendsPassed reports whether all sends of a single queue pair have ended. When it does, either all
// have ended well or a failure is recorded; that is why flushes are no failures from then on.
func (q *VirtualQP) sendsPassed() bool {
	o, rl := &q.own, q.rails[0]
	if rl.closed || q.failure != nil || !o.marked && q.counters.sends-q.counters.sendsDone == o.past {
		return true // a queue pair that has failed is in ERR: its sends are flushed with its receives
	}
	if !o.marked {
		err := q.postOwnSend()
		if refusedForGood(err) {
			q.failOwn(rl, noRequest(fmt.Errorf("a request of Drain's own: %w", err)))
			return true
		}
		o.marked = err == nil
		q.collect()
	}
	return o.marked && o.left == 0
}

// recvsPassed reports whether everything on a single queue pair has ended, which is in ERR. Where
// the NIC does not let that be found out, the queue pair is reset, or destroyed if it refuses that
// too: it then holds nothing for sure.
func (q *VirtualQP) recvsPassed() bool {
	o, rl := &q.own, q.rails[0]
	if rl.closed || q.nothingLeft() || q.flushPassed() || q.nothingLeft() {
		return true
	}
	for _, err := range []error{o.sendErr, o.recvErr} {
		if refusedForGood(err) {
			q.failOwn(rl, noRequest(fmt.Errorf("a request of Drain's own: %w", err)))
		}
	}
	if q.failure == nil || !q.flushUnknown() {
		return false
	}
	if rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState) != nil {
		if rl.qp.Close() != nil {
			return false
		}
		rl.closed = true
	}
	q.killed, q.inflight = true, 0
	return true
}

// mustRetry reports whether a single queue pair has refused an own request: perhaps no completion
// comes that would wake Drain.
func (q *VirtualQP) mustRetry() bool {
	o := &q.own
	return q.single && (q.phase == drainSends && !o.marked || q.phase == drainRecvs && (!o.sent || !o.recvd))
}

// flushPassed goes on with finding out whether a single queue pair in ERR has flushed everything:
// it posts the two requests, and waits for them to be flushed, since queues flush in order.
func (q *VirtualQP) flushPassed() bool {
	o := &q.own
	if !o.sent && !refusedForGood(o.sendErr) {
		o.sendErr = q.postOwnSend()
		o.sent = o.sendErr == nil
	}
	if !o.recvd && !refusedForGood(o.recvErr) {
		_, o.recvErr = q.rails[0].qp.PostRecv([]verbs.RecvWR{{ID: o.ownID()}})
		o.recvd = o.posted(o.recvErr)
	}
	q.collect()
	return o.sent && o.recvd && o.left == 0
}

// flushUnknown reports whether it will never be known that everything was flushed: a queue refuses
// the own request for good, or is full of unsignaled requests that have succeeded, whose slots
// nothing gives back in ERR; the other's has come back, and nothing else comes.
func (q *VirtualQP) flushUnknown() bool {
	o := &q.own
	quiet := q.quiet()
	return quiet && o.left == 0 && (errors.Is(o.sendErr, verbs.ErrQueueFull) || refusedForGood(o.sendErr) ||
		refusedForGood(o.recvErr))
}

// nothingLeft reports whether every request has its completion: then there is nothing to ask about.
// Unsignaled requests that have succeeded count for ever, so that often it cannot be known so.
func (q *VirtualQP) nothingLeft() bool { return q.inflight == 0 && q.own.left == 0 }

// quiet reports whether no request of the user has completed for a while; it must be asked all
// along. Time alone does not tell: a process that did not run has not looked.
func (q *VirtualQP) quiet() bool {
	o := &q.own
	if o.looks++; o.looks == 1 || o.outstanding != q.inflight {
		o.outstanding, o.looks, o.since = q.inflight, 1, time.Now()
	}
	return o.looks >= flushLooks && time.Since(o.since) > flushQuiet
}

// flushOver reports whether Close and Reset need not wait for a single queue pair in ERR any more.
// It may hold something still, and is reset or destroyed anyway.
func (q *VirtualQP) flushOver() bool {
	return q.rails[0].closed || q.own.tired || q.nothingLeft() || q.flushPassed() || q.flushUnknown()
}

// awaitFlushes waits until single queue pairs in ERR have flushed everything: all at once, so that
// the waits do not add up. It changes the list.
func awaitFlushes(list []*VirtualQP) {
	const spins = 100 // polls before the wait starts to sleep
	deadline := time.Now().Add(flushPatience)
	for polls := 0; ; polls++ {
		if list = slices.DeleteFunc(list, (*VirtualQP).flushOver); len(list) == 0 {
			return
		}
		if polls >= spins && !time.Now().Before(deadline) {
			break
		}
		if polls < spins {
			runtime.Gosched()
		} else {
			time.Sleep(pollInterval)
		}
	}
	for _, q := range list {
		q.own.tired = true
	}
}

// postOwnSend posts a write of no bytes.
func (q *VirtualQP) postOwnSend() error {
	_, err := q.rails[0].qp.PostSend(
		[]verbs.SendWR{{ID: q.own.ownID(), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	q.own.posted(err)
	return err
}

// ownCompleted takes in the completion of an own request. That of the marker tells whether the
// sends before it have ended well.
func (q *VirtualQP) ownCompleted(rl *rail, wc *verbs.WC) {
	q.own.left--
	if wc.Status != verbs.StatusSuccess && q.phase == drainSends {
		f := noRequest(wc.Status)
		f.VendorErr = wc.VendorErr
		q.failOwn(rl, f)
	}
}

// failOwn records that an own request has failed, or was refused for good.
func (q *VirtualQP) failOwn(rl *rail, f *FailedError) {
	if q.fail(rl, f) {
		rl.stats.errors++
	}
}

// posted counts an own request, if it was accepted.
func (o *ownRequests) posted(err error) bool {
	if err == nil {
		o.left++
	}
	return err == nil
}

// owns reports whether a completion is of an own request.
func (o *ownRequests) owns(wc *verbs.WC) bool { return wc.ID == o.id && o.left != 0 }

func (o *ownRequests) ownID() uint64 {
	for o.id == 0 {
		o.id = rand.Uint64()
	}
	return o.id
}

func refusedForGood(err error) bool { return err != nil && !verbs.IsTransient(err) }
