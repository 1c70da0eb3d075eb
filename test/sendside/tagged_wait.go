package sendside

import (
	"context"
	"errors"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// wait starts a program that waits: in a send, in a receive, or for a request.
func (e *tagEnd) wait() {
	w := e.w
	if len(w.waiting()) >= 5 {
		return
	}
	ctx := w.context()
	var body func()
	var name string
	switch w.Rng.IntN(3) {
	case 0:
		m, ok := e.newMsg()
		if !ok {
			return
		}
		name, body = sprintf("%v waits in send", e), func() { e.sendWait(ctx, m) }
	case 1:
		name, body = sprintf("%v waits in recv", e), func() { e.recvWait(ctx) }
	default:
		open := e.site.recvs[e.site.open:]
		if len(open) == 0 || open[0].req == nil {
			return
		}
		r := open[0]
		r.awaited = true
		name, body = sprintf("%v waits for %v", e, r), func() {
			if r.req == nil {
				return
			}
			err := r.req.Wait(ctx)
			var interrupted *tagged.InterruptedError
			if errors.As(err, &interrupted) {
				if interrupted.Req != r.req || !errors.Is(err, context.Canceled) {
					w.Broken(lab.Refusal, "%v: %v", r, err)
				}
			}
		}
	}
	w.start(name, e.site.Host, body)
}

// sendWait is a program in SendWait.
func (e *tagEnd) sendWait(ctx context.Context, m *tagMsg) {
	m.seq = len(e.msgs)
	e.msgs = append(e.msgs, m) // it may arrive before the call returns
	ended := e.ends()
	var err error
	if m.sync {
		err = e.ep.SendSyncWait(ctx, m.tag, e.site.pieces(m.src)...)
	} else {
		err = e.ep.SendWait(ctx, m.tag, e.site.pieces(m.src)...)
	}
	e.w.Logf("  %v: waited: %v", m, err)
	var interrupted *tagged.InterruptedError
	switch {
	case errors.As(err, &interrupted):
		m.req = interrupted.Req
		return
	case ended && err == nil && m.match == nil:
		e.w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", m)
	case err != nil && errors.Is(err, context.Canceled):
		m.cancelled = true
		err = tagged.ErrCanceled
	}
	m.end(err)
}

// recvWait is a program in RecvWait.
func (e *tagEnd) recvWait(ctx context.Context) {
	o := e.site
	from, wait := e, e.ep.RecvWait
	if o.OneIn(2) {
		from, wait = nil, o.worker.RecvWait
	}
	r, ok := o.newRecv(from)
	if !ok {
		return
	}
	r.inCall = true
	o.recvs = append(o.recvs, r)
	info, err := wait(ctx, r.tag, r.mask, o.pieces(r.dst)...)
	o.w.Logf("  %v: waited: %v", r, err)
	var interrupted *tagged.InterruptedError
	switch {
	case errors.As(err, &interrupted):
		r.req = interrupted.Req
		return
	case info.Source == nil && errors.Is(err, context.Canceled):
		r.cancelled = true
		err = tagged.ErrCanceled
	}
	r.end(info, err)
}
