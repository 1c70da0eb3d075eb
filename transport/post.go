package transport

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// lack is a set of things for want of which sends met ErrNoResource: one of them has to come back
// before another attempt makes sense. A pending request has its own, of what its function last met;
// an endpoint has that of the sends that went past the queue, because any of them may be the one
// that its caller queues next.
type lack uint8

const (
	lackWindow  lack = 1 << iota // its own operations have to end
	lackCredit                   // the peer has to give receive buffers back
	lackBuffer                   // a bounce buffer, which all endpoints share
	lackNIC                      // the NIC refused for now
	lackUnknown                  // a pending function said so
)

// usable says why the endpoint takes no operations, if so.
func (e *Endpoint) usable(op string) error {
	c := e.c
	switch {
	case c.err != nil:
		return c.err
	case !c.connected:
		return c.refuse(op, ErrNotConnected, "call Connect first")
	case c.stage != stageOpen && !e.turn:
		return c.refuse(op, ErrClosed, "")
	}
	return nil
}

// admit says whether an operation may start now that needs a credit or a bounce buffer; if not, it
// notes what lacks.
func (e *Endpoint) admit(credit, buffer bool) error {
	c := e.c
	switch {
	case c.pending.any() && !e.turn && !e.aside:
		return e.starve(0) // nothing overtakes the queue
	case c.ops.len()-c.inControl >= c.limit:
		return e.starve(lackWindow)
	case credit && c.credits == 0:
		return e.starve(lackCredit)
	case buffer && len(c.w.bounce.free) == 0:
		return e.starve(lackBuffer)
	}
	return nil
}

// starve is the end of an attempt that lacks a resource.
func (e *Endpoint) starve(l lack) error {
	c := e.c
	switch p, first := c.pending.running, c.pending.head; {
	case (e.turn || e.aside) && p != nil:
		p.lack |= l
	case e.aside && first != nil:
		if first.lack != 0 { // otherwise it is asked in its turn
			first.lack |= l
		}
	default:
		c.lack = c.lacking(c.lack, 0) | l
	}
	c.w.stats.noResource++
	if e.wake && !c.own.queued {
		c.own.again = true // inside its own function: see ready
		if !c.own.running {
			c.enqueue(&c.own)
		}
	}
	return ErrNoResource
}

// post hands an admitted operation to the virtual queue pair and gives it its slot. When that
// refuses, nothing has happened, and the bounce buffer is free again.
func (e *Endpoint) post(name string, wr []ibverbx.SendWR, kind opKind, buf int32, comp *Completion) (*op,
	error) {
	c := e.c
	if comp != nil && comp.left.Load() <= 0 {
		if buf != noBuffer {
			c.w.bounce.put(buf)
		}
		return nil, c.refuse(name, verbs.ErrInvalid, "the completion counts nothing: call Init, or "+
			"NewCompletion, for as many operations as it is given to")
	}
	wr[0].ID = c.sendID()
	if c.fence || c.fenceNext && !e.turn && !e.aside {
		wr[0].Flags |= verbs.SendFence
	}
	_, err := c.qp.PostSend(wr...)
	wr[0].Flags &^= verbs.SendFence
	if err != nil {
		if buf != noBuffer {
			c.w.bounce.put(buf)
		}
		return nil, e.postRefused(name, err)
	}
	c.fence = false
	if !e.turn && !e.aside {
		c.fenceNext = false
	}
	o := c.ops.push()
	o.kind, o.buf, o.comp = kind, buf, comp
	c.w.posted()
	return o, nil
}

// sendID is the work-request id of the next operation: endpoint and slot.
func (c *core) sendID() uint64 { return uint64(c.id)<<32 | uint64(c.ops.tail) }

// recvID marks the ids of receives.
const recvID = 1 << 63

// postRefused takes in that the virtual queue pair refused an operation.
func (e *Endpoint) postRefused(name string, err error) error {
	c := e.c
	switch {
	case verbs.IsTransient(err) || errors.Is(err, verbs.ErrQueueFull):
		c.w.retrying = true
		c.w.posted()
		return e.starve(lackNIC)
	case c.qp.Err() != nil:
		c.fail(ErrPeerFailed, c.qp.Err())
		return c.err
	}
	return c.refuse(name, reason(err), "")
}

// reason is an error of a post without its first words, which name a call that the user did not
// make.
func reason(err error) error {
	var p *ibverbx.PostError
	if errors.As(err, &p) {
		return &argumentError{detail: p.Detail, err: p.Err}
	}
	return err
}

// argumentError is what was wrong with an argument.
type argumentError struct {
	detail string
	err    error
}

func (e *argumentError) Error() string { return e.err.Error() + ": " + e.detail }
func (e *argumentError) Unwrap() error { return e.err }
