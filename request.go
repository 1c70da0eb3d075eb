package ibverbx

import "ibverbx/verbs"

// sendReq is a live request of the send direction. Its fields are valid from PostSend until it is
// reported.
//
// Invariant: left counts the data work requests that are staged or on the NIC; dispatched means
// that no more will follow; offset <= length counts the bytes handed to the rails.
type sendReq struct {
	id         uint64
	length     uint64
	localAddr  uint64
	remoteAddr uint64
	localKeys  *Keys
	remoteKeys *Keys
	ext        *sendExt // data of few requests; kept by the slot
	sendProgress
	imm       uint32
	opcode    verbs.Opcode
	plan      plan
	fence     bool
	solicited bool
	scattered bool // ext.list is the memory
	inline    bool // ext.inline is the payload
}

// sendProgress is how far a request has come. The zero value is that of a new one.
type sendProgress struct {
	offset    uint64
	left      uint32
	fragments uint32 // handed to the rails so far
	firstNum  uint32 // DQPLB: number of the first message
	vendorErr uint32
	// markers counts the markers handed to the rails so far (DQPLB): at most one on each, and after
	// a loss perhaps another on the rail that took over.
	markers    uint16
	status     verbs.Status
	dispatched bool
	final      finalState
	immDue     bool  // DQPLB: the user's immediate must follow,
	immRail    uint8 // on this rail
}

// sendExt holds what few requests need: copies that outlive the post, and operands.
type sendExt struct {
	list       pieceList
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
	planNone                  // no data, only the final message (SEND)
)

// finalState is the progress of a request's final message.
type finalState uint8

const (
	finalNone   finalState = iota // the request has none
	finalDue                      // it is not staged yet
	finalPosted                   // it is staged or on the NIC
	finalDone                     // it has ended, or never goes out
)

// complete reports whether nothing of the request is outstanding or still to come.
func (r *sendReq) complete() bool {
	return r.dispatched && r.left == 0 && (r.final == finalNone || r.final == finalDone)
}

// moreData reports whether a fragment is still to be handed to the rails. A request of no bytes has
// one of no bytes.
func (r *sendReq) moreData() bool { return r.offset < r.length || r.length == 0 && r.fragments == 0 }

// dataComplete reports whether the request's data is acknowledged.
func (r *sendReq) dataComplete() bool { return r.dispatched && r.left == 0 }

// flushUnlessFailed gives a request that will not be carried out the status of a flush, unless it
// has failed with its own status.
func (r *sendReq) flushUnlessFailed() {
	if r.status == verbs.StatusSuccess {
		r.status = verbs.StatusWRFlushErr
	}
}

// enqueueExt copies the data that the caller may reuse when the post returns, and the operands of
// atomics.
func (r *sendReq) enqueueExt(wr *SendWR) {
	if r.ext == nil {
		r.ext = &sendExt{}
	}
	x := r.ext
	x.compareAdd, x.swap = wr.CompareAdd, wr.Swap
	if r.inline {
		if cap(x.inline) < len(wr.Inline) {
			x.inline = make([]byte, len(wr.Inline))
		}
		x.inline = x.inline[:len(wr.Inline)]
		copy(x.inline, wr.Inline)
	}
	if r.scattered {
		x.list.set(wr.SGL, r.localKeys)
	}
}

// fragmentOpcode returns the opcode of plain fragments. In Spray the notification follows
// separately.
func (r *sendReq) fragmentOpcode() verbs.Opcode {
	if r.opcode == verbs.OpRDMAWriteWithImm {
		return verbs.OpRDMAWrite
	}
	return r.opcode
}

// gather gives a work request up to size bytes of a scatter list or inline payload, in as many
// pieces as the rail takes, and returns the number of bytes.
func (r *sendReq) gather(rl *rail, wr *verbs.SendWR, size uint64) uint64 {
	x := r.ext
	if r.inline {
		wr.Flags |= verbs.SendInline
		rl.batch.setInline(wr, x.inline[r.offset:r.offset+size])
		return size
	}
	sgl := rl.batch.list(rl.maxSGE)
	if size == r.length && len(x.list.pieces) <= len(sgl) {
		// The usual case is the whole list (4 pieces: 5 % of the request).
		rl.batch.setSGL(wr, x.list.all(sgl, r.localKeys, rl.device))
		return size
	}
	count, got := x.list.take(sgl, r.localKeys, rl.device, size)
	rl.batch.setSGL(wr, count)
	return got
}

// payload gives a work request the memory of a fragment.
func (r *sendReq) payload(rl *rail, wr *verbs.SendWR, offset uint64, size uint32) {
	switch {
	case size == 0:
		rl.batch.setSGL(wr, 0)
	case r.inline:
		wr.Flags |= verbs.SendInline
		rl.batch.setInline(wr, r.ext.inline[offset:offset+uint64(size)])
	case r.scattered:
		sgl := rl.batch.list(rl.maxSGE)
		rl.batch.setSGL(wr, r.ext.list.part(sgl, r.localKeys, rl.device, offset, uint64(size)))
	default:
		sgl := rl.batch.setSGL(wr, 1)
		sgl[0] = verbs.SGE{Addr: r.localAddr + offset, Length: size, LKey: r.localKeys.at(rl.device)}
	}
}
