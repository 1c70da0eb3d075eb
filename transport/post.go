package transport

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// resources is a set of resources that a send can meet ErrNoResource for. What is missing is noted
// twice: each pending request has what its function last met, and an endpoint what sends from
// outside of the queue met, because any of them may be the one that its caller queues next.
type resources uint8

const (
	needWindow  resources = 1 << iota // operations of this endpoint have to end
	needCredit                        // the peer has to give receive buffers back
	needBuffer                        // a bounce buffer, which all endpoints share
	needNIC                           // the NIC refused for now
	needUnknown                       // a pending function said so, and no send of it met ErrNoResource
)

// usable says why the endpoint takes no operations, if so.
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

// tryAdmit says whether an operation may start now that needs a credit or a bounce buffer; if not,
// it notes what is missing.
func (e *Endpoint) tryAdmit(credit, buffer bool) error {
	p := e.peer
	switch {
	case p.sending.pending.any() && e.ordinary():
		return e.noResource(0) // nothing overtakes the queue
	case p.sending.full():
		return e.noResource(needWindow)
	case credit && p.credits.Room() == 0:
		return e.noResource(needCredit)
	case buffer && len(p.w.bounce.free) == 0:
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
		req.callAgain = true // in case it is running: see runPending
		if !req.running {
			p.enqueue(req)
		}
	}
	return ErrNoResource
}

// stillMissing is what of a set is missing still. seen goes with needUnknown: the number of
// completions at that time.
func (p *peerState) stillMissing(set resources, seen uint64) resources {
	if !p.sending.full() {
		set &^= needWindow
	}
	if p.credits.Room() != 0 {
		set &^= needCredit
	}
	if len(p.w.bounce.free) != 0 {
		set &^= needBuffer
	}
	if !p.w.chores.refused {
		set &^= needNIC
	}
	if p.w.completions != seen {
		set &^= needUnknown
	}
	return set
}

// stillBlocked reports whether nothing of a set has come back: another attempt would fail the same
// way.
func (p *peerState) stillBlocked(set resources, seen uint64) bool {
	return p.sending.full() || set != 0 && p.stillMissing(set, seen) == set
}

// post hands an admitted operation to the virtual queue pair and gives it its slot. When that
// refuses, nothing has happened, and the bounce buffer is free again.
func (e *Endpoint) post(name string, wr []ibverbx.SendWR, kind opKind, buf int32, comp *Completion) (*op,
	error) {
	p := e.peer
	s := &p.sending
	if comp != nil && comp.left.Load() <= 0 {
		if buf != noBuffer {
			p.w.bounce.put(buf)
		}
		return nil, p.refuse(name, verbs.ErrInvalid, "the completion counts nothing: call Init, or "+
			"NewCompletion, for as many operations as it is given to")
	}
	wr[0].ID = p.sendID()
	if s.fence.now || s.fence.later && e.ordinary() {
		wr[0].Flags |= verbs.SendFence
	}
	_, err := p.conn.qp.PostSend(wr...)
	wr[0].Flags &^= verbs.SendFence
	if err != nil {
		if buf != noBuffer {
			p.w.bounce.put(buf)
		}
		return nil, e.postRefused(name, err)
	}
	s.fence.posted(e.ordinary())
	o := s.ops.Push()
	o.kind, o.buf, o.comp = kind, buf, comp
	p.w.wakeForChores()
	return o, nil
}

// postRefused is the error of an operation that the virtual queue pair refused.
func (e *Endpoint) postRefused(name string, err error) error {
	p := e.peer
	switch {
	case verbs.IsTransient(err) || errors.Is(err, verbs.ErrQueueFull):
		p.w.chores.refused = true
		p.w.wakeForChores()
		return e.noResource(needNIC)
	case p.conn.qp.Err() != nil:
		p.fail(stageFailed, ErrPeerFailed, p.conn.qp.Err())
		return p.ending.err
	}
	return p.refuse(name, reason(err), "")
}

// reason is an error of a post without its first words, which name a call that the user did not
// make.
func reason(err error) error {
	var p *ibverbx.PostError
	if errors.As(err, &p) {
		return &argumentError{detail: p.Detail, err: p.Err}
	}
	return err
}

// argumentError is what was wrong with an argument.
type argumentError struct {
	detail string
	err    error
}

func (e *argumentError) Error() string { return e.err.Error() + ": " + e.detail }
func (e *argumentError) Unwrap() error { return e.err }
