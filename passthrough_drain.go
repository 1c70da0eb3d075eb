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

// drainProbes are the requests that Drain, Close and Reset post on a single queue pair to learn
// from their completions what the NIC has done: a marker after the sends, and then, in ERR, one on
// either queue, whose flush proves that all earlier ones were flushed. Counting does not suffice:
// only the NIC knows which unsignaled requests still complete. All probes have the same ID, which
// nothing else uses; their completions do not reach the user.
//
// Invariant: posted counts the probes that were accepted and have not completed.
type drainProbes struct {
	id     uint64 // drawn by probeID
	posted int
	marked bool // the marker was posted

	// sendPosted and recvPosted say that the probes to be flushed were posted, sendErr and recvErr
	// why not.
	sendPosted, recvPosted bool
	sendErr, recvErr       error
	gaveUp                 bool // the NIC did not confirm within flushPatience

	// unsignaledBefore counts the sends of earlier connections that never had a successful
	// completion.
	unsignaledBefore uint64

	idle      idleCQ // for Close and Reset, which sleep; by the wall clock
	drainIdle idleCQ // for Drain; by the configured clock
}

// idleCQ is the state of isIdle between polls.
type idleCQ struct {
	outstanding int       // the user's requests at the last poll
	polls       int       // consecutive polls that found the same number
	since       time.Time // when the first of these polls was made
}

const (
	// flushPatience is how long Close and Reset wait for a NIC that does not answer.
	flushPatience = time.Second
	// flushQuiet is how long nothing may have completed before everything counts as flushed, if no
	// probe can be posted. NICs flush within microseconds.
	flushQuiet = 10 * time.Millisecond
	// flushPolls is the least number of polls in that time.
	flushPolls = 50
)

// finishSends posts the marker after the sends, if needed, and reports whether all of them have
// ended. Then either all have succeeded or a failure is recorded, so from then on a flush is not a
// failure.
func (p *passThrough) finishSends() bool {
	o, rl := &p.probes, p.rail
	if rl.closed || p.line.err != nil || !o.marked && p.sends-p.sendsDone == o.unsignaledBefore {
		return true // a queue pair that has failed is in ERR: its sends are flushed with its receives
	}
	if !o.marked {
		err := p.postSendProbe()
		if refusedPermanently(err) {
			p.probeFailed(noRequest(fmt.Errorf("a request of Drain's own: %w", err)))
			return true
		}
		o.marked = err == nil
		p.cq.collect()
	}
	return o.marked && o.posted == 0
}

// finishRecvs reports whether everything has ended on the queue pair, which is in ERR. If the NIC
// does not let it find out, it resets the queue pair, or destroys it if that is refused, too: then
// the queue pair holds nothing.
func (p *passThrough) finishRecvs() bool {
	o, rl := &p.probes, p.rail
	if rl.closed || p.nothingLeft() || p.probeFlush() || p.nothingLeft() { // probeFlush has polled
		return true
	}
	for _, err := range []error{o.sendErr, o.recvErr} {
		if refusedPermanently(err) {
			p.probeFailed(noRequest(fmt.Errorf("a request of Drain's own: %w", err)))
		}
	}
	if p.line.err == nil || !p.flushUnknowable(&p.probes.drainIdle, p.line.clock()) {
		return false
	}
	if rl.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState) != nil {
		if rl.qp.Close() != nil {
			return false
		}
		rl.closed = true
	}
	p.abandon()
	return true
}

// mustRetry reports whether the queue pair has refused a probe, so that there may be no completion
// to wake Drain. (A queue pair that refuses the move to ERR is listed as touched.)
func (p *passThrough) mustRetry() bool {
	o := &p.probes
	return p.line.phase == drainSends && !o.marked ||
		p.line.phase == drainRecvs && (!o.sendPosted || !o.recvPosted)
}

// probeFlush posts the two probes into the queue pair in ERR, if they are not there yet, polls, and
// reports whether both were flushed: then everything before them was, since queues flush in order.
func (p *passThrough) probeFlush() bool {
	o := &p.probes
	if !p.rails.stopAgain() {
		p.cq.collect()
		return false // it still runs, and a probe would be a request like any other
	}
	if !o.sendPosted && !refusedPermanently(o.sendErr) {
		o.sendErr = p.postSendProbe()
		o.sendPosted = o.sendErr == nil
	}
	if !o.recvPosted && !refusedPermanently(o.recvErr) {
		_, o.recvErr = p.rail.qp.PostRecv([]verbs.RecvWR{{ID: o.probeID()}})
		o.recvPosted = o.accepted(o.recvErr)
	}
	p.cq.collect()
	return o.sendPosted && o.recvPosted && o.posted == 0
}

// flushUnknowable reports whether nothing will ever prove that everything was flushed: one queue
// refuses the probe permanently, or is full of successful unsignaled requests, whose slots nothing
// frees in ERR; the other queue's probe was flushed, and nothing else completes.
func (p *passThrough) flushUnknowable(seen *idleCQ, now time.Time) bool {
	o := &p.probes
	idle := p.isIdle(seen, now)
	return idle && o.posted == 0 && (errors.Is(o.sendErr, verbs.ErrQueueFull) ||
		refusedPermanently(o.sendErr) ||
		refusedPermanently(o.recvErr))
}

// nothingLeft reports whether every request has its completion, so that no probe is needed.
// Successful unsignaled requests count forever, so often only probes can tell.
func (p *passThrough) nothingLeft() bool { return p.outstanding() == 0 && p.probes.posted == 0 }

// isIdle reports whether no request of the user has completed for a while. It must be called with
// every poll: elapsed time alone proves nothing, since a process that did not run has not polled.
// Drain uses the configured clock; Close and Reset, which sleep, the wall clock.
func (p *passThrough) isIdle(o *idleCQ, now time.Time) bool {
	if o.polls++; o.polls == 1 || o.outstanding != p.outstanding() {
		*o = idleCQ{outstanding: p.outstanding(), polls: 1, since: now}
	}
	return o.polls >= flushPolls && now.Sub(o.since) > flushQuiet
}

// flushOver reports whether Close and Reset can stop waiting for the queue pair in ERR. It may
// still hold something, but is reset or destroyed anyway.
func (p *passThrough) flushOver() bool {
	return p.rail.closed || p.probes.gaveUp || p.nothingLeft() || p.probeFlush() ||
		p.flushUnknowable(&p.probes.idle, time.Now())
}

// awaitFlushes waits until single queue pairs in ERR have flushed everything: all at once, so that
// the waits do not add up. It changes the list.
func awaitFlushes(list []*passThrough) {
	const spins = 100 // polls before the wait starts to sleep
	deadline := time.Now().Add(flushPatience)
	for polls := 0; ; polls++ {
		if list = slices.DeleteFunc(list, (*passThrough).flushOver); len(list) == 0 {
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
	for _, p := range list {
		p.probes.gaveUp = true
	}
}

// postSendProbe posts an empty write.
func (p *passThrough) postSendProbe() error {
	_, err := p.rail.qp.PostSend(
		[]verbs.SendWR{{ID: p.probes.probeID(), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	p.probes.accepted(err)
	return err
}

// probeCompleted handles the completion of a probe. The marker's tells whether the sends before it
// have succeeded.
func (p *passThrough) probeCompleted(wc *verbs.WC) {
	p.probes.posted--
	if wc.Status != verbs.StatusSuccess && p.line.phase == drainSends {
		f := noRequest(wc.Status)
		f.VendorErr = wc.VendorErr
		p.probeFailed(f)
	}
}

// probeFailed records that a probe has failed, or was refused permanently.
func (p *passThrough) probeFailed(f *FailedError) {
	if p.fail(f) {
		p.rail.stats.errors++
	}
}

// accepted counts a probe, if it was accepted.
func (o *drainProbes) accepted(err error) bool {
	if err == nil {
		o.posted++
	}
	return err == nil
}

// owns reports whether a completion is a probe's.
func (o *drainProbes) owns(wc *verbs.WC) bool { return wc.ID == o.id && o.posted != 0 }

// probeID returns the ID of all probes.
func (o *drainProbes) probeID() uint64 {
	for o.id == 0 {
		o.id = rand.Uint64()
	}
	return o.id
}

func refusedPermanently(err error) bool { return err != nil && !verbs.IsTransient(err) }

// pollInterval is how often Drain polls if it cannot sleep: much longer than a poll takes, and much
// shorter than a drain.
const pollInterval = 100 * time.Microsecond
