package transport

import (
	"ibverbx/verbs"
)

// event is something that a callback has to be told of.
type event struct {
	kind eventKind
	c    *core
	m    *Message
	comp *Completion
	err  error
}

type eventKind uint8

const (
	eventMessage  eventKind = iota // a handler
	eventComplete                  // a completion
	eventError                     // an endpoint's OnError
)

func (w *Worker) tell(e event) { w.events = append(w.events, e) }

// Progress takes in what the NICs have completed, a batch at most, and runs the callbacks that this
// leads to: pending requests first, then completions and active messages in their order. It never
// blocks. It returns how much it did; 0 means that nothing had happened, or that another goroutine
// was making progress.
func (w *Worker) Progress() int {
	if !w.progressing.TryLock() {
		// Whoever holds it may have polled already. It looks at missed after it has let go, so it
		// must hold it still after that was set.
		if w.missed.Store(true); !w.progressing.TryLock() {
			return 0
		}
	}
	n := w.progress()
	w.progressing.Unlock()
	if w.sleep.any() && (w.missed.Swap(false) || n != 0) {
		w.sleep.wake()
	}
	return n
}

// progress is Progress for who holds the lock of that name.
func (w *Worker) progress() int {
	w.mu.Lock()
	n, err := w.cq.Poll(w.wcs)
	for i := range n {
		w.completed(i)
	}
	w.taken += uint64(n)
	if w.rounds++; w.rounds >= aliveRounds {
		w.keepAlive()
	}
	if err != nil {
		w.loseCQ()
	}
	if len(w.failing)+len(w.closing)+len(w.again)+len(w.lost) != 0 || w.retrying {
		n += w.settle(n)
	}
	if w.waiting.len() != 0 {
		n += w.dispatchPending()
	}
	if len(w.events) == 0 {
		if len(w.reposts) != 0 {
			w.postReceives()
		}
		w.mu.Unlock()
		return n
	}
	w.mu.Unlock()
	n += len(w.events)
	w.runEvents()
	return n
}

// completed takes in a completion.
func (w *Worker) completed(i int) {
	wc := &w.wcs[i]
	id := uint32(wc.ID>>32) &^ (1 << 31)
	if int(id) >= len(w.endpoints) || w.endpoints[id] == nil {
		w.stats.stale++
		return
	}
	c := w.endpoints[id]
	c.heard = true
	if wc.Status != verbs.StatusSuccess && c.err == nil {
		cause := c.qp.Err()
		if cause == nil {
			cause = wc.Status.Err()
		}
		c.fail(ErrPeerFailed, cause)
	}
	switch {
	case wc.ID&recvID == 0:
		c.sent(uint32(wc.ID), wc.Status)
	case wc.Status == verbs.StatusSuccess && !c.deaf:
		c.arrived(uint32(wc.ID), wc.ByteLen)
	}
}

// sent takes in that the oldest operation has ended.
func (c *core) sent(slot uint32, status verbs.Status) {
	if c.ops.empty() || slot != c.ops.head {
		c.w.stats.stale++
		return
	}
	ok := status == verbs.StatusSuccess
	c.retire(ok)
	for !c.ops.empty() && c.ops.front().kind == opFlush {
		c.retire(ok) // after a failure nothing ends well any more
	}
}

// retire ends the oldest operation.
func (c *core) retire(ok bool) {
	w := c.w
	o := c.ops.front()
	switch {
	case o.kind == opUnpack && ok:
		copy(o.dst, w.bounce.bytes(o.buf))
	case o.kind == opAtomic && ok && o.result != nil:
		*o.result = c.cellValue(c.ops.head)
	case o.kind == opControl:
		if c.inControl--; c.owed != 0 {
			w.again = append(w.again, c) // it may have been this one's slot that was missing
		}
	}
	if o.buf != noBuffer {
		w.bounce.put(o.buf)
	}
	if o.comp != nil {
		c.untold = w.round
		e := event{kind: eventComplete, comp: o.comp}
		if !ok {
			e.err = c.err
		}
		w.tell(e)
		o.comp = nil
	}
	o.dst, o.result = nil, nil
	c.ops.head++
}

// runEvents runs the callbacks, in order, without any lock that they could need, and then what they
// have put off.
func (w *Worker) runEvents() {
	for len(w.events) != 0 {
		w.runRound()
	}
}

func (w *Worker) runRound() {
	handled := false
	for i := range w.events {
		switch e := &w.events[i]; e.kind {
		case eventMessage:
			w.handlers[e.m.id](e.m)
			handled = true
		case eventComplete:
			e.comp.Done(e.err)
		case eventError:
			if f := e.c.cfg.OnError; f != nil {
				f(&e.c.faces[0], e.err)
			}
		}
	}
	w.mu.Lock()
	if handled {
		for i := range w.events {
			switch m := w.events[i].m; {
			case m == nil:
			case m.state == messageHandled:
				m.owes = true
				m.c.repost(m.slot, false)
			case m.state == messageKept:
				m.c.giveCredits() // it may have been the peer's last one
			}
		}
	}
	clear(w.events)
	w.events = append(w.events[:0], w.late...)
	w.late = w.late[:0]
	w.round++
	w.postReceives()
	w.mu.Unlock()
}

// loseCQ fails the endpoints whose queue pairs have died with their physical CQ. A single queue
// pair tracks nothing, so what it had outstanding yields no completion.
func (w *Worker) loseCQ() {
	for _, c := range w.endpoints {
		if c == nil || c.stage == stageAborted || c.qp.Err() == nil {
			continue
		}
		c.fail(ErrPeerFailed, c.qp.Err())
		w.lost = append(w.lost, c)
	}
}

// settle does what few rounds have to do: tell of failures that were noticed outside of progress,
// end what was aborted, and send credits that could not be sent. n is how many completions this
// round brought.
func (w *Worker) settle(n int) (did int) {
	w.retrying = false
	for _, c := range w.failing {
		w.tell(event{kind: eventError, c: c, err: c.err})
	}
	w.failing = w.failing[:0]
	again := w.again
	w.again = w.againSpare[:0]
	for _, c := range again {
		if c.err == nil {
			c.giveCredits() // which may put it into w.again anew
		}
	}
	w.againSpare = again[:0]
	if n == len(w.wcs) {
		return 0 // completions of aborted endpoints may still be among those to come
	}
	for _, c := range w.lost {
		for !c.ops.empty() {
			c.retire(false)
			did++
		}
	}
	w.lost = nil
	left := w.closing[:0]
	for _, c := range w.closing {
		if c.pending.any() {
			left = append(left, c) // its functions are still to learn of it
			continue
		}
		c.release()
		did++
	}
	clear(w.closing[len(left):])
	w.closing = left
	return did
}
