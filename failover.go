package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// recovery takes failed rails out of a connection whose ends both offer failover, and brings them
// back. internal/failover decides what the ends agree on, and when; recovery carries it out on the
// queue pairs. docs/FAILOVER.md proves that this is safe.
//
// Like the other components it does not call up: it returns a failure that ends the connection, and
// failure.go raises it. The caller touches the virtual queue pair, so that
// VirtualQP.continueFailover follows.
type recovery struct {
	protocol *failover.Protocol
	send     *sender
	recv     *receiver
	rails    *railSet
	line     *line
	ports    *portWatch // the virtual CQ's
	cfg      *Config
	num      uint32 // of the virtual queue pair
	// lacking counts, by device, the regions that its NIC does not have; nil if unknown.
	lacking *[verbs.MaxDevices]atomic.Int64

	degraded bool // not every rail is in full service
	again    bool // continueFailover has something to do even if nothing completes
	suspects []suspect

	railsLost, railsBack, reposted uint64 // ever
}

// messageRoles are the roles of rails that carry no data.
//
//nolint:gochecknoglobals // a constant list
var messageRoles = [...]failover.Role{failover.Sends, failover.Notifications}

// begin begins a connection with failover in force.
func (x *recovery) begin(leader bool) {
	x.restart()
	config := failover.Config{Leader: leader, Failback: x.cfg.Failback, Timeout: x.cfg.FailoverTimeout}
	for role := range failover.Roles {
		config.Serving[role] = -1
		if rl := *x.rails.serving(role); rl != nil && role != failover.Data {
			config.Serving[role] = rl.index()
		}
	}
	x.protocol.Begin(config)
	x.send.logs = true
	for _, rl := range x.rails.all {
		rl.log.Fit(rl.slots + failover.ControlSlots)
	}
}

// restart drops the connection's state.
func (x *recovery) restart() { x.degraded, x.again, x.suspects = false, false, nil }

// refusalLosesRail reports whether a refusal shows that the queue pair or its NIC has failed.
func refusalLosesRail(err error) bool {
	return errors.Is(err, verbs.ErrState) || errors.Is(err, verbs.ErrDeviceGone)
}

// failedRail is why a connection must end, and the rail concerned.
type failedRail struct {
	rail *rail
	f    *FailedError
}

// canLose reports whether the connection can do without a rail. x may be nil.
func (x *recovery) canLose(rl *rail) bool {
	return x.goesOn() && x.protocol.CanLose(rl.back.state)
}

// canLack reports whether the connection can do without a rail while nothing needs it.
func (x *recovery) canLack(rl *rail) bool {
	return x.canLose(rl) || x.goesOn() && x.protocol.CanLack(rl.role)
}

// goesOn reports whether the connection neither fails nor ends.
func (x *recovery) goesOn() bool {
	return x != nil && !x.line.ending() && x.line.state == verbs.StateRTS
}

// outstanding reports whether the rail has the work request of a completion outstanding.
func (x *recovery) outstanding(rl *rail, id uint64) bool {
	switch wrid.Kind(id) {
	case wrid.Recv:
		n, ok := x.recv.win.Resolve(wrid.Number(id), wrid.NumberMask)
		return ok && rl.recvs != 0 && x.recv.postedOn(rl, n)
	case wrid.Credit:
		_, ok := rl.inbox.Resolve(wrid.Number(id), wrid.NumberMask, rl.creditsPosted)
		return ok && rl.recvs != 0
	}
	if rl.back.state.Stage() == failover.StageDying {
		return rl.back.state.Outstanding(id)
	}
	return rl.log.Has(id)
}

// takenOut takes a working rail out of service if a completion shows that it is lost and the
// connection can do without it. It reports whether it did.
func (x *recovery) takenOut(rl *rail, wc *verbs.WC) bool {
	// A control message that finds no receive, and whose retries are used up, is not the fault of a
	// request either.
	lost := failover.LosesRail(wc.Status) ||
		wrid.Kind(wc.ID) == wrid.Control && wc.Status != verbs.StatusSuccess
	if !lost || !x.canLose(rl) || !x.outstanding(rl, wc.ID) {
		return false
	}
	x.loseRail(rl, wc.Status)
	return true
}

// loseRail takes a rail out of service. Another rail can replace it.
func (x *recovery) loseRail(rl *rail, cause error) {
	now := x.line.clock()
	if rl.back.state.Stage() == failover.StageLive {
		rl.back.lostAt = now
		rl.back.limit = max(rl.back.limit, rl.limit)
		rl.stats.errors++
		x.railsLost++
		x.announce(rl, x.withPort(rl, cause))
	}
	x.degraded = true
	messages, entries := rl.log.Messages(), x.send.takeLog(rl)
	if rl.batch != nil {
		rl.batch.clear() // the rail stays listed until the next post
	}
	x.protocol.Lose(rl.back.state, now, cause, entries, messages)
	rl.back.grow = 0
	x.recv.dropCredits(rl)
	x.rails.takeOut(rl)
	rl.toError()
}

// errIdleErr is the cause of the loss of a rail that had no completion to show it.
var errIdleErr = errors.New("its queue pair is in ERR; with nothing outstanding, no completion reported it")

// suspectIdle makes loseIdle ask the queue pairs that hold nothing whether they have failed.
func (x *recovery) suspectIdle() {
	x.protocol.SuspectIdle()
	x.degraded = true
}

// loseIdle takes out the rails whose queue pairs have failed with nothing outstanding, so that no
// completion shows it. It also finds a failed spare before that must replace another rail.
func (x *recovery) loseIdle() {
	if !x.protocol.IdleSuspected() {
		return
	}
	for _, rl := range x.rails.all {
		if !rl.down && rl.inUse == 0 && rl.recvs == 0 && !rl.back.state.HasControls() && x.canLack(rl) &&
			rl.qp.State() == verbs.StateErr {
			x.loseRail(rl, errIdleErr)
		}
	}
}

// sendReturned handles a send that the NIC of a lost rail returns. It reports whether the rail had
// it outstanding, and whether the send failed by its own fault.
func (x *recovery) sendReturned(rl *rail, wc *verbs.WC) (known, failed bool) {
	known, over := x.protocol.Returned(rl.back.state, wc.ID, wc.Status)
	if over {
		x.send.acknowledge(wc.ID)
	}
	return known, over && wc.Status != verbs.StatusSuccess
}

// recvReturned handles a receive that the NIC of a lost rail returns without a message.
func (x *recovery) recvReturned(rl *rail, id uint64) {
	rl.recvs--
	rl.back.state.Unanswered(1)
	if wrid.Kind(id) == wrid.Recv {
		rl.back.emptied = true
		return
	}
	c, _ := rl.inbox.Resolve(wrid.Number(id), wrid.NumberMask, rl.creditsPosted)
	rl.inbox.Fail(c)
}

// continueLost repeats what the queue pair of a lost rail has refused, and continues with the rail
// when everything has come back.
func (x *recovery) continueLost(rl *rail) *failedRail {
	if rl.back.state.Stage() != failover.StageDying {
		return nil
	}
	if rl.stopErr != nil {
		rl.toError()
	}
	if rl.back.state.GivenUp() {
		x.abandonRail(rl)
	}
	return x.handleFlushed(rl)
}

// abandonRail ends the outstanding work of a rail whose CQ is dead: it destroys the queue pair,
// after which the NIC holds nothing. Messages that arrived there without a completion are unknown,
// and count as not arrived.
func (x *recovery) abandonRail(rl *rail) {
	if !rl.closed && rl.qp.Close() != nil {
		return // the next progress repeats it
	}
	rl.closed = true
	rl.back.state.Unanswered(rl.recvs)
	// A rail that is connected anew and not yet in service has only its own receives.
	rl.back.emptied = rl.back.emptied || rl.recvs != 0 && rl == *x.rails.serving(rl.role)
	rl.back.state.NothingReturns()
	rl.recvs = 0
}

// handleFlushed continues with a lost rail when everything that it held has come back, so that it
// is certain what has arrived here.
func (x *recovery) handleFlushed(rl *rail) *failedRail {
	v := rl.back.state
	if v.Stage() != failover.StageDying || !v.AllReturned() || rl.recvs != 0 || rl.stopErr != nil {
		return nil
	}
	if rl.inbox.DropPending() {
		v.Unanswered(1) // the peer sends the message again, with the user's immediate
	}
	x.recv.dropCredits(rl)
	switch {
	case !rl.back.emptied: // the user's receives are on another rail, or not posted yet
	case rl.role == failover.Sends:
		x.recv.rewind(true, &x.recv.nextMessage)
	case rl.role == failover.Notifications:
		x.recv.rewind(false, &x.recv.nextBare)
	}
	if x.line.dead {
		x.recv.flushWaiting() // the receives that have just come back
	}
	return x.do(x.protocol.Flushed(v, x.line.ending()))
}

var (
	errPeerLost     = errors.New("the peer has lost it")
	errPeerLostLast = errors.New("the peer has lost it, and it was the last one that could carry this")
)

// do carries out what the protocol has decided.
func (x *recovery) do(actions []failover.Action) (failed *failedRail) {
	for _, a := range actions {
		rl := x.rails.all[a.Rail]
		switch a.Kind {
		case failover.DoLose:
			if !x.canLack(rl) {
				return &failedRail{rl, noRequest(errPeerLostLast)}
			}
			x.loseRail(rl, errPeerLost)
			failed = x.handleFlushed(rl)
		case failover.DoSettle:
			failed = x.settle(rl)
		case failover.DoConnect:
			x.connect(rl, a)
		case failover.DoGoLive:
			x.goLive(rl)
		case failover.DoServe:
			*x.rails.serving(rl.role) = rl
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// settle ends the part of a lost rail's work that has arrived. The rest is posted again on another
// rail, in its order.
func (x *recovery) settle(rl *rail) *failedRail {
	work := x.protocol.Work(rl.role)
	waiting, waitingBytes := work.Waiting()
	arrived, unknown, err := x.protocol.Settle(rl.back.state, x.send.immOf(rl))
	if err != nil {
		return &failedRail{rl, noRequest(err)}
	}
	for i := range arrived {
		x.send.acknowledge(arrived[i].ID)
	}
	for i := range unknown {
		x.send.failAtomic(&unknown[i])
	}
	if x.cfg.Events.Settled != nil && !rl.back.lostAt.IsZero() {
		again, bytes := work.Waiting()
		x.cfg.Events.Settled(SettledEvent{VirtualQP: x.num, Rail: rl.index(), Device: rl.qp.Device().Name(),
			Arrived: len(arrived), Again: again - waiting, Bytes: bytes - waitingBytes,
			Took: x.line.clock().Sub(rl.back.lostAt)})
	}
	rl.back.lostAt = time.Time{} // a rail that fails while it comes back is settled again, unreported
	return nil
}

// dropLost ends the work that lost rails had outstanding, after the connection has failed. It
// returns the first request concerned, or never.
func (x *recovery) dropLost() (first uint64) {
	first = never
	for _, e := range x.protocol.Drop() {
		if n, ok := x.send.resolve(e.ID); ok {
			x.send.win.At(n).flushUnlessFailed()
			x.send.acknowledge(e.ID)
			first = min(first, n)
		}
	}
	return first
}

// overdue returns a failure if the peer has not answered in time; otherwise nil.
func (x *recovery) overdue() *failedRail {
	rail, err := x.protocol.Overdue(x.line.clock())
	if err == nil {
		return nil
	}
	return &failedRail{x.rails.all[rail], noRequest(err)}
}

// agree handles everything that can be agreed on with the peer without waiting: ports that are
// down, the rails in service, those that come back. It returns when to look at the last again, or
// zero, and the time.
func (x *recovery) agree() (next, now time.Time) {
	x.checkSuspects()
	for _, role := range messageRoles {
		x.protocol.Want(role, x.protocol.Lacks(role) && x.send.awaits(*x.rails.serving(role)))
	}
	x.protocol.Answer()
	if x.protocol.Unsettled() {
		return next, now
	}
	_ = x.do(x.protocol.Choose()) // Serve actions cannot fail
	next, now = x.bringBack()
	x.growLimits()
	return next, now
}

// sendControls posts waiting control messages, as far as the rails have room.
func (x *recovery) sendControls() *failedRail {
	for _, rl := range x.rails.all {
		if failed := x.sendControlsOn(rl); failed != nil {
			return failed
		}
	}
	return nil
}

// sendControlsOn posts a rail's control messages. They are not staged, and do not count towards the
// rail's limit. Staged work has been logged before them, so it must be posted first.
func (x *recovery) sendControlsOn(rl *rail) *failedRail {
	for rl.staged() == 0 {
		bits, ok := rl.back.state.NextControl()
		if !ok {
			return nil
		}
		id := wrid.New(wrid.Control, rl.idBits, 0, rl.log.Pushed())
		wr := [1]verbs.SendWR{{ID: id, Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: bits}}
		_, err := rl.qp.PostSend(wr[:])
		switch {
		case err == nil:
			rl.back.state.ControlPosted(rl.log.Messages())
			rl.log.PushMessage(id)
			continue
		case verbs.IsTransient(err):
			rl.stats.refused++
			return nil
		}
		rl.stats.refused++
		if refusalLosesRail(err) && x.canLose(rl) {
			x.loseRail(rl, err)
			return nil
		}
		return &failedRail{rl, noRequest(fmt.Errorf("control message: %w", err))}
	}
	return nil
}

// controlCompleted handles the completion of a control message that was sent on a working rail. It
// reports false if none is outstanding.
func (x *recovery) controlCompleted(rl *rail, wc *verbs.WC) (known bool, failed *failedRail) {
	if !rl.back.state.HasControls() || !rl.log.Complete(wc.ID) {
		return false, nil
	}
	ok := wc.Status == verbs.StatusSuccess
	failed = x.do(x.protocol.ControlCompleted(rl.back.state, ok))
	if !ok && !x.line.flushAsked(wc.Status) {
		f := noRequest(fmt.Errorf("control message: %w", wc.Status))
		f.VendorErr = wc.VendorErr
		return true, &failedRail{rl, f}
	}
	return true, failed
}

// handleControl handles a control message of the peer.
func (x *recovery) handleControl(on *rail, bits uint32) *failedRail {
	actions, err := x.protocol.HandleControl(on.back.state, bits, x.line.ending())
	if err != nil {
		return &failedRail{on, violation(fmt.Errorf("0x%08x: %w", bits, err))}
	}
	return x.do(actions)
}

// finish ends a continueFailover. It reports whether anything is left to do even if nothing
// completes.
func (x *recovery) finish() (again bool) {
	paused := x.protocol.Paused()
	x.degraded = paused || len(x.suspects) != 0 || slices.ContainsFunc(x.rails.all, func(rl *rail) bool {
		return rl.down || rl.back.grow != 0
	})
	again = x.again || paused || x.protocol.ControlsQueued()
	for _, role := range messageRoles {
		again = again || x.protocol.Lacks(role) // something may come to need it
	}
	x.again = false
	return again
}

// idle reports whether continueFailover has nothing to do.
func (x *recovery) idle() bool { return !x.degraded && !x.protocol.ControlsQueued() }

// paused reports whether new requests must wait.
func (x *recovery) paused() bool { return x.degraded && x.protocol.Paused() }

// check panics if the invariant does not hold.
func (x *recovery) check() {
	if err := x.protocol.Check(); err != nil {
		broken("failover: %v", err)
	}
	for _, rl := range x.rails.all {
		if live := rl.back.state.Stage() == failover.StageLive; live == rl.down {
			broken("failover: rail %d is at stage %d, down %v", rl.index(), rl.back.state.Stage(), rl.down)
		}
	}
	for _, role := range messageRoles {
		if i := x.protocol.Serving(role); i >= 0 && *x.rails.serving(role) != x.rails.all[i] {
			broken("failover: rail %d serves, and another one carries", i)
		}
	}
}

// announce reports a rail that is lost, or back.
func (x *recovery) announce(rl *rail, cause error) {
	if x.cfg.Events.Rail != nil {
		x.cfg.Events.Rail(RailEvent{VirtualQP: x.num, Rail: rl.index(), Device: rl.qp.Device().Name(),
			QPNum: rl.num, Down: cause != nil, Cause: cause})
	}
}
