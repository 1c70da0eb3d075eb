package ibverbx

import (
	"errors"
	"iter"

	"ibverbx/verbs"
)

// Poll moves up to len(dst) completions into dst, oldest first, and returns their number. It
// neither blocks nor allocates. An error means that a physical CQ has died; it is reported once,
// the virtual queue pairs on it fail, and completions are still delivered. If failover lets all of
// them continue without that CQ, there is no error. After Close, Poll delivers the remaining
// completions and then [ErrClosed].
//
// Poll stops when dst is full: unlike the C++ original's pollCq, it does not drain the physical
// CQs. Further completions wait for the next call, most of them in the NICs' CQs, and so does the
// work that depends on them: fragments for which there was no room, credits, notifications. So
// while n is len(dst), call it again. An empty dst is never full: Poll(nil) does all the work and
// keeps the completions.
func (c *VirtualCQ) Poll(dst []WC) (n int, err error) {
	c.enter()
	n, err = c.poll(dst, -1)
	c.exit()
	return n, err
}

// PollOne returns the oldest completion, if there is one.
func (c *VirtualCQ) PollOne() (wc WC, ok bool, err error) {
	c.enter()
	if c.ready.Len() != 0 {
		wc, ok = *c.ready.Front(), true
		c.ready.Drop()
	} else {
		var n int
		if n, err = c.poll(c.one[:], -1); n != 0 {
			wc, ok = c.one[0], true
		}
	}
	c.exit()
	return wc, ok, err
}

// Completions ranges over the completions until there are no more:
//
//	for wc, err := range cq.Completions() { ... }
//
// An error of Poll comes by itself with a zero WC; the loop continues after it. The loop body may
// post.
func (c *VirtualCQ) Completions() iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		var batch [16]WC
		for {
			n, err := c.Poll(batch[:])
			for i := range n {
				if !yield(batch[i], nil) {
					c.unpoll(batch[i+1 : n])
					c.pendingErr = errors.Join(c.pendingErr, err)
					return
				}
			}
			if err != nil && (!yield(WC{}, err) || c.closed) {
				return
			}
			if n == 0 && err == nil {
				return
			}
		}
	}
}

// unpoll puts back completions that a loop did not take.
func (c *VirtualCQ) unpoll(wcs []WC) {
	later := c.ready.Len()
	for i := range wcs {
		c.ready.Push(wcs[i])
	}
	for range later {
		c.ready.Push(c.ready.Pop())
	}
}

// poll is Poll for one device's CQ, or all with only = -1.
func (c *VirtualCQ) poll(dst []WC, only int) (int, error) {
	out := c.sink(dst)
	for out.n < len(dst) && c.ready.Len() != 0 {
		dst[out.n] = *c.ready.Front()
		c.ready.Drop()
		out.n++
	}
	if c.closed {
		if out.n == 0 && len(dst) != 0 {
			return 0, c.error("poll", ErrClosed)
		}
		return out.n, nil
	}
	if out.n == len(dst) && len(dst) != 0 {
		return out.n, nil
	}
	err := c.takeAll(&out, only)
	return out.n, err
}

// sink returns the destination of a poll into dst.
func (c *VirtualCQ) sink(dst []WC) sink { return sink{dst: dst, ready: &c.ready} }

// collect handles the NICs' completions, so that these requests do not count as outstanding. The
// next poll reports that a CQ has died.
func (c *VirtualCQ) collect() {
	if !c.closed {
		out := c.sink(nil)
		c.pendingErr = c.takeAll(&out, -1)
	}
}

// takeAll handles the completions of the physical CQs and continues the virtual queue pairs. Once
// the caller's slice is full it takes no more than a batch from each further CQ.
func (c *VirtualCQ) takeAll(out *sink, only int) error {
	next := c.nextCQ
	for range c.cqs {
		pc := &c.cqs[next]
		if next++; next == len(c.cqs) {
			next = 0
		}
		if pc.dead || only >= 0 && int(pc.device) != only {
			continue
		}
		n, err := pc.cq.Poll(c.scratch)
		if n == 0 && err == nil {
			continue // most polls of most CQs: nothing more is done for one
		}
		if c.take(pc, n, err, out) {
			c.nextCQ = next
		}
	}
	if c.ports.events != nil && len(c.ports.events) != 0 { //nolint:staticcheck // len of a channel is a call
		c.takeEvents()
	}
	if len(c.later.list) != 0 {
		c.touchDue()
	}
	if c.snapshots.asked.Load() {
		c.takeSnapshot(false)
	}
	if len(c.touched) != 0 {
		c.progress(out)
	}
	out.settle()
	err := c.pendingErr
	if err != nil {
		c.pendingErr = nil
	}
	return err
}

// take handles the completions of the first poll of a physical CQ, and then further ones, until the
// CQ is empty, its share is taken, or the caller's slice is full, which it reports.
func (c *VirtualCQ) take(pc *physicalCQ, n int, err error, out *sink) (full bool) {
	var last *rail // completions come in bursts of one queue pair
	for polls := 1; ; polls++ {
		last = c.route(pc.routes, last, c.scratch[:n], out)
		switch {
		case err != nil:
			pc.dead = true
			if !c.loseDevice(pc.device, err) {
				c.pendingErr = errors.Join(c.pendingErr, c.deviceError("poll", pc, err))
			}
			return false
		case n < len(c.scratch):
			return false
		case out.n == len(out.dst) && out.n != 0:
			return true
		case polls == pc.maxPolls:
			return false
		}
		n, err = pc.cq.Poll(c.scratch)
	}
}

// route hands physical completions to their rails, and returns the last of these; last is the rail
// of the completion before. A completion of a queue pair that was just closed is counted and
// dropped.
func (c *VirtualCQ) route(t *routeTable, last *rail, wcs []verbs.WC, out *sink) *rail {
	if c.routesObserved {
		return c.routeObserved(t, last, wcs, out)
	}
	for i := 0; i < len(wcs); i++ {
		wc := &wcs[i]
		if last == nil || last.num != wc.QPNum {
			if last = t.find(wc.QPNum); last == nil {
				c.stale++
				continue
			}
		}
		if p := last.vqp.pass; p != nil {
			i = p.completed(wcs, i, out) - 1
			continue
		}
		last.vqp.process(last, wc)
	}
	return last
}

// touch lists a virtual queue pair that has work to do.
func (c *VirtualCQ) touch(q *VirtualQP) {
	if !q.touched {
		q.touched = true
		c.touched = append(c.touched, q)
	}
}

// progress continues every touched virtual queue pair. One that must try again is touched again,
// for the next time.
func (c *VirtualCQ) progress(out *sink) {
	n := len(c.touched)
	for i := range n {
		q := c.touched[i]
		q.touched = false
		q.progress(out)
	}
	if len(c.touched) == n { // the usual case, without the call that copy is
		c.touched = c.touched[:0]
		return
	}
	c.touched = c.touched[:copy(c.touched, c.touched[n:])]
}

// takeEvents hands out the NICs' events. Polling notices most failures without them.
func (c *VirtualCQ) takeEvents() {
	anyLost := false
	for len(c.ports.events) != 0 {
		e, lost := c.ports.next()
		anyLost = anyLost || lost
		c.ports.forget()
		for _, q := range c.vqps {
			if q.failover != nil && q.failover.handleEvent(e) {
				c.touch(q)
			}
		}
	}
	for _, q := range c.vqps {
		if anyLost && q.failover != nil {
			q.failover.checkPorts()
			q.failover.suspectIdle()
			c.touch(q)
		}
	}
}

// observe makes the observer of a virtual queue pair.
func (c *VirtualCQ) observe(q *VirtualQP) {
	if c.recorder == nil {
		c.recorder = &recorder{clock: q.cfg.Testing.Clock, begin: q.cfg.clock()()}
	}
	if q.cfg.Trace && c.recorder.events == nil {
		c.recorder.events = &[traceRing]TraceEvent{}
	}
	o := newObserver(c.recorder, &q.cfg, q.num)
	q.observer, q.send.observer, q.recv.observer = o, o, o
	c.routesObserved = c.routesObserved || routesObserved(q)
	if q.pass != nil {
		q.pass.observer = o
	}
}

// routesObserved reports whether the observer of a virtual queue pair sees completions one by one.
func routesObserved(q *VirtualQP) bool {
	return q.observer != nil && (q.observer.events || q.pass != nil)
}

// routeObserved is route where virtual queue pairs are observed.
func (c *VirtualCQ) routeObserved(t *routeTable, last *rail, wcs []verbs.WC, out *sink) *rail {
	c.recorder.lapse()
	handling := region("ibverbx completions")
	for i := 0; i < len(wcs); i++ {
		wc := &wcs[i]
		if last == nil || last.num != wc.QPNum {
			if last = t.find(wc.QPNum); last == nil {
				c.stale++
				continue
			}
		}
		q := last.vqp
		switch {
		case q.pass != nil && q.observer != nil:
			i = q.pass.completedObserved(wcs, i, out) - 1
		case q.pass != nil:
			i = q.pass.completed(wcs, i, out) - 1
		case q.observer == nil || !q.observer.events:
			q.process(last, wc)
		default:
			c.processObserved(last, wc)
		}
	}
	if handling != nil {
		handling.End()
	}
	return last
}

// processObserved is process for a completion that is recorded, unless it fits nothing. It is
// recorded before it is handled, so that a failure has it among its recent events.
func (c *VirtualCQ) processObserved(rl *rail, wc *verbs.WC) {
	q := rl.vqp
	stale := q.stale
	recorded := q.observer.completed(&q.send, rl, wc)
	q.process(rl, wc)
	if recorded && q.stale != stale {
		c.recorder.takeBack()
	}
}
