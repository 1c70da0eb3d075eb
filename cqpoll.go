package ibverbx

import (
	"errors"
	"iter"

	"ibverbx/verbs"
)

// Poll moves up to len(dst) completions into dst, oldest first, and says how many. It neither
// blocks nor allocates. An error concerns a physical CQ that has died; it is reported once, the
// virtual queue pairs on it fail, and completions are delivered all the same. Where all of them can
// do without, by failover, it is none. After Close it delivers what was left and then [ErrClosed].
//
// Poll stops when dst is full: it does not drain the physical CQs, as the C++ original's pollCq
// does. What does not fit waits for the next call, most of it in the NICs' CQs, and what would
// follow from it waits too: fragments for which there was no room, credits, notifications. So while
// n is len(dst), call it again. An empty dst never is full: Poll(nil) carries on with everything
// and keeps the completions.
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

// Completions ranges over the completions there are, until there are none:
//
//	for wc, err := range cq.Completions() { ... }
//
// An error, as of Poll, comes by itself with a zero WC; the loop goes on behind it. The loop body
// may post.
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

// unpoll puts completions back that a loop did not take.
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

// sink is where a poll into dst puts what it reports.
func (c *VirtualCQ) sink(dst []WC) sink { return sink{dst: dst, ready: &c.ready} }

// collect handles what the NICs have completed, so that it is not mistaken for outstanding. The
// next poll reports that a CQ has died.
func (c *VirtualCQ) collect() {
	if !c.closed {
		out := c.sink(nil)
		c.pendingErr = c.takeAll(&out, -1)
	}
}

// takeAll handles what the physical CQs hold and carries on with what that frees. Once the caller's
// slice is full it takes no more than a batch from each further CQ.
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

// take handles what the first poll of a physical CQ has given, and what more it holds: until it is
// empty, or its share is taken, or the caller's slice is full, which it reports.
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

// route hands physical completions to the rails that they belong to, and returns the last of these;
// last is the rail of the completion before. One of a queue pair that was closed a moment ago is
// counted and dropped.
func (c *VirtualCQ) route(t *routeTable, last *rail, wcs []verbs.WC, out *sink) *rail {
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

// touch lists a virtual queue pair as one that has something to carry on with.
func (c *VirtualCQ) touch(q *VirtualQP) {
	if !q.touched {
		q.touched = true
		c.touched = append(c.touched, q)
	}
}

// progress lets every touched virtual queue pair carry on. One that must try again is touched anew,
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

// takeEvents hands out what the NICs have reported. Most of what fails is noticed by polling.
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
