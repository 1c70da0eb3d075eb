package soft

import (
	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// CQ is a completion queue. It is a verbs.CQ.
type CQ struct {
	_    guard.NoCopy
	dev  *Device
	core nic.CQ
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	c := &CQ{dev: d}
	if err := c.core.Init(&d.core, c, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// Device returns the NIC that the queue belongs to.
func (c *CQ) Device() verbs.Device { return c.dev }

// Depth returns CQConfig.Depth, or its default.
func (c *CQ) Depth() int { return c.core.Depth() }

// Channel returns the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.core.Channel() }

// Poll moves completions into wcs. If it finds nothing, and the NIC's worker has not executed
// everything that was posted, it executes some of it itself (at most 4 MiB), which avoids a
// goroutine switch.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	if !c.core.Attention() {
		f := c.dev.f
		if f.stepped || !f.engine.(*background).hasWork(&c.dev.worker) || !f.help(c) {
			return 0, nil
		}
	}
	return c.core.Poll(wcs)
}

// Arm asks for one event. Arming for any completion takes precedence over arming for solicited
// ones.
func (c *CQ) Arm(solicitedOnly bool) error { return c.core.Arm(solicitedOnly) }

// Close destroys the queue.
func (c *CQ) Close() error { return c.core.Close() }

// overrun ends a completion queue of d: it loses this completion and all later ones, and its queue
// pairs fail.
func (d *Device) overrun(c *nic.CQ) {
	c.Overrun()
	for _, q := range d.qps.All {
		if q.core.Uses(c) {
			d.f.failWithEvent(q, verbs.EventQPFatal)
		}
	}
}

// acknowledge ends the oldest executed request of q; there must be one. It lands the data of a read
// or atomic and raises the request's completion, if it has one. An error takes the queue pair to
// ERR.
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
	if e := f.addCompletion(q, nic.Send, seq, false, 0); e != nil {
		q.core.Sent(e, seq, s)
	}
}

// addCompletion adds an entry for the completion of request seq of q to its queue, hidden until it
// is due. The caller fills it in. It returns nil if the completion is lost.
func (f *Fabric) addCompletion(q *QP, dir nic.Direction, seq uint64, solicited bool,
	due int64) *nic.Completion {
	c := q.core.CQs[dir]
	if c.Dead() {
		return nil
	}
	if c.Full() || dir == nic.Send && len(f.injections) != 0 && f.strikeCompletion(q, seq) {
		q.dev.overrun(c)
		return nil
	}
	if f.engine.hide(q, dir, due) {
		q.hidden[dir] = append(q.hidden[dir], hidden{due: due})
		c.Reserve(1)
		return &q.hidden[dir][len(q.hidden[dir])-1].Completion
	}
	return c.Next(solicited)
}

// reveal makes hidden completion i of a queue visible.
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
	if at := f.addCompletion(q, dir, seq, true, 0); at != nil {
		*at = e
	}
}

// toError moves a queue pair to ERR. Everything outstanding is flushed at once, except a request
// whose payload is being copied outside the lock.
func (f *Fabric) toError(q *QP) {
	if q.core.State == verbs.StateErr || q.core.State == verbs.StateReset {
		return
	}
	q.core.State = verbs.StateErr
	f.engine.stopTimers(q)
	q.run.wait = waitNone
	f.placeAll(q)
	q.late.stragglers = nil
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

// receive consumes a receive of p for a message of q that has arrived, and raises its completion.
func (f *Fabric) receive(q, p *QP, s *nic.SendSlot) {
	if len(f.injections) != 0 {
		if i := f.strikeReceive(q, p); i != nil {
			// The requester learns that the peer could not complete the request.
			s.Status = verbs.StatusRemOpErr
			q.run.failed = true
			f.consumeFailed(p, i.fault.Status, i.fault.VendorErr)
			return
		}
	}
	f.consume(p, &nic.Message{Opcode: s.Opcode, Length: s.Length, Imm: s.Imm, SrcQP: q.core.Num,
		Solicited: s.Flags&verbs.SendSolicited != 0}, q.run.xfer.arrive)
}

// consume completes the next receive of p with a message that arrives at the time due.
func (f *Fabric) consume(p *QP, m *nic.Message, due int64) {
	seq, _ := p.core.RQ.Take()
	if e := f.addCompletion(p, nic.Recv, seq, m.Solicited, due); e != nil {
		p.core.Received(e, seq, m)
	}
}

// consumeFailed ends the next receive of p with an error, and takes p to ERR.
func (f *Fabric) consumeFailed(p *QP, status verbs.Status, vendorErr uint32) {
	seq, _ := p.core.RQ.Take()
	f.completeError(p, nic.Recv, seq, status, vendorErr)
	f.toError(p)
}
