package soft

import (
	"fmt"

	"ibverbx/verbs"
)

const sendFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// PostSend adds requests to the send queue. In the background mode small ones may have been
// executed when it returns.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.maySend()
	if err == nil {
		for n < len(wrs) {
			if err = q.checkSend(&wrs[n]); err != nil {
				break
			}
			q.sq.push(&wrs[n])
			n++
		}
		if n > 0 {
			if q.state == verbs.StateErr {
				f.settle(q)
			} else {
				f.engine.posted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}

// maySend returns why the queue pair accepts no sends; nil where it does.
func (q *QP) maySend() error {
	if q.closed || q.dev.gone {
		return q.usable("post send")
	}
	switch q.state {
	case verbs.StateRTS, verbs.StateSQD, verbs.StateErr:
		return nil
	}
	return q.err("post send", verbs.ErrState, "the queue pair is in "+q.state.String())
}

// checkSend refuses what the driver of a real NIC refuses. What only the NIC finds out ends in the
// completion.
func (q *QP) checkSend(wr *verbs.SendWR) error {
	const op = "post send"
	if q.sq.full() {
		return q.errSendFull
	}
	if len(wr.SGL) > q.sq.maxSGE {
		return q.err(op, verbs.ErrInvalid, fmt.Sprintf("%d scatter-gather elements, the queue takes %d",
			len(wr.SGL), q.sq.maxSGE))
	}
	if !wr.Opcode.Valid() {
		return q.err(op, verbs.ErrInvalid, wr.Opcode.String())
	}
	if wr.Flags&^sendFlags != 0 {
		return q.err(op, verbs.ErrInvalid, "flags "+wr.Flags.String())
	}
	if wr.Flags&verbs.SendInline != 0 {
		switch {
		case len(wr.SGL) != 0:
			return q.err(op, verbs.ErrInvalid, "an inline send has no scatter-gather list")
		case len(wr.Inline) > q.sq.maxInline:
			return q.err(op, verbs.ErrInvalid, fmt.Sprintf("%d bytes inline, the queue takes %d",
				len(wr.Inline), q.sq.maxInline))
		case wr.Opcode == verbs.OpRDMARead || wr.Opcode.IsAtomic():
			return q.err(op, verbs.ErrInvalid, wr.Opcode.String()+" inline")
		}
	}
	if len(q.f.injections) != 0 {
		return q.f.refuse(q, wr)
	}
	return nil
}

// PostRecv adds receives to the receive queue.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	f := q.f
	f.mu.Lock()
	n, err := 0, q.mayReceive()
	if err == nil {
		for n < len(wrs) {
			if err = q.checkRecv(&wrs[n]); err != nil {
				break
			}
			q.rq.push(&wrs[n])
			n++
		}
		if n > 0 {
			if q.state == verbs.StateErr {
				f.settle(q)
			} else {
				f.receivesPosted(q)
			}
		}
	}
	f.mu.Unlock()
	return n, err
}

func (q *QP) mayReceive() error {
	if q.closed || q.dev.gone {
		return q.usable("post recv")
	}
	if q.state == verbs.StateReset {
		return q.err("post recv", verbs.ErrState, "the queue pair is in "+q.state.String())
	}
	return nil
}

func (q *QP) checkRecv(wr *verbs.RecvWR) error {
	if q.rq.full() {
		return q.errRecvFull
	}
	if len(wr.SGL) > q.rq.maxSGE {
		return q.err("post recv", verbs.ErrInvalid,
			fmt.Sprintf("%d scatter-gather elements, the queue takes %d", len(wr.SGL), q.rq.maxSGE))
	}
	if len(q.f.injections) != 0 {
		return q.f.refuseRecv(q)
	}
	return nil
}
