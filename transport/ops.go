package transport

import "ibverbx/verbs"

// opKind is what an outstanding operation stands for.
type opKind uint8

const (
	opAM opKind = iota
	opPut
	opGet
	opUnpack // a get whose data is to be copied out of its bounce buffer
	opFetchAdd
	opCompareSwap
	opFlushRead // the read of a remote flush
	opCredits   // from here on those of the transport itself
	opGoodbye
	opAbort
	opProbe
	opFlush // was never posted: fires when everything before it has
)

// opNames are the operations in words, for errors.
var opNames = [...]string{"active message", "put", "get", "get", "fetch add", "compare swap", "remote flush",
	"credits", "goodbye", "goodbye of an abort", "keep-alive", "flush"}

// controlOp is the operation that stands for a message of the transport itself.
func controlOp(kind wireKind) opKind {
	switch kind {
	case wireBye:
		return opGoodbye
	case wireAbort:
		return opAbort
	}
	return opCredits
}

// control reports whether the operation is one of the transport itself.
func (k opKind) control() bool { return opCredits <= k && k <= opProbe }

// op is an outstanding operation. It begins in Endpoint.post, sending.pushControl or startFlush,
// and ends in peerState.retire.
type op struct {
	comp   *Completion // may be nil
	dst    []byte      // opUnpack: where the data goes
	result *uint64     // atomics: where the old value goes; may be nil
	buf    int32       // its bounce buffer, or noBuffer
	kind   opKind
}

// ended handles the completion of the oldest operation. low is the low half of its number.
func (p *peerState) ended(low uint32, status verbs.Status) {
	s := &p.sending
	if s.idle() || low != uint32(s.ops.Head) {
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
		copy(o.dst, p.bufferBytes(o.buf))
	case o.result != nil && ok:
		*o.result = p.mem.cellValue(s.ops.Head)
	case o.kind.control():
		if s.controlOps--; p.credits.Due() != 0 {
			w.chores.retryCredits(p) // they may have waited for this operation to end
		}
	}
	if o.buf != noBuffer {
		p.putBuffer(o.buf)
	}
	if o.comp != nil {
		s.unreportedRound = w.round.number
		e := event{kind: eventComplete, comp: o.comp}
		if !ok {
			e.err = p.ending.err
		}
		w.round.report(e)
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
