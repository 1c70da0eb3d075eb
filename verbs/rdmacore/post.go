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

// postBatch is the most requests that one call into C passes. As with pollBatch, the crossing is a
// small part of a full batch.
const postBatch = 64

// stage is the array in which requests of one direction are written for C to read. It is linked
// once, and each request has its own scatter list. The driver copies what it needs during the call.
type stage[T any, P request[T]] struct {
	wrs    []T
	sges   []ibvSGE // maxSGE for each request, at least one
	bad    *uintptr // C stores the request that it refused here
	post   crossing // the queue pair, the first request, bad
	maxSGE int

	doubtful bool // the driver called a request invalid: see qp.why
}

// request is a work request in C's layout.
type request[T any] interface {
	*T
	links() (next, sgList *uintptr)
}

func (w *ibvSendWR) links() (next, sgList *uintptr) { return &w.next, &w.sgList }
func (w *ibvRecvWR) links() (next, sgList *uintptr) { return &w.next, &w.sgList }

// stageSize returns the bytes that a stage of n requests takes.
func stageSize[T any](n, maxSGE int) int {
	return carved[T](n) + carved[ibvSGE](n*max(maxSGE, 1)) + carved[uintptr](1)
}

func (s *stage[T, P]) carve(m *mapping, n, maxSGE int, fn, qp uintptr) {
	s.maxSGE = maxSGE
	s.wrs, s.sges, s.bad = carve[T](m, n), carve[ibvSGE](m, n*max(maxSGE, 1)), &carve[uintptr](m, 1)[0]
	s.post = crossing{fn: fn, args: [3]uintptr{qp, address(&s.wrs[0]), address(s.bad)}}
	for i := range s.wrs {
		next, sgList := P(&s.wrs[i]).links()
		*sgList = address(&s.list(i)[0])
		if i+1 < n {
			*next = address(&s.wrs[i+1])
		}
	}
}

// list returns the scatter list of a request.
func (s *stage[T, P]) list(i int) []ibvSGE { return s.sges[i*max(s.maxSGE, 1):] }

// fill writes the scatter list of a request and returns its length.
func (s *stage[T, P]) fill(i int, sgl []verbs.SGE) int32 {
	list := s.list(i)
	for j := range sgl {
		list[j] = ibvSGE{addr: sgl[j].Addr, length: sgl[j].Length, lkey: sgl[j].LKey}
	}
	return int32(len(sgl))
}

// handOver calls C with the first n requests. It returns how many the driver accepted, and why it
// refused the next.
func (s *stage[T, P]) handOver(n int) (accepted int, errno syscall.Errno) {
	last, _ := P(&s.wrs[n-1]).links()
	next := *last
	*last, *s.bad = 0, 0
	errno = result(s.post.call())
	*last = next
	switch {
	case errno == 0 && *s.bad == 0:
		return n, 0
	case errno == 0:
		errno = syscall.ENOMEM // siw names the request, but returns no error
	}
	s.doubtful = errno == syscall.EINVAL
	return indexOf(s.wrs[:n], *s.bad), errno
}

// indexOf returns the index of the request that C refused; earlier ones were accepted. If a driver
// fails without naming one (librxe, when the kernel refuses to look at the queue), the queue pair
// is unusable, and none of them will complete.
func indexOf[T any](wrs []T, bad uintptr) int {
	if i := (bad - address(&wrs[0])) / uintptr(sizeOf[T]()); bad != 0 && i < uintptr(len(wrs)) {
		return int(i)
	}
	return 0
}
