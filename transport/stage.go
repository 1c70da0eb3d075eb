package transport

import (
	"fmt"

	"ibverbx/internal/guard"
)

// stage is how far an endpoint's life has come. It only moves down this table:
//
//	stage       entered when                           sends       arrivals  next
//	new         NewEndpoint has made it                refused     -         open, failed, aborted
//	open        Connect has succeeded                  start       handled   closing, any end
//	closing     Close waits for outstanding work       from queue  handled   parting, any end
//	parting     the goodbye was posted                 from queue  handled   any end
//	failed      the queue pair or its CQ has failed    refused     handled   aborted
//	peerClosed  the peer has said that it ends         refused     handled   aborted
//	violated    the peer has broken the protocol       refused     ignored   aborted
//	aborted     Abort, end of Close, Worker.Close      refused     ignored   released
//	released    progress has released what it held     refused     -         -
//
// "Any end" is failed, peerClosed, violated or aborted. What is outstanding then completes with the
// endpoint's error: in failed the virtual queue pair flushes it by itself; from peerClosed on the
// queue pair is closed, because outstanding operations would otherwise wait for a peer that is gone
// or cannot be trusted. What has arrived before a failure or a goodbye is still handled.
type stage uint8

const (
	stageNew stage = iota
	stageOpen
	stageClosing
	stageParting
	stageFailed
	stagePeerClosed
	stageViolated
	stageAborted
	stageReleased
)

// anyEnd is the set of stages that end the service.
const anyEnd = 1<<stageFailed | 1<<stagePeerClosed | 1<<stageViolated | 1<<stageAborted

// nextStages is the last column of the table.
var nextStages = [...]uint16{
	stageNew:        1<<stageOpen | 1<<stageFailed | 1<<stageAborted,
	stageOpen:       1<<stageClosing | anyEnd,
	stageClosing:    1<<stageParting | anyEnd,
	stageParting:    anyEnd,
	stageFailed:     1 << stageAborted,
	stagePeerClosed: 1 << stageAborted,
	stageViolated:   1 << stageAborted,
	stageAborted:    1 << stageReleased,
	stageReleased:   0,
}

var stageNames = [...]string{"new", "open", "closing", "parting", "failed", "peer closed", "violated",
	"aborted", "released"}

func (s stage) String() string { return stageNames[s] }

// serves reports whether the endpoint is connected and has not failed.
func (s stage) serves() bool { return stageOpen <= s && s <= stageParting }

// qpClosed reports whether this end has closed the queue pair.
func (s stage) qpClosed() bool { return s >= stagePeerClosed }

// ignoresArrivals reports whether messages that still arrive are dropped.
func (s stage) ignoresArrivals() bool { return s >= stageViolated }

// ending is the life of an endpoint, and why it ended.
//
// Invariant: err is set if and only if stage is failed or later; failedBusy and onReleased are set
// only then, and so is reporting; in stage released nothing is outstanding.
type ending struct {
	stage stage
	// failedBusy reports that operations or requests of the program were not finished when the
	// endpoint failed: something may be lost.
	failedBusy bool
	// reporting reports that OnError is still to be called. Pending functions wait for that.
	reporting  bool
	err        error       // why the endpoint serves no more, an *EndpointError
	onReleased *Completion // counted when the endpoint is released; may be nil
}

// move enters a stage. Builds with the race detector panic if the table does not have the move.
func (e *ending) move(to stage) {
	if guard.Checked && nextStages[e.stage]&(1<<to) == 0 {
		panic(fmt.Sprintf("transport: an endpoint moves from stage %v to %v", e.stage, to))
	}
	e.stage = to
}

// fail enters a stage that ends the service, for a reason. It must not have failed before.
func (e *ending) fail(to stage, why error, busy bool) {
	e.move(to)
	e.err, e.failedBusy = why, busy
}

// check returns how the invariant is broken; nil while it holds.
func (e *ending) check(outstanding int) error {
	ended := e.stage >= stageFailed
	if (e.err != nil) != ended || (e.failedBusy || e.reporting || e.onReleased != nil) && !ended ||
		e.stage == stageReleased && outstanding != 0 {
		return fmt.Errorf("stage %v, busy when it failed %v, %d operations outstanding: error %s",
			e.stage, e.failedBusy, outstanding, fmt.Sprint(e.err))
	}
	return nil
}
