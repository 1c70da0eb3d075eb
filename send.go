package ibverbx

import (
	"ibverbx/verbs"
)

// sendReq is a live request of the send direction. Its fields are valid from PostSend until it is
// reported.
//
// Invariant: left counts the data work requests that are staged or on the NIC; dispatched means no
// more will follow; offset <= length is what was handed to the rails.
type sendReq struct {
	id         uint64
	length     uint64
	offset     uint64
	localAddr  uint64
	remoteAddr uint64
	localKeys  *Keys
	remoteKeys *Keys
	ext        *sendExt // what few requests have; kept by the slot
	left       uint32
	fragments  uint32 // handed to the rails so far
	imm        uint32
	firstNum   uint32 // DQPLB: number of the first message
	vendorErr  uint32
	opcode     verbs.Opcode
	status     verbs.Status
	dispatched bool
	plan       plan
	note       noteState
	fence      bool
	solicited  bool
	scattered  bool  // ext.pieces holds the memory
	inline     bool  // ext.inline holds the payload
	markers    uint8 // DQPLB: handed to the rails so far, at most one on each
	owesImm    bool  // DQPLB: the user's immediate must follow,
	immRail    uint8 // on this rail
}

// sendExt holds what few requests need: copies that outlive the post, and operands.
type sendExt struct {
	pieces     []Segment
	piece      int    // where fragmentation stands: index,
	pieceOff   uint64 // and offset in it
	markersAt  uint32 // DQPLB: fragments ahead of the markers
	inline     []byte
	compareAdd uint64
	swap       uint64
}

// plan is how a request's data goes out.
type plan uint8

const (
	planFragments plan = iota // plain fragments over all data rails
	planNumbered              // DQPLB: every fragment carries a number
	planAtomic                // one work request on the first data rail
	planEvery                 // one plain fragment on each data rail
	planMessage               // one message on the rail of SENDs, as data: a relaxed SEND
	planNone                  // no data: the last step is all there is (SEND)
)

// noteState is where a request's last step stands: Spray's notification, or a SEND, which waits
// likewise until all earlier data has been acknowledged.
type noteState uint8

const (
	noteNone noteState = iota
	noteDue
	notePosted
	noteDone
)

// complete reports whether nothing of the request is outstanding or still to come.
func (r *sendReq) complete() bool {
	return r.dispatched && r.left == 0 && (r.note == noteNone || r.note == noteDone)
}

// dataComplete reports whether the request's data is acknowledged.
func (r *sendReq) dataComplete() bool { return r.dispatched && r.left == 0 }

// PostSend hands requests to the virtual queue pair, in order, and says how many it accepted. When
// n is less than len(wrs) the error, a [*PostError], says why wrs[n] was refused; it and those
// behind it had no effect.
//
// The memory that a request names belongs to the NICs until its completion is reported. The slices
// SGL and Inline, and wrs itself, are the caller's again when PostSend returns.
//
// Requests beyond what the physical queues hold are queued here, without limit but memory. A
// single-QP virtual queue pair queues nothing: it refuses with [verbs.ErrQueueFull].
//
// Errors: [ErrClosed], [ErrFailed], [ErrDraining], [ErrNotConnected], [ErrOpcode], [ErrUnsignaled],
// [ErrLength], [ErrNoKey], [ErrBounds], [ErrAlignment], [verbs.ErrInvalid].
func (q *VirtualQP) PostSend(wrs ...SendWR) (n int, err error) {
	q.cq.guard.enter()
	if q.single {
		n, err = q.passSends(wrs)
	} else {
		n, err = q.postSends(wrs)
	}
	q.cq.guard.exit()
	return n, err
}

func (q *VirtualQP) postSends(wrs []SendWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := q.canSend(); err != nil {
		return 0, q.stateError("post send", wrs[0].ID, err)
	}
	held := holder{}
	for n < len(wrs) {
		if q.send.Len() > maxOutstanding {
			err = q.sendError(n, &wrs[n], verbs.ErrQueueFull,
				"2^27 requests are outstanding: poll completions")
			break
		}
		wr := &wrs[n]
		if err = q.checkSend(n, wr); err != nil {
			break
		}
		if err = q.holdSend(&held, n, wr); err != nil {
			break
		}
		q.enqueue(wr)
		n++
	}
	held.settle()
	q.dispatch()
	return n, err
}

// canSend says why no request can be accepted, if so.
func (q *VirtualQP) canSend() error {
	switch {
	case q.closed:
		return ErrClosed
	case q.failure != nil:
		return ErrFailed
	case q.phase != drainNone:
		return ErrDraining
	case q.state != verbs.StateRTS:
		return ErrNotConnected
	}
	return nil
}

// enqueue gives a checked request its number and its slot.
func (q *VirtualQP) enqueue(wr *SendWR) {
	r := q.send.Push()
	q.counters.sends++
	r.id = wr.ID
	r.offset = 0
	r.left = 0
	r.fragments = 0
	r.vendorErr = 0
	r.imm = wr.Imm
	r.opcode = wr.Opcode
	r.status = verbs.StatusSuccess
	r.dispatched = false
	r.markers = 0
	r.owesImm = false
	r.note = noteNone
	r.fence = wr.Flags&verbs.SendFence != 0
	r.solicited = wr.Flags&verbs.SendSolicited != 0
	r.remoteAddr = wr.Remote.Addr
	r.remoteKeys = wr.Remote.Keys
	r.scattered = len(wr.SGL) != 0
	r.inline = wr.Flags&verbs.SendInline != 0
	r.localAddr = wr.Local.Addr
	r.localKeys = wr.Local.Keys
	r.length = wr.Local.Length
	r.plan = planFragments
	switch {
	case wr.Opcode == verbs.OpRDMAWriteWithImm:
		if q.cfg.Scheme == DQPLB {
			r.plan = planNumbered
		} else {
			r.note = noteDue
			q.notes++
		}
	case wr.Opcode.IsSend() && wr.Relaxed:
		r.plan = planMessage
	case wr.Opcode.IsSend():
		r.plan = planNone
		r.note = noteDue
		q.notes++
	case wr.Opcode.IsAtomic():
		r.plan = planAtomic
	case wr.EveryRail:
		r.plan = planEvery
	}
	if r.scattered || r.inline || r.plan == planAtomic {
		r.enqueueExt(wr)
	}
}

// enqueueExt copies what the caller gets back when the post returns.
func (r *sendReq) enqueueExt(wr *SendWR) {
	if r.ext == nil {
		r.ext = &sendExt{}
	}
	x := r.ext
	x.piece, x.pieceOff = 0, 0
	x.compareAdd, x.swap = wr.CompareAdd, wr.Swap
	if r.inline {
		x.inline = append(x.inline[:0], wr.Inline...)
		r.localKeys = nil
		r.length = uint64(len(wr.Inline))
	}
	if r.scattered {
		x.pieces = append(x.pieces[:0], wr.SGL...)
		r.localKeys = nil
		r.length = 0
		for i := range x.pieces {
			r.length += x.pieces[i].Length
		}
	}
}

// holder gathers consecutive holds on one region, so that a batch costs one atomic operation and
// not one a request.
type holder struct {
	mr *MR
	n  int64 // holds to take, beyond the one taken to see that the region is open
}

// take holds mr once more; it reports false when the region is closed.
func (h *holder) take(mr *MR) bool {
	if mr == h.mr {
		h.n++
		return true
	}
	if !mr.hold(1) {
		return false
	}
	h.settle()
	h.mr = mr
	return true
}

// settle takes the holds that were only counted. The region cannot have been closed meanwhile: one
// is taken.
func (h *holder) settle() {
	if h.n != 0 {
		h.mr.holds.Add(h.n)
		h.n = 0
	}
}

// holdSend keeps the regions that a request names open until it is reported.
func (q *VirtualQP) holdSend(h *holder, i int, wr *SendWR) error {
	if wr.Flags&verbs.SendInline != 0 {
		return nil
	}
	if len(wr.SGL) == 0 {
		if k := wr.Local.Keys; k != nil && k.mr != nil && !h.take(k.mr) {
			return q.sendError(i, wr, ErrClosed, "memory region "+wr.Local.String()+" is closed")
		}
		return nil
	}
	if bad := holdPieces(wr.SGL); bad >= 0 {
		return q.sendError(i, wr, ErrClosed, "memory region "+wr.SGL[bad].String()+" is closed")
	}
	return nil
}

// holdPieces holds the region of every piece, or of none; it returns the index of the piece whose
// region is closed, or -1.
func holdPieces(pieces []Segment) int {
	for i := range pieces {
		if k := pieces[i].Keys; k != nil && k.mr != nil && !k.mr.hold(1) {
			unholdPieces(pieces[:i])
			return i
		}
	}
	return -1
}

func unholdPieces(pieces []Segment) {
	for i := range pieces {
		if k := pieces[i].Keys; k != nil && k.mr != nil {
			k.mr.unhold(1)
		}
	}
}
