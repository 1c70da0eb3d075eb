package transport

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// post posts an admitted operation and adds it to the outstanding ones. If the virtual queue pair
// refuses it, nothing has changed, and the bounce buffer is free again.
func (e *Endpoint) post(name string, wr []ibverbx.SendWR, kind opKind, buf int32, comp *Completion) (*op,
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
	_, err := p.conn.qp.PostSend(wr...)
	wr[0].Flags &^= verbs.SendFence
	if err != nil {
		if buf != noBuffer {
			p.putBuffer(buf)
		}
		return nil, e.postRefused(name, err)
	}
	s.fence.posted(e.ordinary())
	o := s.ops.Push()
	o.kind, o.buf, o.comp = kind, buf, comp
	p.w.wakeForChores()
	return o, nil
}

// postRefused handles that the virtual queue pair refused an operation, and returns the error.
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

// reason is the error of a post without its prefix, which names a call that the program did not
// make.
func reason(err error) error {
	var p *ibverbx.PostError
	if errors.As(err, &p) {
		return &argumentError{detail: p.Detail, err: p.Err}
	}
	return err
}

// argumentError says what is wrong with an argument.
type argumentError struct {
	detail string
	err    error
}

func (e *argumentError) Error() string { return e.err.Error() + ": " + e.detail }
func (e *argumentError) Unwrap() error { return e.err }
