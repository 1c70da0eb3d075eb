package ibverbx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"ibverbx/verbs"
)

// Drain ends the service of a virtual queue pair in good order. From the call on posts are refused with [ErrDraining]. Every send that was
// accepted comes to its own end, and what the peer sends meanwhile still finds its receive; when the last send has ended, the queue pairs
// go to ERR, and receives that nothing has matched are flushed. Drain returns nil when everything that was ever accepted has its completion,
// to be polled from the virtual CQ in order: Drain takes none away. Then [VirtualQP.Reset] and Connect, or [VirtualQP.Close].
//
// [VirtualQP.State] is SQD while sends are awaited and ERR from the flush on; [VirtualQP.Err] stays nil unless something failed. When
// something did, before or during the drain, Drain completes everything all the same and returns what Err says, a [*FailedError].
//
// When ctx ends first, the error wraps ctx's and says how much is outstanding. Nothing is lost by that: posts stay refused, requests go on,
// memory stays with the NICs, and Drain may be called again, or Reset, Close or [VirtualQP.Shutdown]. Drain looks at the virtual CQ
// before it looks at ctx: with a ctx that has ended each call is one step that does not wait.
//
// The peer must still be there, or sends fail: of two ends that drain, let the one that only receives come last, and not before
// the other says that it has done. In RESET there is nothing to drain: Drain returns nil and changes nothing. In INIT and RTR it flushes
// the receives. When the virtual queue pair was closed it returns [ErrClosed].
//
// Drain polls, and sleeps where the physical CQs have a common CompChannel, as [VirtualCQ.Wait] does; other virtual queue pairs of the
// CQ go on meanwhile. Without a channel it polls every 100 µs. It is not for programs that call [VirtualCQ.ProcessCompletions].
//
// A single queue pair tracks nothing, and unsignaled requests that succeed have no completion. There Drain posts a write of no bytes behind
// them and waits for that, since a queue completes in order. The peer's queue pair must allow remote writes for it, and the queue must have a
// slot for it: one that is full of unsignaled requests never has, since their slots are given back with the next signaled one.
func (q *VirtualQP) Drain(ctx context.Context) error {
	q.cq.guard.enter()
	err := q.drainWithin(ctx)
	q.cq.guard.exit()
	return err
}

// Shutdown drains the virtual queue pair for as long as ctx allows, and then closes it in any case: Close with a deadline. It returns nil
// when everything came to its own end, and nothing failed; otherwise the errors of [VirtualQP.Drain] and [VirtualQP.Close], joined. With
// a ctx that has ended it is little more than Close. What it completes can be polled from the virtual CQ, even after that is closed.
func (q *VirtualQP) Shutdown(ctx context.Context) error {
	q.cq.guard.enter()
	defer q.cq.guard.exit()
	if q.closed {
		return fmt.Errorf("ibverbx: shut down virtual qp %d: %w", q.num, ErrClosed)
	}
	return errors.Join(q.drainWithin(ctx), q.close())
}

// drain is what a single queue pair needs to be drained. It is asked by requests of Drain's own, or of Close's and Reset's: a marker behind
// the sends, and then, in ERR, one on either queue, whose flush says that all before it was flushed. All have the same ID, which
// nobody else uses; their completions do not reach the user.
type drain struct {
	id     uint64 // of the own requests; drawn by ownID
	left   int    // own requests on the queue pair
	marked bool   // the marker was posted, or refused for good
	sent   bool   // the send that is to be flushed was, likewise
	recvd  bool   // and the receive
}

// drainPhase is how far a Drain has come.
type drainPhase uint8

const (
	drainNone  drainPhase = iota
	drainSends            // posts are refused, sends come to their end
	drainRecvs            // the queue pairs are in ERR and flush their receives
	drainDone             // everything accepted has its completion
)

// pollInterval is how often Drain polls where there is nothing to sleep on: well above what a poll costs, well below what anybody
// who drains would notice.
const pollInterval = 100 * time.Microsecond

func (q *VirtualQP) drainWithin(ctx context.Context) error {
	if q.closed {
		return fmt.Errorf("ibverbx: drain virtual qp %d: %w", q.num, ErrClosed)
	}
	if q.state == verbs.StateReset {
		return nil
	}
	q.phase = max(q.phase, drainSends)
	for {
		// Arm, look once more, sleep: in any other order a completion that comes in between wakes nobody.
		if q.drainStep() {
			return q.Err()
		}
		if ctx.Err() != nil {
			return q.undrained(ctx.Err())
		}
		armed := q.cq.channel != nil && q.cq.arm() == nil
		if armed && q.drainStep() {
			return q.Err()
		}
		q.cq.doze(ctx, armed && !q.mustRetry())
	}
}

// undrained is the error of a Drain that its context has ended.
func (q *VirtualQP) undrained(cause error) error {
	what := fmt.Sprintf("%d sends are still outstanding", q.send.len())
	switch {
	case q.single:
		// Unsignaled requests that succeed are never taken off the count, but no more can be there than the queues hold.
		rl := q.rails[0]
		what = fmt.Sprintf("at most %d sends and receives are still outstanding", min(q.inflight, rl.slots+rl.recvLimit))
	case q.send.len() == 0:
		what = fmt.Sprintf("no send is outstanding, %d receives are still to be flushed", q.recv.win.len())
	}
	err := fmt.Errorf("ibverbx: drain virtual qp %d: %s: %w", q.num, what, cause)
	if q.failure != nil {
		err = fmt.Errorf("%w; and %w", err, q.failure)
	}
	return err
}

// drainStep goes as far as it comes without waiting, and reports whether everything has its completion.
func (q *VirtualQP) drainStep() bool {
	q.cq.touch(q)
	q.collect()
	if q.phase == drainSends && q.sendsEnded() {
		q.phase, q.state = drainRecvs, verbs.StateErr
		q.toError()
		q.cq.touch(q)
		q.collect()
	}
	if q.phase == drainRecvs && q.recvsEnded() {
		q.phase = drainDone
	}
	return q.phase == drainDone
}

// sendsEnded reports whether every send has its completion.
func (q *VirtualQP) sendsEnded() bool {
	if !q.single {
		return q.send.len() == 0
	}
	d, rl := &q.drain, q.rails[0]
	if rl.closed || !d.marked && q.counters.sends == q.counters.sendsDone {
		return true
	}
	if !d.marked {
		d.marked = q.postOwn(rl.qp.PostSend)
		q.collect()
	}
	return d.marked && d.left == 0
}

// recvsEnded reports whether every receive has its completion, the queue pairs being in ERR.
func (q *VirtualQP) recvsEnded() bool {
	if q.single {
		return q.rails[0].closed || q.flushPassed()
	}
	if q.failure == nil && !q.killed {
		// Messages that have arrived are on their way through the CQs; whatever waits for one may still get it from there.
		for _, rl := range q.all {
			if rl.recvs != 0 {
				return false
			}
		}
		q.killed = true
		q.recv.flushWaiting()
		q.cq.touch(q)
		q.collect()
	}
	return q.recv.win.len() == 0
}

// mustRetry reports whether a single queue pair has refused an own request for now: perhaps no completion comes that would wake Drain.
func (q *VirtualQP) mustRetry() bool {
	d := &q.drain
	return q.single && (q.phase == drainSends && !d.marked || q.phase == drainRecvs && !(d.sent && d.recvd))
}

// toError moves every queue pair to ERR, so that the NICs flush what they still hold.
func (q *VirtualQP) toError() {
	for _, rl := range q.all {
		if s := rl.qp.State(); s != verbs.StateReset && s != verbs.StateErr && !rl.closed {
			// A rail that refuses is gone already; it holds nothing that would not end.
			_ = rl.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
		}
	}
}

// flushPassed goes on with finding out whether a single queue pair in ERR has flushed everything: it posts one more request on
// either queue and waits for these two to be flushed, since queues flush in order. Counting would not do: which unsignaled requests still
// complete, the NIC alone knows.
func (q *VirtualQP) flushPassed() bool {
	d, rl := &q.drain, q.rails[0]
	if !d.sent {
		d.sent = q.postOwn(rl.qp.PostSend)
	}
	if !d.recvd {
		_, err := rl.qp.PostRecv([]verbs.RecvWR{{ID: d.ownID()}})
		d.recvd = d.posted(err)
	}
	q.collect()
	return d.sent && d.recvd && d.left == 0
}

// postOwn posts a write of no bytes. It reports false when the queue is full: what it holds must be polled first.
func (q *VirtualQP) postOwn(post func([]verbs.SendWR) (int, error)) bool {
	_, err := post([]verbs.SendWR{{ID: q.drain.ownID(), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	return q.drain.posted(err)
}

// posted counts an own request that was accepted. It reports false when it must be tried again. A NIC that refuses for good leaves nothing
// to wait for.
func (d *drain) posted(err error) bool {
	if err == nil {
		d.left++
	}
	return !verbs.IsTransient(err)
}

func (d *drain) ownID() uint64 {
	for d.id == 0 {
		d.id = rand.Uint64()
	}
	return d.id
}

// takes reports whether a completion is of an own request, and counts it.
func (d *drain) takes(wc *verbs.WC) bool {
	if wc.ID != d.id || d.left == 0 {
		return false
	}
	d.left--
	return true
}

// drainPassed waits until a single queue pair in ERR has flushed everything. A NIC that does not answer is given a second.
func (q *VirtualQP) drainPassed() {
	const (
		patience = time.Second
		spins    = 100 // polls before the wait starts to sleep
	)
	deadline := time.Now().Add(patience)
	for polls := 0; !q.flushPassed() && time.Now().Before(deadline); polls++ {
		if polls < spins {
			runtime.Gosched()
		} else {
			time.Sleep(pollInterval)
		}
	}
}

// doze sleeps until there may be something new to poll, or until ctx ends. Armed says that an event will tell.
func (c *VirtualCQ) doze(ctx context.Context, armed bool) {
	if armed {
		_ = c.sleep(ctx) // the caller looks at ctx
		return
	}
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
