package soft

import (
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// acknowledge ends the oldest executed request of q; there must be one. The data of a read or
// atomic lands, the completion is raised if the request has one, and an error takes the queue pair
// to ERR.
func (f *Fabric) acknowledge(q *QP) {
	seq := q.core.SQ.Acked
	s := q.core.SQ.At(seq)
	if s.Answered() && (s.Status == verbs.StatusSuccess) {
		q.run.reads--
		if f.stepped {
			s.Status = f.landLate(q, s, seq)
		}
	}
	q.core.SQ.Acked++
	q.run.tries = 0
	if s.Status != verbs.StatusSuccess {
		f.completeError(q, nic.Send, seq, s.Status, s.VendorErr)
		f.toError(q)
		return
	}
	if !q.core.Signaled(s) {
		return
	}
	var e nic.Completion
	q.core.Sent(&e, seq, s)
	f.complete(q, &e, 0)
}

// complete adds a completion of q to its queue, visible or, until it is due, not yet.
func (f *Fabric) complete(q *QP, e *nic.Completion, due int64) {
	c := q.core.CQs[e.Dir]
	if c.Dead() {
		return
	}
	if c.Full() || e.Dir == nic.Send && len(f.injections) != 0 && f.strikeCompletion(q, e.Seq) {
		q.dev.overrun(c)
		return
	}
	if f.engine.hide(q, e.Dir, due) {
		q.hidden[e.Dir] = append(q.hidden[e.Dir], hidden{*e, due})
		c.Reserve(1)
		return
	}
	c.Add(e)
}

// reveal makes hidden completion number i of a queue visible.
func (f *Fabric) reveal(q *QP, dir nic.Direction, i int) {
	list := q.hidden[dir]
	e := list[i]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = hidden{}
	q.hidden[dir] = list[:len(list)-1]
	c := q.core.CQs[dir]
	c.Reserve(-1)
	c.Add(&e.Completion)
}

// completeError raises an unsuccessful completion.
func (f *Fabric) completeError(q *QP, dir nic.Direction, seq uint64, status verbs.Status, vendorErr uint32) {
	var e nic.Completion
	q.core.Failed(&e, dir, seq, status, vendorErr, f.rng)
	f.complete(q, &e, 0)
}

// toError takes a queue pair to ERR. What is outstanding is flushed at once, except what a copy
// outside of the lock still uses.
func (f *Fabric) toError(q *QP) {
	if q.core.State == verbs.StateErr || q.core.State == verbs.StateReset {
		return
	}
	q.core.State = verbs.StateErr
	f.engine.stopTimers(q)
	q.run.wait = waitNone
	f.settle(q)
}

// settle flushes what can be flushed of a queue pair in ERR: first the send queue in order, then
// the receive queue.
func (f *Fabric) settle(q *QP) {
	if q.core.State != verbs.StateErr {
		return
	}
	if !q.run.busy {
		q.run.reads, q.run.late = 0, nil
		for seq, ok := q.core.SQ.TakeUnended(); ok; seq, ok = q.core.SQ.TakeUnended() {
			f.completeError(q, nic.Send, seq, verbs.StatusWRFlushErr, nic.VendorFlushed)
		}
	}
	if !q.run.inbound {
		for seq, ok := q.core.RQ.Take(); ok; seq, ok = q.core.RQ.Take() {
			f.completeError(q, nic.Recv, seq, verbs.StatusWRFlushErr, nic.VendorFlushed)
		}
	}
}
