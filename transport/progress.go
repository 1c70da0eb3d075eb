package transport

import (
	"ibverbx/verbs"
)

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

// report queues an event. Its callback runs at the end of the round.
func (w *Worker) report(e event) { w.events = append(w.events, e) }

// Progress handles what the NICs have completed, a batch at most, and runs the callbacks that this
// leads to: pending requests first, then completions and active messages in their order. It never
// blocks. It returns how much it did; 0 means that there was nothing to do, that another goroutine
// was making progress, or that the worker is closed or dead.
func (w *Worker) Progress() int {
	if !w.progressing.TryLock() {
		// The goroutine that holds it may have polled already. It looks at missedProgress after it
		// has released the lock, so it must hold it still after that was set.
		if w.missedProgress.Store(true); !w.progressing.TryLock() {
			return 0
		}
	}
	n := w.progress()
	w.progressing.Unlock()
	if w.sleep.any() && (w.missedProgress.Swap(false) || n != 0) {
		w.sleep.wake()
	}
	return n
}

// progress is Progress with w.progressing held.
func (w *Worker) progress() int {
	w.mu.Lock()
	if w.dead.Load() {
		w.mu.Unlock()
		return 0
	}
	if len(w.watch.events) != 0 {
		w.watch.look()
	}
	n, err := w.cq.Poll(w.wcs)
	for i := range n {
		w.completed(i)
	}
	if w.sinceClock++; w.sinceClock >= keepAliveRounds {
		w.keepAlive()
	}
	if err != nil {
		w.loseCQ()
	}
	if w.chores.due() {
		n += w.settle(n)
	}
	if w.scheduled.Len() != 0 {
		n += w.dispatchPending()
	}
	if len(w.events) == 0 {
		if len(w.chores.reposts) != 0 {
			w.postReceives()
		}
		w.unlock()
		return n
	}
	w.mu.Unlock()
	n += len(w.events)
	w.runEvents()
	return n
}

// completed handles completion i of the batch.
func (w *Worker) completed(i int) {
	wc := &w.wcs[i]
	id := wridEndpoint(wc.ID)
	if int(id) >= len(w.endpoints) || w.endpoints[id] == nil {
		w.stats.stale++
		return
	}
	p := w.endpoints[id]
	if wc.ID&wridRecv != 0 && wridAttempt(wc.ID) != p.receiving.attempt {
		return // flushed by a Connect that failed
	}
	p.receiving.aliveSinceProbe = true
	if wc.Status != verbs.StatusSuccess && p.ending.err == nil {
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

// runEvents runs the callbacks in the order of their events, and then those of afterRound. No lock
// but progressing is held.
func (w *Worker) runEvents() {
	defer w.die()
	for len(w.events) != 0 {
		w.runRound()
	}
}

// runRound runs the callbacks of one round of events.
func (w *Worker) runRound() {
	handled, failed := false, false
	w.calling = callingEvents
	for i := range w.events {
		switch e := &w.events[i]; e.kind {
		case eventMessage:
			w.handlers[e.m.id](e.m)
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
	w.calling = 0
	w.mu.Lock()
	if failed {
		for i := range w.events {
			if e := &w.events[i]; e.kind == eventError {
				e.peer.ending.reporting = false // its pending functions may run
			}
		}
	}
	if handled {
		for i := range w.events {
			switch m := w.events[i].m; {
			case m == nil:
			case m.state == messageHandled:
				m.returnsCredit = true
				m.peer.repost(m.slot, false)
			case m.state == messageKept:
				m.peer.giveCredits() // the peer may be out of credits: return them now
			}
		}
	}
	clear(w.events)
	w.events = append(w.events[:0], w.afterRound...)
	w.afterRound = w.afterRound[:0]
	w.round++
	w.postReceives()
	w.mu.Unlock()
}

// loseCQ fails the endpoints whose queue pairs have died with their physical CQ. A single queue
// pair tracks nothing, so what it had outstanding yields no completion.
func (w *Worker) loseCQ() {
	for _, p := range w.endpoints {
		if p == nil || p.ending.stage.qpClosed() || p.conn.qp.Err() == nil {
			continue
		}
		p.fail(stageFailed, ErrPeerFailed, p.conn.qp.Err())
		w.chores.lostCQ = append(w.chores.lostCQ, p)
	}
}
