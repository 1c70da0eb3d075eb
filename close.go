package ibverbx

import (
	"errors"
	"fmt"

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
// unsignaled requests and cannot tell. [VirtualCQ.Close] waits for all at once. Where the NIC
// refuses to flush for so long, what it held is not reported, and Close returns its error.
func (q *VirtualQP) Close() error {
	q.enter()
	err := q.close()
	q.exit()
	return err
}

func (q *VirtualQP) close() error {
	if q.line.closed {
		return fmt.Errorf("ibverbx: close virtual qp %d: %w", q.num, ErrClosed)
	}
	q.cq.collect()
	var err error
	if q.pass != nil && q.line.state != verbs.StateReset {
		q.flush()
		if err = q.unflushed(q.pass.rail); err != nil {
			err = q.railError(q.pass.rail, err)
		}
	}
	err = errors.Join(err, q.closeRails())
	q.endOutstanding()
	q.line.close()
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

// closeRails destroys the physical queue pairs that are still open. Nothing is posted on them any
// more.
func (q *VirtualQP) closeRails() error {
	var errs []error
	for _, r := range q.send.rails.all {
		if r.closed {
			continue
		}
		if err := r.qp.Close(); err != nil {
			errs = append(errs, q.railError(r, err))
			continue
		}
		r.closed = true
	}
	q.line.dead = true
	return errors.Join(errs...)
}
