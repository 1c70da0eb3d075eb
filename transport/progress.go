package transport

import (
	"ibverbx/verbs"
)

// Progress handles what the NICs have completed, a batch at most, and runs the callbacks that this
// leads to: pending requests first, then completions and active messages in their order. It never
// blocks. It returns how much it did; 0 means that there was nothing to do, that another goroutine
// was making progress, or that the worker is closed or dead.
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
	for i := range n {
		w.completed(i)
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

// completed handles completion i of the batch.
func (w *Worker) completed(i int) {
	wc := &w.wcs[i]
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
	w.postReceives()
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
