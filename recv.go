package ibverbx

import (
	"fmt"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// recvReq is a live receive.
type recvReq struct {
	id        uint64
	bytes     uint64 // what arrived
	status    verbs.Status
	opcode    verbs.WCOpcode
	imm       uint32
	vendorErr uint32
	hasImm    bool
	message   bool // has memory: takes a SEND, not a notification
	done      bool
	pieces    []Segment // kept by the slot
}

// recvSide is the receive direction of a multi-QP virtual queue pair.
//
// Invariant: head <= nextMessage, nextNote <= tail of the window. Of the receives with memory those
// before nextMessage were posted on the rail that carries SENDs. Of those without, the ones before
// nextNote were posted on the notify rail (Spray) or have been given their notification (DQPLB).
// Nothing is banked while a receive without memory waits.
type recvSide struct {
	win                   ring.Window[recvReq]
	nextMessage, nextNote uint64
	bank                  ring.FIFO[notification]
	torn                  bool        // a receive was reported with an error: all later ones are flushed
	sges                  []verbs.SGE // backing of the receives in scratch
}

// notification is what DQPLB tells a receive: that a request has arrived, how long it was, the
// user's immediate.
type notification struct {
	bytes  uint64
	imm    uint32
	hasImm bool
}

func newRecvSide() recvSide {
	return recvSide{win: ring.NewWindow[recvReq](), nextMessage: 1, nextNote: 1}
}

// PostRecv hands receives to the virtual queue pair, in order, and says how many it accepted. When
// n is less than len(wrs) the error, a [*PostError], says why wrs[n] was refused; it and those
// behind it had no effect. What a receive with and without memory takes is told at [RecvWR]. The
// memory belongs to the NICs until the completion is reported.
//
// Receives beyond what the physical queues hold are queued here. A DQPLB notification that came
// before its receive was posted completes that receive at once.
//
// Errors: [ErrClosed], [ErrFailed], [ErrDraining], [ErrNotConnected], [ErrOpcode] (a receive with
// memory where no queue pair carries SEND), [ErrNoKey], [ErrBounds], [verbs.ErrInvalid]; of a
// single-QP virtual queue pair also [verbs.ErrQueueFull].
func (q *VirtualQP) PostRecv(wrs ...RecvWR) (n int, err error) {
	q.cq.guard.enter()
	if q.single {
		n, err = q.passRecvs(wrs)
	} else {
		n, err = q.postRecvs(wrs)
	}
	q.cq.guard.exit()
	return n, err
}

func (q *VirtualQP) postRecvs(wrs []RecvWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := q.canRecv(); err != nil {
		return 0, q.stateError("post recv", wrs[0].ID, err)
	}
	for n < len(wrs) {
		if q.recv.win.Len() > maxOutstanding {
			err = recvError(n, &wrs[n], verbs.ErrQueueFull, "2^27 receives are outstanding: poll completions")
			break
		}
		if err = q.enqueueRecv(n, &wrs[n]); err != nil {
			break
		}
		n++
	}
	q.dispatchRecvs()
	return n, err
}

// canRecv says why no receive can be accepted, if so.
func (q *VirtualQP) canRecv() error {
	switch {
	case q.closed:
		return ErrClosed
	case q.failure != nil:
		return ErrFailed
	case q.phase != drainNone:
		return ErrDraining
	case q.state == verbs.StateReset:
		return ErrNotConnected
	}
	return nil
}

// enqueueRecv checks a receive and gives it its slot.
func (q *VirtualQP) enqueueRecv(i int, wr *RecvWR) error {
	if len(wr.SGL) != 0 && wr.Local != (Segment{}) {
		return recvError(i, wr, verbs.ErrInvalid, "both Local and SGL are set: use one")
	}
	pieces := wr.SGL
	if len(pieces) == 0 && wr.Local.Length != 0 {
		pieces = []Segment{wr.Local}
	}
	message := false
	for _, s := range pieces {
		message = message || s.Length != 0
	}
	if message {
		if err := q.checkRecv(i, wr, pieces); err != nil {
			return err
		}
		if bad := holdPieces(pieces); bad >= 0 {
			return recvError(i, wr, ErrClosed, "memory region "+pieces[bad].String()+" is closed")
		}
	}
	// Field by field: a composite would copy the struct, with write barriers.
	r := q.recv.win.Push()
	r.id, r.bytes, r.status, r.imm, r.vendorErr = wr.ID, 0, verbs.StatusSuccess, 0, 0
	r.hasImm, r.message, r.done = false, message, false
	r.opcode = verbs.WCRecvRDMAWithImm
	if message {
		r.opcode = verbs.WCRecv
		r.pieces = append(r.pieces[:0], pieces...)
	}
	q.counters.recvs++
	return nil
}

func (q *VirtualQP) checkRecv(i int, wr *RecvWR, pieces []Segment) error {
	if q.sendOn == nil {
		return recvError(i, wr, ErrOpcode, "a receive with memory takes a SEND, which in dqplb travels on "+
			"the notify QP, and there is none: add one")
	}
	if limit := q.sendOn.qp.Cap().MaxRecvSGE; len(pieces) > limit {
		return recvError(i, wr, verbs.ErrInvalid, fmt.Sprintf("%d pieces: the queue pair takes %d",
			len(pieces), limit))
	}
	for _, s := range pieces {
		if s.Length == 0 {
			continue
		}
		if s.Length > maxMessage {
			return recvError(i, wr, ErrLength, fmt.Sprintf("a piece of %d bytes: a message carries at most "+
				"2 GiB", s.Length))
		}
		if detail, err := checkLocal(s, 1<<q.sendOn.device); err != nil {
			return recvError(i, wr, err, detail)
		}
	}
	return nil
}

func recvError(i int, wr *RecvWR, err error, detail string) error {
	return &PostError{Op: "post recv", Index: i, ID: wr.ID, Err: err, Detail: detail}
}

// dispatchRecvs posts receives as far as the queues have room, and gives banked notifications to
// those that wait for one.
func (q *VirtualQP) dispatchRecvs() {
	if q.killed || q.phase >= drainRecvs {
		return
	}
	s := &q.recv
	if s.nextMessage != s.win.Tail {
		q.postReceives(q.sendOn, true, &s.nextMessage)
	}
	if s.nextNote == s.win.Tail {
		return
	}
	if q.cfg.Scheme == Spray {
		q.postReceives(q.noteOn, false, &s.nextNote)
		return
	}
	for s.bank.Len() != 0 {
		r := q.nextNotified()
		if r == nil {
			return
		}
		r.deliver(s.bank.Pop())
		q.cq.touch(q)
	}
}

// nextNotified returns the oldest receive that waits for a notification and moves past it; nil when
// none does.
func (q *VirtualQP) nextNotified() *recvReq {
	s := &q.recv
	for s.nextNote != s.win.Tail {
		r := s.win.At(s.nextNote)
		s.nextNote++
		if !r.message {
			return r
		}
	}
	return nil
}

func (r *recvReq) deliver(n notification) {
	r.done = true
	r.bytes, r.imm, r.hasImm = n.bytes, n.imm, n.hasImm
}

// postReceives posts the receives of one kind on a rail, from *next on, which it moves.
func (q *VirtualQP) postReceives(rl *rail, message bool, next *uint64) {
	if rl == nil {
		*next = q.recv.win.Tail // no receive of this kind was let in
		return
	}
	if rl.shut {
		return
	}
	for *next != q.recv.win.Tail {
		batch, stop := q.gatherReceives(rl, message, *next)
		if len(batch) == 0 {
			*next = stop
			return
		}
		accepted, err := rl.qp.PostRecv(batch)
		rl.recvs += accepted
		if err != nil {
			// The cursor first: what the NIC has accepted is the NIC's, whatever the refusal leads
			// to.
			*next, _ = q.recv.win.Resolve(wridNumber(batch[accepted].ID), wridNumberMask)
			q.recvRefused(rl, err, describeRecv(q.recv.win.At(*next)))
			return
		}
		*next = stop
	}
}

// gatherReceives fills the scratch batch with receives of one kind from request n on, as the rail
// has room.
func (q *VirtualQP) gatherReceives(rl *rail, message bool, n uint64) (batch []verbs.RecvWR, stop uint64) {
	width := rl.qp.Cap().MaxRecvSGE
	if message && len(q.recv.sges) == 0 {
		q.recv.sges = make([]verbs.SGE, len(q.scratch)*width)
	}
	count := 0
	for ; n != q.recv.win.Tail; n++ {
		r := q.recv.win.At(n)
		if r.message != message {
			continue
		}
		if count == len(q.scratch) || rl.recvs+count >= rl.recvLimit {
			break
		}
		wr := &q.scratch[count]
		wr.ID, wr.SGL = wrid(kindRecv, rl.idBits, 0, n), nil
		if message {
			wr.SGL = appendSGL(q.recv.sges[count*width:count*width:(count+1)*width], r.pieces, rl.device)
		}
		count++
	}
	return q.scratch[:count], n
}

// recvRefused takes in that a rail refused a receive; f says which.
func (q *VirtualQP) recvRefused(rl *rail, err error, f *FailedError) {
	rl.stats.refused++
	q.cq.touch(q)
	if verbs.IsTransient(err) {
		q.blocked = true
		return
	}
	if q.failure != nil {
		// The rail that has failed refuses what follows. That is no reason to flush requests that
		// may still end well on the others.
		rl.shut = true
		return
	}
	f.Err = err
	q.recvFailed(rl, f)
}

// recvCompleted takes in the completion of a receive of the user.
func (q *VirtualQP) recvCompleted(rl *rail, wc *verbs.WC) {
	n, ok := q.recv.win.Resolve(wridNumber(wc.ID), wridNumberMask)
	if !ok {
		q.counters.stale++
		return
	}
	r := q.recv.win.At(n)
	if r.done {
		q.counters.stale++
		return
	}
	rl.recvs--
	r.done = true
	if wc.Status != verbs.StatusSuccess {
		r.status, r.vendorErr = wc.Status, wc.VendorErr
		q.recvError(rl, wc, describeRecv(r))
		return
	}
	if wc.Opcode != r.opcode {
		r.status = verbs.StatusLocQPOpErr
		q.protocolError(rl, fmt.Sprintf("%v where a receive waits for %v", wc.Opcode, r.opcode))
		return
	}
	r.bytes = uint64(wc.ByteLen)
	r.imm, r.hasImm = wc.Imm, wc.Flags&verbs.WCWithImm != 0
}

// progressRecvs carries on after completions were taken in.
func (q *VirtualQP) progressRecvs(out *sink) {
	q.dispatchRecvs()
	q.postCredits(creditBatch)
	s := &q.recv
	for s.win.Head != s.win.Tail {
		r := s.win.At(s.win.Head)
		if !r.done {
			break
		}
		if r.status != verbs.StatusSuccess && q.suspect != nil && q.failure == nil && !q.killed {
			break // whoever sees it asks Err, which does not know yet
		}
		if s.torn {
			// One before it failed: on one connection nothing arrives after that.
			r.status, r.vendorErr, r.bytes, r.hasImm = verbs.StatusWRFlushErr, 0, 0, false
		}
		s.torn = r.status != verbs.StatusSuccess
		wc := q.cq.slot(out)
		*wc = WC{
			ID:        r.id,
			Status:    r.status,
			Opcode:    r.opcode,
			VendorErr: r.vendorErr,
			QPNum:     q.num,
			ByteLen:   r.bytes,
		}
		if r.hasImm {
			wc.Imm, wc.Flags = r.imm, verbs.WCWithImm
		}
		if r.message {
			unholdPieces(r.pieces)
		}
		s.win.Head++
		q.counters.recvsDone++
	}
	// Receives of the other kind may have been passed by.
	s.nextMessage, s.nextNote = max(s.nextMessage, s.win.Head), max(s.nextNote, s.win.Head)
}

// flushWaiting ends the receives that are not on a NIC, as flushed; those that are end by their
// completions.
func (s *recvSide) flushWaiting() {
	for n := s.win.Head; n != s.win.Tail; n++ {
		r := s.win.At(n)
		waits := n >= s.nextNote
		if r.message {
			waits = n >= s.nextMessage
		}
		if waits && !r.done {
			r.done, r.status = true, verbs.StatusWRFlushErr
		}
	}
	s.nextMessage, s.nextNote = s.win.Tail, s.win.Tail
}

// abandon ends every receive, as flushed.
func (s *recvSide) abandon() {
	s.nextMessage, s.nextNote = s.win.Head, s.win.Head
	s.flushWaiting()
}
