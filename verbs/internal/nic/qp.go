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

// PSNMask masks the 24 bits of a packet sequence number.
const PSNMask = 1<<24 - 1

// CheckModify returns the state that a Modify asks for, or why it is refused. Call it locked.
func (q *QP) CheckModify(attr *verbs.QPAttr, mask verbs.QPAttrMask) (verbs.QPState, error) {
	const op = "modify qp"
	if err := q.Usable(op); err != nil {
		return 0, err
	}
	if err := verbs.CheckModify(q.State, attr, mask); err != nil {
		return 0, q.Err(op, err, "")
	}
	if wrong := q.dev.checkAttr(attr, mask); wrong != "" {
		return 0, q.Err(op, verbs.ErrInvalid, wrong)
	}
	if mask&verbs.QPAttrState != 0 {
		return attr.State, nil
	}
	return q.State, nil
}

// checkAttr returns which value in attr is wrong; "" if none is.
func (d *Device) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) string {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case has(verbs.QPAttrPort) && attr.Port != 1:
		return fmt.Sprintf("port %d, there is only port 1", attr.Port)
	case has(verbs.QPAttrPKeyIndex) && attr.PKeyIndex != 0:
		return fmt.Sprintf("partition key index %d, there is only index 0", attr.PKeyIndex)
	case has(verbs.QPAttrAccess) && attr.Access&^verbs.AccessAll != 0:
		return fmt.Sprintf("access %v", attr.Access)
	case has(verbs.QPAttrPathMTU) && attr.PathMTU.Bytes() == 0:
		return fmt.Sprintf("path MTU code %d", attr.PathMTU)
	case has(verbs.QPAttrDestQPNum) && attr.DestQPNum > MaxQPNum:
		return fmt.Sprintf("destination queue pair %#x has more than 24 bits", attr.DestQPNum)
	case has(verbs.QPAttrRQPSN) && attr.RQPSN > PSNMask:
		return fmt.Sprintf("receive PSN %#x has more than 24 bits", attr.RQPSN)
	case has(verbs.QPAttrSQPSN) && attr.SQPSN > PSNMask:
		return fmt.Sprintf("send PSN %#x has more than 24 bits", attr.SQPSN)
	case has(verbs.QPAttrMaxRDAtomic) && int(attr.MaxRDAtomic) > d.Limits.MaxRDAtomic:
		return fmt.Sprintf("%d reads outstanding, the NIC allows %d", attr.MaxRDAtomic, d.Limits.MaxRDAtomic)
	case has(verbs.QPAttrMaxDestRDAtomic) && int(attr.MaxDestRDAtomic) > d.Limits.MaxRDAtomic:
		return fmt.Sprintf("%d reads of the peer outstanding, the NIC allows %d", attr.MaxDestRDAtomic,
			d.Limits.MaxRDAtomic)
	case has(verbs.QPAttrMinRNRTimer) && attr.MinRNRTimer > 31:
		return fmt.Sprintf("RNR timer code %d has more than 5 bits", attr.MinRNRTimer)
	case has(verbs.QPAttrTimeout) && attr.Timeout > 31:
		return fmt.Sprintf("timeout code %d has more than 5 bits", attr.Timeout)
	case has(verbs.QPAttrRetryCount) && attr.RetryCount > 7:
		return fmt.Sprintf("%d retries, at most 7", attr.RetryCount)
	case has(verbs.QPAttrRNRRetry) && attr.RNRRetry > 7:
		return fmt.Sprintf("%d RNR retries, at most 7", attr.RNRRetry)
	}
	if has(verbs.QPAttrAV) {
		switch ah := &attr.AH; {
		case !ah.Global:
			return "the address handle is not global; on Ethernet it has to name a GID"
		case ah.Port != 1:
			return fmt.Sprintf("port %d in the address handle, there is only port 1", ah.Port)
		case int(ah.SGIDIndex) >= d.GIDs:
			return fmt.Sprintf("source GID index %d, the table has %d entries", ah.SGIDIndex, d.GIDs)
		case ah.DGID.IsZero():
			return "the address handle has no destination GID"
		}
	}
	return ""
}

// Apply stores in a the attributes that mask names. The caller does the rest, such as finding the
// path to the peer for QPAttrAV.
func Apply(a, attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
	if has(verbs.QPAttrAccess) {
		a.Access = attr.Access
	}
	if has(verbs.QPAttrPKeyIndex) {
		a.PKeyIndex = attr.PKeyIndex
	}
	if has(verbs.QPAttrPort) {
		a.Port = attr.Port
	}
	if has(verbs.QPAttrAV) {
		a.AH = attr.AH
	}
	if has(verbs.QPAttrPathMTU) {
		a.PathMTU = attr.PathMTU
	}
	if has(verbs.QPAttrTimeout) {
		a.Timeout = attr.Timeout
	}
	if has(verbs.QPAttrRetryCount) {
		a.RetryCount = attr.RetryCount
	}
	if has(verbs.QPAttrRNRRetry) {
		a.RNRRetry = attr.RNRRetry
	}
	if has(verbs.QPAttrRQPSN) {
		a.RQPSN = attr.RQPSN
	}
	if has(verbs.QPAttrMaxRDAtomic) {
		a.MaxRDAtomic = attr.MaxRDAtomic
	}
	if has(verbs.QPAttrMinRNRTimer) {
		a.MinRNRTimer = attr.MinRNRTimer
	}
	if has(verbs.QPAttrSQPSN) {
		a.SQPSN = attr.SQPSN
	}
	if has(verbs.QPAttrMaxDestRDAtomic) {
		a.MaxDestRDAtomic = attr.MaxDestRDAtomic
	}
	if has(verbs.QPAttrDestQPNum) {
		a.DestQPNum = attr.DestQPNum
	}
}

const sendFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// MaySend returns why the queue pair accepts no sends; nil if it does.
func (q *QP) MaySend() error {
	if q.Closed || q.dev.Gone {
		return q.Usable("post send")
	}
	switch q.State {
	case verbs.StateRTS, verbs.StateSQD, verbs.StateErr:
		return nil
	}
	return q.Err("post send", verbs.ErrState, "the queue pair is in "+q.State.String())
}

// CheckSend refuses a request as the driver of a real NIC does. An error that only the NIC can find
// is reported in the completion. A request that passes has room: push it.
func (q *QP) CheckSend(wr *verbs.SendWR) error {
	const op = "post send"
	if q.SQ.full() {
		return q.errSendFull
	}
	if len(wr.SGL) > q.SQ.maxSGE {
		return q.Err(op, verbs.ErrInvalid, fmt.Sprintf("%d scatter-gather elements, the queue takes %d",
			len(wr.SGL), q.SQ.maxSGE))
	}
	if !wr.Opcode.Valid() {
		return q.Err(op, verbs.ErrInvalid, wr.Opcode.String())
	}
	if wr.Flags&^sendFlags != 0 {
		return q.Err(op, verbs.ErrInvalid, "flags "+wr.Flags.String())
	}
	if wr.Flags&verbs.SendInline != 0 {
		switch {
		case len(wr.SGL) != 0:
			return q.Err(op, verbs.ErrInvalid, "an inline send has no scatter-gather list")
		case len(wr.Inline) > q.SQ.maxInline:
			return q.Err(op, verbs.ErrInvalid, fmt.Sprintf("%d bytes inline, the queue takes %d",
				len(wr.Inline), q.SQ.maxInline))
		case wr.Opcode == verbs.OpRDMARead || wr.Opcode.IsAtomic():
			return q.Err(op, verbs.ErrInvalid, wr.Opcode.String()+" inline")
		}
	}
	return nil
}

// MayReceive returns why the queue pair accepts no receives; nil if it does.
func (q *QP) MayReceive() error {
	if q.Closed || q.dev.Gone {
		return q.Usable("post recv")
	}
	if q.State == verbs.StateReset {
		return q.Err("post recv", verbs.ErrState, "the queue pair is in "+q.State.String())
	}
	return nil
}

// CheckRecv is CheckSend for a receive.
func (q *QP) CheckRecv(wr *verbs.RecvWR) error {
	if q.RQ.full() {
		return q.errRecvFull
	}
	if len(wr.SGL) > q.RQ.maxSGE {
		return q.Err("post recv", verbs.ErrInvalid,
			fmt.Sprintf("%d scatter-gather elements, the queue takes %d", len(wr.SGL), q.RQ.maxSGE))
	}
	return nil
}
