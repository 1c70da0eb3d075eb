package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/verbs"
)

// Close ends the virtual queue pair and its physical ones. What had completed in order is reported
// as it completed; everything else that is outstanding is reported as flushed, and can still be
// polled from the virtual CQ, even after that is closed. When Close returns nil, no NIC touches
// memory on the virtual queue pair's behalf any more; an error says that a NIC did not confirm it.
// A request that had completed behind one that had not counts as outstanding: completions keep
// their order.
//
// A single-QP virtual queue pair tracks nothing, so there the NIC must report what it flushes:
// Close waits for that, a second at most, and 10 ms after the last where the queue is full of
// unsignaled requests and cannot tell. [VirtualCQ.Close] waits for all at once.
func (q *VirtualQP) Close() error {
	q.cq.guard.enter()
	err := q.close()
	q.cq.guard.exit()
	return err
}

func (q *VirtualQP) close() error {
	if q.closed {
		return fmt.Errorf("ibverbx: close virtual qp %d: %w", q.num, ErrClosed)
	}
	q.collect()
	if q.single && q.state != verbs.StateReset {
		q.flush()
	}
	err := q.closeRails()
	q.endOutstanding()
	q.closed, q.state = true, verbs.StateErr
	q.cq.detach(q)
	if q.dom != nil {
		q.dom.release()
	}
	if q.ownsCQ {
		err = errors.Join(err, q.cq.close())
	}
	if q.ownsDomain {
		// the program may have closed it, and waits for this
		if closing := q.dom.Close(); !errors.Is(closing, ErrClosed) {
			err = errors.Join(err, closing)
		}
	}
	return err
}

// collect takes in what the NICs have completed, so that it is not mistaken for outstanding.
func (q *VirtualQP) collect() {
	if !q.cq.closed {
		q.cq.untold = q.cq.takeAll(&sink{}, -1) // the next poll tells that a CQ has died
	}
}

// closeRails destroys the physical queue pairs that are still open.
func (q *VirtualQP) closeRails() error {
	var errs []error
	for _, r := range q.all {
		if r.closed {
			continue
		}
		if err := r.qp.Close(); err != nil {
			errs = append(errs, q.railError(r, err))
			continue
		}
		r.closed = true
	}
	q.killed = true // nothing is posted on them any more
	return errors.Join(errs...)
}

// attach registers a virtual queue pair's rails, and reserves room for all the completions that
// they may have outstanding.
func (c *VirtualCQ) attach(q *VirtualQP) error {
	need := [verbs.MaxDevices]int{}
	for i, r := range q.all {
		refuse := func(err error, why string) error {
			return fmt.Errorf("ibverbx: new virtual qp: %w: queue pair %d of %s %s", err, r.num,
				r.qp.Device().Name(), why)
		}
		t := c.routes[r.device]
		switch {
		case t == nil:
			return refuse(verbs.ErrInvalid, "is on a device of which the virtual CQ has no CQ")
		case slices.ContainsFunc(q.all[:i], func(o *rail) bool {
			return o.device == r.device &&
				o.num == r.num
		}):
			return refuse(verbs.ErrInvalid, "is given twice")
		case t.find(r.num) != nil:
			return refuse(verbs.ErrInvalid, "belongs to a virtual QP already")
		}
		if state := r.qp.State(); state != verbs.StateReset {
			return refuse(verbs.ErrState, fmt.Sprintf("is in %v: must be in RESET", state))
		}
		need[r.device] += r.slots + r.recvLimit
	}
	for dev, n := range need {
		if n > c.room[dev] {
			return fmt.Errorf("ibverbx: new virtual qp: %w: its queue pairs on device %d may have %d "+
				"completions outstanding, the virtual CQ has room for %d: make its CQ deeper, or lower "+
				"MaxMsgCntPerQP and Credits",
				verbs.ErrInvalid, dev, n, c.room[dev])
		}
	}
	for dev, n := range need {
		c.room[dev] -= n
	}
	c.nextNum++
	q.num = c.nextNum
	for _, r := range q.all {
		c.routes[r.device].add(r.num, r)
	}
	c.vqps = append(c.vqps, q)
	return nil
}

// detach forgets a virtual queue pair.
func (c *VirtualCQ) detach(q *VirtualQP) {
	for _, r := range q.all {
		c.routes[r.device].remove(r.num, r)
		c.room[r.device] += r.slots + r.recvLimit
	}
	for i := range c.vqps {
		if c.vqps[i] == q {
			c.vqps = append(c.vqps[:i], c.vqps[i+1:]...)
			return
		}
	}
}

// Close closes the virtual queue pairs that are still open on the virtual CQ, and the physical CQs.
// Completions that were not polled yet, flushed ones included, can still be polled.
func (c *VirtualCQ) Close() error {
	c.guard.enter()
	err := c.close()
	c.guard.exit()
	return err
}

func (c *VirtualCQ) close() error {
	if c.closed {
		return fmt.Errorf("ibverbx: close virtual cq: %w", ErrClosed)
	}
	var singles []*VirtualQP
	for _, q := range c.vqps {
		if q.single && q.state != verbs.StateReset {
			q.startFlush()
			singles = append(singles, q)
		}
	}
	awaitFlushes(singles)
	var errs []error
	for len(c.vqps) != 0 {
		c.vqps[0].ownsCQ = false // it is being closed here
		errs = append(errs, c.vqps[0].close())
	}
	for i := range c.cqs {
		if err := c.cqs[i].cq.Close(); err != nil {
			errs = append(errs, fmt.Errorf("ibverbx: close virtual cq: %s: %w", c.cqs[i].cq.Device().Name(),
				err))
		}
	}
	c.closed = true
	errs = append(errs, c.untold) // of a CQ that had died already
	c.untold = nil
	if c.dom != nil {
		c.dom.release()
	}
	return errors.Join(errs...)
}
