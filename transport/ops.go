package transport

import (
	"ibverbx"
	"ibverbx/verbs"
)

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
	var err error
	if status != verbs.StatusSuccess {
		err = p.ending.err
	}
	if status != verbs.StatusSuccess && err == nil {
		p.retireLostAtomic(status)
	} else {
		p.retire(err)
	}
	for !s.idle() && s.ops.Front().kind == opFlush {
		p.retire(err) // a flush ends as the operation before it
	}
}

// isLostAtomic reports whether a completion says that an atomic has failed by itself: its queue
// pair was lost before the answer came, and the connection goes on over another one.
func (p *peerState) isLostAtomic(wc *ibverbx.WC) bool {
	s := &p.sending
	if !p.w.cfg.QP.Failover || p.conn.qp.DataRails() == 1 || p.conn.qp.Err() != nil ||
		wc.ID&wridRecv != 0 || s.idle() || wridLow(wc.ID) != uint32(s.ops.Head) {
		return false
	}
	kind := s.ops.Front().kind
	return kind == opFetchAdd || kind == opCompareSwap
}

// retireLostAtomic ends the oldest operation, an atomic of which nobody knows whether it took
// effect. Without a completion of its own, the next flush reports it.
func (p *peerState) retireLostAtomic(status verbs.Status) {
	o := p.sending.ops.Front()
	err := p.refuse(opNames[o.kind], ErrAtomicLost, "%v on a queue pair that is lost: whether the number "+
		"has changed is not known; the endpoint goes on", status)
	if o.comp == nil && p.sending.lostAtomic == nil {
		p.sending.lostAtomic = err
	}
	p.w.stats.atomicsLost++
	p.retire(err)
}

// retire ends the oldest operation, with success if err is nil.
func (p *peerState) retire(err error) {
	w, s := p.w, &p.sending
	o := s.ops.Front()
	switch {
	case o.kind == opUnpack && err == nil:
		copy(o.dst, p.bufferBytes(o.buf))
	case o.result != nil && err == nil:
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
		if err == nil && s.lostAtomic != nil && (o.kind == opFlush || o.kind == opFlushRead) {
			err = s.takeLostAtomic()
		}
		w.round.report(event{kind: eventComplete, comp: o.comp, err: err})
		o.comp = nil
	}
	o.dst, o.result = nil, nil
	s.ops.Head++
}

// retireAll ends all operations, because no completion of them will come.
func (p *peerState) retireAll() (n int) {
	for n = p.sending.ops.Len(); !p.sending.idle(); {
		p.retire(p.ending.err)
	}
	return n
}
