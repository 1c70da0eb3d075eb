package transport

import "ibverbx/verbs"

// opKind is what an outstanding operation stands for.
type opKind uint8

const (
	opData    opKind = iota // an active message, a put or a get
	opUnpack                // a get whose data is to be copied out of its bounce buffer
	opAtomic                // its result is in the slot's cell
	opControl               // a message of the transport itself, or a probe
	opFlush                 // was never posted: fires when everything before it has
)

// op is an outstanding operation. It begins in Endpoint.post and ends in peerState.retire.
type op struct {
	comp   *Completion // may be nil
	dst    []byte      // opUnpack: where the data goes
	result *uint64     // opAtomic: where the old value goes; may be nil
	buf    int32       // its bounce buffer, or noBuffer
	kind   opKind
}

// sendID is the work-request id of the next operation: endpoint, and the low bits of its number.
func (p *peerState) sendID() uint64 { return uint64(p.id)<<32 | uint64(uint32(p.sending.ops.Tail)) }

// ended handles the completion of the oldest operation. slot is the low half of its id.
func (p *peerState) ended(slot uint32, status verbs.Status) {
	s := &p.sending
	if s.idle() || slot != uint32(s.ops.Head) {
		p.w.stats.stale++
		return
	}
	ok := status == verbs.StatusSuccess
	p.retire(ok)
	for !s.idle() && s.ops.Front().kind == opFlush {
		p.retire(ok) // a flush ends as the operation before it
	}
}

// retire ends the oldest operation.
func (p *peerState) retire(ok bool) {
	w, s := p.w, &p.sending
	o := s.ops.Front()
	switch {
	case o.kind == opUnpack && ok:
		copy(o.dst, w.bounce.bytes(o.buf))
	case o.kind == opAtomic && ok && o.result != nil:
		*o.result = p.mem.cellValue(s.ops.Head)
	case o.kind == opControl:
		if s.controlOps--; p.credits.Due() != 0 {
			w.chores.retryCredits(p) // they may have waited for this operation to end
		}
	}
	if o.buf != noBuffer {
		w.bounce.put(o.buf)
	}
	if o.comp != nil {
		s.unreportedRound = w.round
		e := event{kind: eventComplete, comp: o.comp}
		if !ok {
			e.err = p.ending.err
		}
		w.report(e)
		o.comp = nil
	}
	o.dst, o.result = nil, nil
	s.ops.Head++
}

// retireAll ends all operations, because no completion of them will come.
func (p *peerState) retireAll() (n int) {
	for n = p.sending.ops.Len(); !p.sending.idle(); {
		p.retire(false)
	}
	return n
}
