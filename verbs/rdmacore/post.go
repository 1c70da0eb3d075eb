//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"math/bits"
	"syscall"

	"ibverbx/verbs"
)

// postBatch is how many requests one crossing into C hands over at most. The crossing costs some 150 ns, 2 ns of each then.
const postBatch = 64

const sendFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// sendStage is where send requests are written for C to read: an array that is linked once and for all, each with a scatter list and
// room for inline data of its own. The driver copies what it needs during the call.
type sendStage struct {
	wrs    []ibvSendWR
	sges   []ibvSGE  // maxSGE for each request
	inline []byte    // maxInline for each request
	bad    *uintptr  // where C says which request it refused
	args   []uintptr // of the call: the queue pair, the first request, bad

	maxSGE, maxInline int
	doubtful          bool // the driver called a request invalid: see why
}

func sendStageSize(n int, c *verbs.QPCap) int {
	return carved[ibvSendWR](n) + carved[ibvSGE](n*max(c.MaxSendSGE, 1)) + carved[byte](n*c.MaxInline) + carved[uintptr](1)
}

func (s *sendStage) carve(m *mapping, n int, c *verbs.QPCap, qp uintptr) {
	s.maxSGE, s.maxInline = c.MaxSendSGE, c.MaxInline
	s.wrs, s.sges = carve[ibvSendWR](m, n), carve[ibvSGE](m, n*max(c.MaxSendSGE, 1))
	s.inline, s.bad = carve[byte](m, n*c.MaxInline), &carve[uintptr](m, 1)[0]
	s.args = []uintptr{qp, address(&s.wrs[0]), address(s.bad)}
	for i := range s.wrs {
		s.wrs[i].sgList = address(&s.sges[i*max(s.maxSGE, 1)])
		if i+1 < n {
			s.wrs[i].next = address(&s.wrs[i+1])
		}
	}
}

// recvStage is the same for receives.
type recvStage struct {
	wrs    []ibvRecvWR
	sges   []ibvSGE
	bad    *uintptr
	args   []uintptr
	maxSGE int

	doubtful bool
}

func recvStageSize(n int, c *verbs.QPCap) int {
	return carved[ibvRecvWR](n) + carved[ibvSGE](n*max(c.MaxRecvSGE, 1)) + carved[uintptr](1)
}

func (s *recvStage) carve(m *mapping, n int, c *verbs.QPCap, qp uintptr) {
	s.maxSGE = c.MaxRecvSGE
	s.wrs, s.sges, s.bad = carve[ibvRecvWR](m, n), carve[ibvSGE](m, n*max(c.MaxRecvSGE, 1)), &carve[uintptr](m, 1)[0]
	s.args = []uintptr{qp, address(&s.wrs[0]), address(s.bad)}
	for i := range s.wrs {
		s.wrs[i].sgList = address(&s.sges[i*max(s.maxSGE, 1)])
		if i+1 < n {
			s.wrs[i].next = address(&s.wrs[i+1])
		}
	}
}

// PostSend hands requests to the send queue.
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

// postSend hands over as many as fit in the stage.
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
	last := &s.wrs[staged-1]
	next := last.next
	last.next, *s.bad = 0, 0
	errno := result(call(q.d.postSend, s.args...))
	last.next = next
	if errno == 0 && *s.bad == 0 {
		return staged, refused
	}
	n := indexOf(s.wrs[:staged], *s.bad)
	if errno == syscall.EINVAL && wrs[n].Opcode.IsAtomic() && !q.d.atomics {
		return n, q.err("post send", verbs.ErrNotSupported, "the NIC has no atomics")
	}
	s.doubtful = errno == syscall.EINVAL
	return n, q.postErr("post send", "ibv_post_send", errno, q.errSendFull)
}

// put writes a request for C.
func (s *sendStage) put(i int, wr *verbs.SendWR) {
	c := &s.wrs[i]
	c.wrID, c.opcode, c.sendFlags, c.immData = wr.ID, uint32(wr.Opcode), uint32(wr.Flags), bits.ReverseBytes32(wr.Imm)
	if wr.Opcode.IsAtomic() {
		c.setAtomic(wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.RKey)
	} else {
		c.setRDMA(wr.RemoteAddr, wr.RKey)
	}
	sges := s.sges[i*max(s.maxSGE, 1):]
	if wr.Flags&verbs.SendInline != 0 {
		// The payload is Go memory, which C must not see: it is copied twice, once here.
		c.numSGE = 0
		if len(wr.Inline) > 0 {
			room := s.inline[i*s.maxInline:]
			copy(room, wr.Inline)
			sges[0] = ibvSGE{addr: uint64(address(&room[0])), length: uint32(len(wr.Inline))}
			c.numSGE = 1
		}
		return
	}
	c.numSGE = int32(len(wr.SGL))
	for j := range wr.SGL {
		sges[j] = ibvSGE{addr: wr.SGL[j].Addr, length: wr.SGL[j].Length, lkey: wr.SGL[j].LKey}
	}
}

// maySend says why the queue pair takes no sends, if so. The states are checked here because not every driver does: librxe puts a
// request into its queue first and asks the kernel then.
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

// checkSend refuses what drivers refuse, each with an errno of its own or not at all.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	if wr.Opcode.Valid() && wr.Flags&^sendFlags == 0 {
		if wr.Flags&verbs.SendInline == 0 {
			if len(wr.SGL) <= q.sq.maxSGE {
				return nil
			}
		} else if len(wr.SGL) == 0 && len(wr.Inline) <= q.sq.maxInline && wr.Opcode != verbs.OpRDMARead && !wr.Opcode.IsAtomic() {
			return nil
		}
	}
	return q.refuseSend(wr)
}

// refuseSend says what is wrong with a request.
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

// PostRecv hands requests to the receive queue.
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

// why corrects the reason of a post that the driver called invalid: bnxt_re before rdma-core 50 takes none in ERR, which the NIC may have
// entered by itself. No lock is held.
func (q *qp) why(err error) error {
	q.lock()
	defer q.unlock()
	var c *callError
	if !q.sends.closed && q.current() == verbs.StateErr && errors.As(err, &c) {
		c.sentinel = verbs.ErrState
	}
	return err
}

// postRecv hands over as many as fit in the stage.
func (q *qp) postRecv(wrs []verbs.RecvWR) (int, error) {
	s := &q.rq
	staged := min(len(wrs), len(s.wrs))
	var refused error
	for i := range wrs[:staged] {
		if len(wrs[i].SGL) > s.maxSGE {
			refused = q.err("post recv", verbs.ErrInvalid, fmt.Sprintf("%d scatter-gather elements, the queue takes %d", len(wrs[i].SGL), s.maxSGE))
			staged = i
			break
		}
		s.put(i, &wrs[i])
	}
	if staged == 0 {
		return 0, refused
	}
	last := &s.wrs[staged-1]
	next := last.next
	last.next, *s.bad = 0, 0
	errno := result(call(q.d.postRecv, s.args...))
	last.next = next
	if errno == 0 && *s.bad == 0 {
		return staged, refused
	}
	s.doubtful = errno == syscall.EINVAL
	return indexOf(s.wrs[:staged], *s.bad), q.postErr("post recv", "ibv_post_recv", errno, q.errRecvFull)
}

func (s *recvStage) put(i int, wr *verbs.RecvWR) {
	c := &s.wrs[i]
	c.wrID, c.numSGE = wr.ID, int32(len(wr.SGL))
	sges := s.sges[i*max(s.maxSGE, 1):]
	for j := range wr.SGL {
		sges[j] = ibvSGE{addr: wr.SGL[j].Addr, length: wr.SGL[j].Length, lkey: wr.SGL[j].LKey}
	}
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

// indexOf is the place of the request that C refused; those before it were accepted. A driver that fails without naming one (librxe,
// when the kernel refuses to look at the queue) has a queue pair that carries nothing any more: none of them will complete.
func indexOf[T any](wrs []T, bad uintptr) int {
	if i := (bad - address(&wrs[0])) / uintptr(sizeOf[T]()); bad != 0 && i < uintptr(len(wrs)) {
		return int(i)
	}
	return 0
}

// postErr is the error of a refused post. ENOMEM is what drivers say of a full queue; siw names the request and then forgets to say why.
func (q *qp) postErr(op, call string, errno syscall.Errno, full error) error {
	if errno == syscall.ENOMEM || errno == 0 {
		return full
	}
	return q.d.callErr(op, q.num, call, errno, "")
}
