package transport

import (
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Progress handles completions of the NICs, at most a batch, and runs the callbacks that follow:
// pending requests first, then completions and active messages in their order. It never blocks. It
// returns how much it did; 0 means that there was nothing to do, that another goroutine was making
// progress, or that the worker is closed or dead.
func (w *Worker) Progress() int {
	if !w.progressing.TryLock() {
		// The goroutine that holds it may have polled already. It looks at missed after it
		// has released the lock, so it must hold it still after that was set.
		if w.sleep.missed.Store(true); !w.progressing.TryLock() {
			return 0
		}
	}
	n := w.progress()
	w.progressing.Unlock()
	if w.sleep.any() && (w.sleep.missed.Swap(false) || n != 0) {
		w.sleep.wake()
	}
	return n
}

// progress is Progress with w.progressing held.
func (w *Worker) progress() int {
	w.mu.Lock()
	if w.life.dead() {
		w.mu.Unlock()
		return 0
	}
	w.watch.look()
	n, err := w.cq.Poll(w.wcs)
	wcs := w.wcs[:n]
	for i := range wcs {
		w.completed(&wcs[i])
	}
	if w.probes.tick() {
		w.keepAlive()
	}
	if err != nil {
		w.loseCQ()
	}
	if w.chores.due() {
		n += w.settle(n)
	}
	if w.schedule.waits() {
		n += w.dispatchPending()
	}
	if len(w.round.events) == 0 {
		if len(w.chores.reposts) != 0 {
			w.postReceives()
		}
		w.unlock()
		return n
	}
	w.mu.Unlock()
	n += len(w.round.events)
	w.runEvents()
	return n
}

// completed handles a completion.
func (w *Worker) completed(wc *ibverbx.WC) {
	p := w.endpoints.at(wridEndpoint(wc.ID))
	if p == nil {
		w.stats.stale++
		return
	}
	if wc.ID&wridRecv != 0 && wridAttempt(wc.ID) != p.receiving.attempt {
		return // flushed by a Connect that failed
	}
	p.receiving.aliveSinceProbe = true
	if wc.Status != verbs.StatusSuccess && p.ending.err == nil && !p.isLostAtomic(wc) {
		cause := p.conn.qp.Err()
		if cause == nil {
			cause = wc.Status.Err()
		}
		p.fail(stageFailed, ErrPeerFailed, cause)
	}
	switch {
	case wc.ID&wridRecv == 0:
		p.ended(wridLow(wc.ID), wc.Status)
	case wc.Status == verbs.StatusSuccess && !p.ending.stage.ignoresArrivals():
		p.arrived(wridSlot(wc.ID), wc.ByteLen)
	}
}

// runEvents runs the callbacks in the order of their events, and then those of later. No lock
// but progressing is held.
func (w *Worker) runEvents() {
	defer w.die()
	for len(w.round.events) != 0 {
		w.runRound()
	}
}

// runRound runs the callbacks of one round of events.
func (w *Worker) runRound() {
	handled, failed := false, false
	events := w.round.events
	w.life.call(callbackEvent)
	for i := range events {
		switch e := &events[i]; e.kind {
		case eventMessage:
			w.handlers.list[e.m.id](e.m)
			handled = true
		case eventComplete:
			e.comp.Done(e.err)
		case eventError:
			if f := e.peer.cfg.OnError; f != nil {
				f(&e.peer.views[0], e.err)
			}
			failed = true
		}
	}
	w.life.returned()
	w.mu.Lock()
	if failed {
		for i := range events {
			if e := &events[i]; e.kind == eventError {
				e.peer.ending.reporting = false // its pending functions may run
			}
		}
	}
	if handled {
		for i := range events {
			switch m := events[i].m; {
			case m == nil:
			case m.state == messageHandled:
				m.returnsCredit = true
				m.peer.repost(m.slot, false)
			case m.state == messageKept:
				m.peer.giveCredits() // the peer may be out of credits: return them now
			}
		}
	}
	w.round.next()
	if len(w.chores.reposts) != 0 {
		w.postReceives()
	}
	w.mu.Unlock()
}

// loseCQ fails the endpoints whose queue pairs have died with their physical CQ. A single queue
// pair tracks nothing, so what it had outstanding yields no completion.
func (w *Worker) loseCQ() {
	for p := range w.endpoints.all {
		if p.ending.stage.qpClosed() || p.conn.qp.Err() == nil {
			continue
		}
		p.fail(stageFailed, ErrPeerFailed, p.conn.qp.Err())
		w.chores.lostCQ = append(w.chores.lostCQ, p)
	}
}

// event is a callback that is due, and what it is called with.
type event struct {
	kind eventKind
	peer *peerState
	m    *Message
	comp *Completion
	err  error
}

type eventKind uint8

const (
	eventMessage  eventKind = iota // the handler of m
	eventComplete                  // comp counts an operation, which ended with err
	eventError                     // OnError of peer, with err
)

// round collects the events of the present round of progress. Its callbacks run at its end, in the
// order of its events; the callbacks of later belong to the next round, and follow at once.
//
// Invariant: later is empty while events is. Worker.progressing guards events, Worker.mu the rest.
type round struct {
	events []event
	later  []event
	number uint64 // of the round, from 1 on
}

func newRound() round { return round{events: make([]event, 0, 2*pollBatch), number: 1} }

// report queues an event.
func (r *round) report(e event) { r.events = append(r.events, e) }

// reportLater queues an event for the next round.
func (r *round) reportLater(e event) { r.later = append(r.later, e) }

// next begins the next round, with the events that were queued for it.
func (r *round) next() {
	clear(r.events)
	r.events = r.events[:0]
	if len(r.later) != 0 {
		r.events, r.later = append(r.events, r.later...), r.later[:0]
	}
	r.number++
}

// drop drops the events of a dead worker, whose callbacks do not run.
func (r *round) drop() { r.events, r.later = nil, nil }

// chores lists the endpoints with work that few rounds of progress have. Worker.mu guards it.
//
// Invariant: an endpoint is in closing if its stage is aborted, and no longer once it is released;
// it is in reposts if and only if its receiving.repostListed is set.
type chores struct {
	failing []*peerState // failed; OnError is still to be called
	closing []*peerState // aborted; they may have completions left, and then are released
	lostCQ  []*peerState // their CQ has died: not every operation has a completion to come
	reposts []*peerState // have receive buffers to post again
	// toCredit lists endpoints that have credits to give back, and could not send them. settle
	// walks it while spare, an empty slice, takes its place.
	toCredit, spare []*peerState
	// refused reports that a NIC has refused something for now; the next round tries again.
	refused bool
}

// due reports whether a round has to call settle.
func (c *chores) due() bool {
	return len(c.failing)+len(c.closing)+len(c.toCredit)+len(c.lostCQ) != 0 || c.refused
}

// urgent reports whether there is something to do that no event of a NIC announces.
func (c *chores) urgent() bool { return c.refused || len(c.failing)+len(c.closing) != 0 }

// retryCredits makes the next round try again to give the endpoint's credits back.
func (c *chores) retryCredits(p *peerState) { c.toCredit = append(c.toCredit, p) }

// repost lists the endpoint, so that its buffers are posted before this round of progress ends.
func (c *chores) repost(p *peerState) {
	if !p.receiving.repostListed {
		p.receiving.repostListed = true
		c.reposts = append(c.reposts, p)
	}
}

// settle does the chores except reposts: it reports failures, gives credits back, and releases
// aborted endpoints. n is the number of completions in this round. It returns how much it did.
func (w *Worker) settle(n int) (did int) {
	c := &w.chores
	c.refused = false
	for _, p := range c.failing {
		w.round.report(event{kind: eventError, peer: p, err: p.ending.err})
	}
	c.failing = c.failing[:0]
	list := c.toCredit
	c.toCredit = c.spare[:0]
	for _, p := range list {
		p.giveCredits() // which may list it anew
	}
	c.spare = list[:0]
	if n == len(w.wcs) {
		return 0 // completions of aborted endpoints may still be among those to come
	}
	for _, p := range c.lostCQ {
		did += p.retireAll()
	}
	c.lostCQ = nil
	left := c.closing[:0]
	for _, p := range c.closing {
		if p.sending.pending.any() {
			left = append(left, p) // dispatchPending has not called all of its requests yet
			continue
		}
		p.release()
		did++
	}
	clear(c.closing[len(left):])
	c.closing = left
	return did
}

// keepAliveRounds is the number of rounds of progress between two looks at the clock, which costs
// as much as a round.
const keepAliveRounds = 128

// probeClock says when silent peers are probed next.
type probeClock struct {
	rounds int       // of progress since keepAlive last looked at the clock
	at     time.Time // when the next probes are due
}

// tick counts a round of progress. It reports whether keepAlive should look at the clock.
func (c *probeClock) tick() bool {
	c.rounds++
	return c.rounds >= keepAliveRounds
}

// due reports whether probes are due, and if so schedules the next ones after an interval.
func (c *probeClock) due(interval time.Duration) bool {
	now := time.Now()
	if now.Before(c.at) {
		return false
	}
	c.at = now.Add(interval)
	return true
}

// keepAlive probes every peer from which nothing has come since the last time, because an idle
// connection does not notice that its other end is gone. It is called with mu held, every
// keepAliveRounds rounds of progress and before a goroutine sleeps.
func (w *Worker) keepAlive() {
	w.probes.rounds = 0
	if w.cfg.KeepAlive < 0 || w.life.closed() || !w.probes.due(w.cfg.KeepAlive) {
		return
	}
	for p := range w.endpoints.all {
		if !p.ending.stage.serves() {
			continue
		}
		if !p.receiving.aliveSinceProbe && p.sending.idle() {
			p.probe()
		}
		p.receiving.aliveSinceProbe = false
	}
}
