package nic

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// QP is the part of a queue pair that does not depend on how requests are executed. The lock guards
// it; the exported fields from Num to CQs never change.
type QP struct {
	_         guard.NoCopy
	dev       *Device
	PD        *PD
	Num       uint32
	Cap       verbs.QPCap
	SignalAll bool
	CQs       [2]*CQ // by direction

	State  verbs.QPState
	Attr   verbs.QPAttr // as set by Modify; its State and CurState are unused
	Closed bool         // set by the provider when Close begins

	SQ SendQueue
	RQ RecvQueue

	// Errors of the hot path, made once.
	errSendFull, errRecvFull error
}

// CheckQP returns the sizes that a queue pair gets, or why it cannot be made. Call it locked.
func (p *PD) CheckQP(c verbs.QPCap, send, recv *CQ) (verbs.QPCap, error) {
	const op = "create qp"
	if err := p.Usable(op); err != nil {
		return c, err
	}
	for _, cq := range [2]*CQ{send, recv} {
		if cq == nil || cq.dev != p.dev {
			return c, p.dev.Err(op, verbs.ErrInvalid,
				"SendCQ and RecvCQ have to be completion queues of the same NIC")
		}
		if cq.closed {
			return c, p.dev.Err(op, verbs.ErrClosed, "the completion queue")
		}
	}
	c, wrong := p.dev.Limits.QPCap(c)
	if wrong != "" {
		return c, p.dev.Err(op, verbs.ErrInvalid, wrong)
	}
	return c, nil
}

// Init makes a queue pair in RESET, after CheckQP: Num, Cap, SignalAll and CQs are set. Call it
// locked.
func (q *QP) Init(p *PD) {
	q.dev, q.PD = p.dev, p
	q.SQ = newSendQueue(q.Cap.MaxSendWR, q.Cap.MaxSendSGE, q.Cap.MaxInline)
	q.RQ = newRecvQueue(q.Cap.MaxRecvWR, q.Cap.MaxRecvSGE)
	q.errSendFull = q.Err("post send", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", q.Cap.MaxSendWR))
	q.errRecvFull = q.Err("post recv", verbs.ErrQueueFull, fmt.Sprintf("the queue holds %d", q.Cap.MaxRecvWR))
	q.CQs[Send].users++
	q.CQs[Recv].users++
	p.qps++
	p.dev.Open.QPs++
}

// Err returns the error of a call on the queue pair.
func (q *QP) Err(op string, err error, detail string) error {
	return &verbs.OpError{Op: op, Device: q.dev.Name, QPNum: q.Num, Detail: detail, Err: err}
}

// Usable returns why the queue pair accepts no calls; nil if it does. Call it and all methods below
// locked.
func (q *QP) Usable(op string) error {
	if q.Closed {
		return q.Err(op, verbs.ErrClosed, "")
	}
	if q.dev.Gone {
		return q.Err(op, verbs.ErrDeviceGone, "")
	}
	return nil
}

// Query returns the current attributes.
func (q *QP) Query() (verbs.QPAttr, error) {
	if err := q.Usable("query qp"); err != nil {
		return verbs.QPAttr{}, err
	}
	attr := q.Attr
	attr.State, attr.CurState = q.State, q.State
	return attr, nil
}

// Receptive reports whether the state accepts messages.
func (q *QP) Receptive() bool {
	return q.State == verbs.StateRTS || q.State == verbs.StateRTR || q.State == verbs.StateSQD
}

// Uses reports whether completions of the queue pair go to c.
func (q *QP) Uses(c *CQ) bool { return q.CQs[Send] == c || q.CQs[Recv] == c }

// Reset takes the queue pair to RESET. Outstanding requests, and completions that were not polled,
// are dropped. The caller makes sure that nothing executes.
func (q *QP) Reset() {
	q.State = verbs.StateReset
	q.CQs[Send].forget(q)
	q.CQs[Recv].forget(q)
	q.SQ.reset()
	q.RQ.reset()
	q.Attr = verbs.QPAttr{}
}

// Destroy ends the queue pair, after Reset.
func (q *QP) Destroy() {
	q.CQs[Send].users--
	q.CQs[Recv].users--
	q.PD.qps--
	q.dev.Open.QPs--
}

// CheckInvariants returns which invariant of the queues is violated; nil if none is.
func (q *QP) CheckInvariants() error {
	s, r := &q.SQ, &q.RQ
	switch {
	case s.freed > s.Acked || s.Acked > s.Executed || s.Executed > s.Posted || s.Posted-s.freed > s.limit:
		return fmt.Errorf("send queue: freed %d acked %d executed %d posted %d", s.freed, s.Acked, s.Executed,
			s.Posted)
	case r.freed > r.Consumed || r.Consumed > r.Posted || r.Posted-r.freed > r.limit:
		return fmt.Errorf("receive queue: freed %d consumed %d posted %d", r.freed, r.Consumed, r.Posted)
	}
	return nil
}

// release frees the slots up to the request of a polled completion.
func (q *QP) release(dir Direction, seq uint64) {
	if dir == Send {
		q.SQ.free(seq)
	} else {
		q.RQ.free(seq)
	}
}
