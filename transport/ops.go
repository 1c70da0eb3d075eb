package transport

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// opKind is the kind of an outstanding operation.
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

// opNames has the names of operations in errors.
var opNames = [...]string{"active message", "put", "get", "get", "fetch add", "compare swap", "remote flush",
	"credits", "goodbye", "goodbye of an abort", "keep-alive", "flush"}

// controlOp returns the operation for one of the transport's own messages.
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

// resources is a set of the resources that can be missing when a send meets ErrNoResource. Two
// fields record it: Pending.missing for the last send of a request's function, and sending.missing
// for sends from outside the queue, because the next request that is queued may stand for any of
// them.
type resources uint8

const (
	needWindow resources = 1 << iota // operations of this endpoint must end
	needCredit                       // the peer must give receive buffers back
	needBuffer                       // a bounce buffer: one that all endpoints share, or its own
	needNIC                          // the NIC refused for now
	// its function returned PendingNoResource, although none of its sends was refused: it is called
	// again in the next round of dispatchPending
	needUnknown
)

// usable returns why the endpoint takes no operations; nil if it does.
func (e *Endpoint) usable(op string) error {
	if e.peer.ending.stage == stageOpen {
		return nil
	}
	return e.usableNotOpen(op)
}

// usableNotOpen is usable in every stage but open, separate so that usable can be inlined.
func (e *Endpoint) usableNotOpen(op string) error {
	p := e.peer
	switch s := p.ending.stage; {
	case s.serves() && e.head:
		return nil
	case s == stageNew:
		return p.refuse(op, ErrNotConnected, "call Connect first")
	case s.serves():
		return p.refuse(op, ErrClosed, "")
	}
	return p.ending.err
}

// tryAdmit returns ErrNoResource, and records what is missing, if an operation that needs a credit
// or a bounce buffer cannot start now.
func (e *Endpoint) tryAdmit(credit, buffer bool) error {
	p := e.peer
	switch {
	case p.sending.pending.any() && e.ordinary():
		return e.noResource(0) // nothing overtakes the queue
	case p.sending.full():
		return e.noResource(needWindow)
	case credit && p.credits.Room() == 0:
		return e.noResource(needCredit)
	case buffer && !p.hasBuffer():
		return e.noResource(needBuffer)
	}
	return nil
}

// noResource ends an attempt for which a resource is missing.
func (e *Endpoint) noResource(need resources) error {
	p := e.peer
	s := &p.sending
	switch running, first := s.pending.running, s.pending.first(); {
	case !e.ordinary() && running != nil:
		running.missing |= need
	case e.bypass && first != nil:
		if first.missing != 0 { // otherwise it is called in its turn
			first.missing |= need
		}
	default:
		s.missing = p.stillMissing(s.missing, 0) | need
	}
	p.w.stats.noResource++
	if req := &s.readyRequest; e.notify && !req.link.Listed() {
		req.callAgain = true // counts while its function runs: see runPending
		if !req.running {
			p.enqueue(req)
		}
	}
	return ErrNoResource
}

// stillMissing returns the resources of a set that are still missing. asked is for needUnknown:
// schedule.rounds at that time.
func (p *peerState) stillMissing(set resources, asked uint64) resources {
	if !p.sending.full() {
		set &^= needWindow
	}
	if p.credits.Room() != 0 {
		set &^= needCredit
	}
	if p.hasBuffer() {
		set &^= needBuffer
	}
	if !p.w.chores.refused {
		set &^= needNIC
	}
	if p.w.schedule.rounds != asked {
		set &^= needUnknown
	}
	return set
}

// stillBlocked reports whether an attempt that lacked a set of resources would fail again: none of
// them has come back, or too many operations are outstanding.
func (p *peerState) stillBlocked(set resources, asked uint64) bool {
	return p.sending.full() || set != 0 && p.stillMissing(set, asked) == set
}

// The work-request ids of a worker's virtual queue pairs identify the operation or buffer:
//
//	63      62      32 31             0
//	| recv | endpoint |      low       |
//
// low is the low half of an operation's number; of a receive, receiving.attempt and the slot of its
// buffer.
const (
	wridRecv     = 1 << 63
	wridShift    = 32
	attemptShift = 16
)

// sendID returns the id of the next operation.
func (p *peerState) sendID() uint64 {
	return uint64(p.id)<<wridShift | uint64(uint32(p.sending.ops.Tail))
}

// recvID returns the id of the receive into buffer slot.
func (p *peerState) recvID(slot uint32) uint64 {
	return wridRecv | uint64(p.id)<<wridShift | uint64(p.receiving.attempt)<<attemptShift | uint64(slot)
}

// wridEndpoint returns the number of the endpoint in an id, wridLow its low half.
func wridEndpoint(id uint64) uint32 { return uint32(id &^ wridRecv >> wridShift) }
func wridLow(id uint64) uint32      { return uint32(id) }

// wridAttempt and wridSlot return the parts of a receive's low half.
func wridAttempt(id uint64) uint16 { return uint16(id >> attemptShift) }
func wridSlot(id uint64) uint32    { return uint32(uint16(id)) }

// post posts an admitted operation and adds it to the outstanding ones. If the virtual queue pair
// refuses it, nothing has changed, and the bounce buffer is free again.
func (e *Endpoint) post(name string, wr *[1]ibverbx.SendWR, kind opKind, buf int32, comp *Completion) (*op,
	error) {
	p := e.peer
	s := &p.sending
	if comp != nil && comp.left.Load() <= 0 {
		if buf != noBuffer {
			p.putBuffer(buf)
		}
		return nil, p.refuse(name, verbs.ErrInvalid, "the completion counts nothing: call Init, or "+
			"NewCompletion, for as many operations as it is given to")
	}
	wr[0].ID = p.sendID()
	if s.fence.now || s.fence.later && e.ordinary() {
		wr[0].Flags |= verbs.SendFence
	}
	_, err := p.conn.qp.PostSend(wr[:]...)
	wr[0].Flags &^= verbs.SendFence
	if err != nil {
		if buf != noBuffer {
			p.putBuffer(buf)
		}
		return nil, e.postRefused(name, err)
	}
	s.fence.posted(e.ordinary())
	if s.ops.Full() {
		s.ops.Grow()
	}
	o := s.ops.Open()
	o.kind, o.buf, o.comp = kind, buf, comp
	p.w.wakeForChores()
	return o, nil
}

// postRefused handles an operation that the virtual queue pair refused, and returns the error.
func (e *Endpoint) postRefused(name string, err error) error {
	p := e.peer
	switch {
	case verbs.IsTransient(err):
		p.w.chores.refused = true
		p.w.wakeForChores()
		return e.noResource(needNIC)
	case p.conn.qp.Err() != nil:
		p.fail(stageFailed, ErrPeerFailed, p.conn.qp.Err())
		return p.ending.err
	}
	return p.refuse(name, reason(err), "")
}

// reason returns the error of a post without its prefix, which names a call that the program did
// not make.
func reason(err error) error {
	var p *ibverbx.PostError
	if errors.As(err, &p) {
		return &argumentError{detail: p.Detail, err: p.Err}
	}
	return err
}

// argumentError explains what is wrong with an argument.
type argumentError struct {
	detail string
	err    error
}

func (e *argumentError) Error() string { return e.err.Error() + ": " + e.detail }
func (e *argumentError) Unwrap() error { return e.err }

// ended handles the completion of the oldest operation. low is the low half of its number.
func (p *peerState) ended(low uint32, status verbs.Status) {
	s := &p.sending
	if s.idle() || low != uint32(s.ops.Head) {
		p.w.stats.stale++
		return
	}
	var err error
	switch {
	case status == verbs.StatusSuccess:
		p.retire(nil)
	case p.ending.err == nil:
		p.retireLostAtomic(status)
	default:
		err = p.ending.err
		p.retire(err)
	}
	for !s.idle() && s.ops.Front().kind == opFlush {
		p.retire(err) // a flush ends as the operation before it
	}
}

// isLostAtomic reports whether a completion is of an atomic that has failed alone: its queue pair
// was lost before the answer came, and the connection continues over another one.
func (p *peerState) isLostAtomic(wc *ibverbx.WC) bool {
	s := &p.sending
	if !p.w.cfg.QP.Failover || p.conn.qp.DataRails() == 1 || p.conn.qp.Err() != nil ||
		wc.ID&wridRecv != 0 || s.idle() || wridLow(wc.ID) != uint32(s.ops.Head) {
		return false
	}
	kind := s.ops.Front().kind
	return kind == opFetchAdd || kind == opCompareSwap
}

// retireLostAtomic ends the oldest operation, an atomic that may or may not have taken effect. If
// it has no completion of its own, the next flush reports it.
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
	case o.kind == opUnpack:
		if err == nil {
			copy(o.dst, p.bufferBytes(o.buf))
		}
		o.dst = nil
	case o.result != nil:
		if err == nil {
			*o.result = p.mem.cellValue(s.ops.Head)
		}
		o.result = nil
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
	s.ops.Head++
}

// retireAll ends all operations, because no completion of them will come.
func (p *peerState) retireAll() (n int) {
	for n = p.sending.ops.Len(); !p.sending.idle(); {
		p.retire(p.ending.err)
	}
	return n
}

// probe reads a word of the peer's memory. That does not involve the peer's program, and fails like
// any operation.
func (p *peerState) probe() {
	wr := p.w.templates.get[:]
	wr[0].ID, wr[0].Flags = p.sendID(), verbs.SendSignaled
	wr[0].Local, wr[0].Remote = p.mem.scratch(8), p.conn.flush.Slice(0, 8)
	if _, err := p.conn.qp.PostSend(wr...); err != nil {
		if !verbs.IsTransient(err) {
			p.failQP(err)
		}
		return
	}
	p.sending.pushControl(opProbe)
	p.w.stats.probes++
}

func (p *peerState) countPut(n int) {
	p.sending.dirty = true
	p.w.stats.puts++
	p.w.stats.putBytes += uint64(n)
	p.sending.traffic.sent += uint64(n)
}

func (p *peerState) countGet(n int) {
	p.w.stats.gets++
	p.w.stats.getBytes += uint64(n)
	p.sending.traffic.received += uint64(n)
}
