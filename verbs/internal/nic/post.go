package nic

import (
	"fmt"

	"ibverbx/verbs"
)

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
