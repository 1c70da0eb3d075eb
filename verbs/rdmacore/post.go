//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"math/bits"
	"syscall"

	"ibverbx/verbs"
)

const sendFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// sendStage adds room for inline data.
type sendStage struct {
	stage[ibvSendWR, *ibvSendWR]
	inline    []byte // maxInline bytes for each request
	maxInline int
}

func sendStageSize(n int, c *verbs.QPCap) int {
	return stageSize[ibvSendWR](n, c.MaxSendSGE) + carved[byte](n*c.MaxInline)
}

func (s *sendStage) carve(m *mapping, n int, c *verbs.QPCap, fn, qp uintptr) {
	s.stage.carve(m, n, c.MaxSendSGE, fn, qp)
	s.inline, s.maxInline = carve[byte](m, n*c.MaxInline), c.MaxInline
}

// recvStage is a stage without inline data.
type recvStage struct {
	stage[ibvRecvWR, *ibvRecvWR]
}

// PostSend adds requests to the send queue.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	q.sends.Lock()
	if err = q.maySend(); err == nil {
		for n < len(wrs) && err == nil {
			var accepted int
			accepted, err = q.postSend(wrs[n:])
			n += accepted
		}
	}
	doubtful := q.sq.doubtful
	q.sq.doubtful = false
	q.sends.Unlock()
	if doubtful {
		err = q.why(err)
	}
	return n, err
}

// postSend posts as many requests as fit in the stage.
func (q *qp) postSend(wrs []verbs.SendWR) (int, error) {
	s := &q.sq
	staged := min(len(wrs), len(s.wrs))
	var refused error
	for i := range wrs[:staged] {
		if refused = q.checkSend(&wrs[i]); refused != nil {
			staged = i
			break
		}
		s.put(i, &wrs[i])
	}
	if staged == 0 {
		return 0, refused
	}
	n, errno := s.handOver(staged)
	switch {
	case errno == 0:
		return n, refused
	case errno == syscall.EINVAL && wrs[n].Opcode.IsAtomic() && !q.d.atomics:
		return n, q.err("post send", verbs.ErrNotSupported, "the NIC has no atomics")
	}
	return n, q.postErr("post send", "ibv_post_send", errno, q.errSendFull)
}

// put writes a request for C.
func (s *sendStage) put(i int, wr *verbs.SendWR) {
	c := &s.wrs[i]
	c.wrID, c.opcode, c.sendFlags, c.immData = wr.ID, uint32(wr.Opcode), uint32(wr.Flags),
		bits.ReverseBytes32(wr.Imm)
	if wr.Opcode.IsAtomic() {
		c.setAtomic(wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.RKey)
	} else {
		c.setRDMA(wr.RemoteAddr, wr.RKey)
	}
	if wr.Flags&verbs.SendInline != 0 {
		// The payload is Go memory, which C must not see: it is copied twice, once here.
		c.numSGE = 0
		if len(wr.Inline) > 0 {
			room := s.inline[i*s.maxInline:]
			copy(room, wr.Inline)
			s.list(i)[0] = ibvSGE{addr: uint64(address(&room[0])), length: uint32(len(wr.Inline))}
			c.numSGE = 1
		}
		return
	}
	c.numSGE = s.fill(i, wr.SGL)
}

// maySend returns why the queue pair accepts no sends; nil if it does. It checks the state because
// not every driver does: librxe queues a request before it asks the kernel.
func (q *qp) maySend() error {
	const op = "post send"
	if q.sends.closed {
		return q.err(op, verbs.ErrClosed, "")
	}
	switch state := verbs.QPState(q.state.Load()); state {
	case verbs.StateRTS, verbs.StateSQD, verbs.StateErr:
	default:
		return q.err(op, verbs.ErrState, "the queue pair is in "+state.String())
	}
	if q.d.gone.Load() {
		return q.err(op, verbs.ErrDeviceGone, "")
	}
	return nil
}

// checkSend refuses what the driver should: some drivers do so with different errnos, others not at
// all.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	if wr.Opcode.Valid() && wr.Flags&^sendFlags == 0 {
		if wr.Flags&verbs.SendInline == 0 {
			if len(wr.SGL) <= q.sq.maxSGE {
				return nil
			}
		} else if len(wr.SGL) == 0 && len(wr.Inline) <= q.sq.maxInline && wr.Opcode != verbs.OpRDMARead &&
			!wr.Opcode.IsAtomic() {
			return nil
		}
	}
	return q.refuseSend(wr)
}

// refuseSend returns the error of a request that must not reach the driver.
func (q *qp) refuseSend(wr *verbs.SendWR) error {
	var detail string
	switch {
	case !wr.Opcode.Valid():
		detail = wr.Opcode.String()
	case wr.Flags&^sendFlags != 0:
		detail = "flags " + wr.Flags.String()
	case wr.Flags&verbs.SendInline == 0:
		detail = fmt.Sprintf("%d scatter-gather elements, the queue takes %d", len(wr.SGL), q.sq.maxSGE)
	case len(wr.SGL) != 0:
		detail = "an inline send has no scatter-gather list"
	case len(wr.Inline) > q.sq.maxInline:
		detail = fmt.Sprintf("%d bytes inline, the queue takes %d", len(wr.Inline), q.sq.maxInline)
	default:
		detail = wr.Opcode.String() + " inline"
	}
	return q.err("post send", verbs.ErrInvalid, detail)
}

// PostRecv adds requests to the receive queue.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	q.recvs.Lock()
	if err = q.mayReceive(); err == nil {
		for n < len(wrs) && err == nil {
			var accepted int
			accepted, err = q.postRecv(wrs[n:])
			n += accepted
		}
	}
	failed := n > 0 && verbs.QPState(q.state.Load()) == verbs.StateErr
	doubtful := q.rq.doubtful
	q.rq.doubtful = false
	q.recvs.Unlock()
	if failed {
		q.lock()
		if !q.sends.closed {
			q.flushReceives()
		}
		q.unlock()
	}
	if doubtful {
		err = q.why(err)
	}
	return n, err
}

// why corrects the error of a post that the driver called invalid: bnxt_re before rdma-core 50
// accepts no post in ERR, a state that the NIC may have entered by itself. No lock is held.
func (q *qp) why(err error) error {
	q.lock()
	defer q.unlock()
	var c *callError
	if !q.sends.closed && q.current() == verbs.StateErr && errors.As(err, &c) {
		c.sentinel = verbs.ErrState
	}
	return err
}

// postRecv posts as many receives as fit in the stage.
func (q *qp) postRecv(wrs []verbs.RecvWR) (int, error) {
	s := &q.rq
	staged := min(len(wrs), len(s.wrs))
	var refused error
	for i := range wrs[:staged] {
		if len(wrs[i].SGL) > s.maxSGE {
			refused = q.err("post recv", verbs.ErrInvalid,
				fmt.Sprintf("%d scatter-gather elements, the queue takes %d", len(wrs[i].SGL), s.maxSGE))
			staged = i
			break
		}
		s.put(i, &wrs[i])
	}
	if staged == 0 {
		return 0, refused
	}
	n, errno := s.handOver(staged)
	if errno == 0 {
		return n, refused
	}
	return n, q.postErr("post recv", "ibv_post_recv", errno, q.errRecvFull)
}

func (s *recvStage) put(i int, wr *verbs.RecvWR) {
	c := &s.wrs[i]
	c.wrID, c.numSGE = wr.ID, s.fill(i, wr.SGL)
}

func (q *qp) mayReceive() error {
	const op = "post recv"
	switch {
	case q.recvs.closed:
		return q.err(op, verbs.ErrClosed, "")
	case verbs.QPState(q.state.Load()) == verbs.StateReset:
		return q.err(op, verbs.ErrState, "the queue pair is in RESET")
	case q.d.gone.Load():
		return q.err(op, verbs.ErrDeviceGone, "")
	}
	return nil
}

// postErr returns the error of a refused post. Drivers report a full queue as ENOMEM.
func (q *qp) postErr(op, call string, errno syscall.Errno, full error) error {
	if errno == syscall.ENOMEM {
		return full
	}
	return q.d.callErr(op, q.num, call, errno, "")
}
