package transport

// resources is a set of what can be missing when a send meets ErrNoResource. It is noted in two
// places: Pending.missing is what the function of a request met last, and sending.missing what
// sends from outside of the queue met, because the next request that is queued may stand for any of
// them.
type resources uint8

const (
	needWindow resources = 1 << iota // operations of this endpoint have to end
	needCredit                       // the peer has to give receive buffers back
	needBuffer                       // a bounce buffer: one that all endpoints share, or its own
	needNIC                          // the NIC refused for now
	// its function returned PendingNoResource, although none of its sends was refused: it is called
	// again in the next round of dispatchPending
	needUnknown
)

// usable returns why the endpoint takes no operations; nil if it does.
func (e *Endpoint) usable(op string) error {
	p := e.peer
	switch s := p.ending.stage; {
	case s == stageOpen || s.serves() && e.head:
		return nil
	case s == stageNew:
		return p.refuse(op, ErrNotConnected, "call Connect first")
	case s.serves():
		return p.refuse(op, ErrClosed, "")
	}
	return p.ending.err
}

// tryAdmit returns ErrNoResource, and notes what is missing, if an operation that needs a credit or
// a bounce buffer cannot start now.
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

// stillMissing returns what of a set is still missing. asked goes with needUnknown:
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
