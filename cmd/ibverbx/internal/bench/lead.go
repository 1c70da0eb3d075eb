package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/internal/nicoffer"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Half is what a process brings into a run of which it drives one end.
type Half struct {
	Conn     *rendezvous.Conn
	Provider string             // its name
	Devices  []verbs.Device     // that may be used
	Config   ibverbx.ConnConfig // of the queue pairs of this process
	Version  string             // of the program
}

func (h *Half) self() selfBody {
	return selfBody{Version: h.Version, Machine: ThisMachine(), Offer: nicoffer.Of(h.Provider, h.Devices)}
}

// reaches says why the NICs of two processes do not reach each other; nil where they do, or where
// that is not known.
func (h *Half) reaches(theirs *selfBody) error {
	mine := nicoffer.Of(h.Provider, h.Devices)
	if err := mine.Reaches(&theirs.Offer); err != nil {
		return usage("%v; give both ends the same --provider", err)
	}
	return nil
}

// Lead measures together with a process that follows: it decides what is measured, as p says, and
// drives end a. With p.NICs 0 as many NICs are used as both processes have. Errors are those of
// [Run]; there is no report when the ends did not agree on what to measure. The conversation is
// over when it returns.
func Lead(ctx context.Context, p *Params, h *Half, o Observer) (*Report, error) {
	steps, cancel := stepsOf(ctx, lastRound)
	defer cancel()
	l := &peer{conn: h.Conn, leads: true, steps: steps}
	var theirs selfBody
	fitting := *p
	fitting.fillDefaults()
	fitting.fitPorts(h.Devices)
	p, err := l.agree(ctx, fitting, h, &theirs)
	if err != nil {
		return nil, l.part(interruptedOr(ctx, err))
	}
	run := newRunner(ctx, p, [2]bool{true, false}, o)
	run.peer = l
	run.report.Peer = describe(h, &theirs, p.NICs, "b")
	o.Start(p, run.report.Peer)
	return run.lead(h.Devices[:p.NICs])
}

// stepsOf is a context for what needs an answer of the peer: it ends a while after ctx.
func stepsOf(ctx context.Context, after time.Duration) (context.Context, func()) {
	steps, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		why := ErrInterrupted
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why = context.Cause(ctx)
		}
		time.AfterFunc(after, func() { cancel(why) })
	})
	return steps, func() { stop(); cancel(nil) }
}

// interruptedOr replaces errors that only say that ctx has ended by ErrInterrupted.
func interruptedOr(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return ErrInterrupted
	}
	return err
}

// agree settles with the following process what is measured.
func (l *peer) agree(ctx context.Context, p Params, h *Half, theirs *selfBody) (*Params, error) {
	if err := l.conn.Receive(ctx, kindOffer, theirs); err != nil {
		return nil, err
	}
	if err := theirs.check(); err != nil {
		return nil, err
	}
	if err := h.reaches(theirs); err != nil {
		return nil, err
	}
	switch {
	case p.NICs == 0:
		p.NICs = min(len(h.Devices), len(theirs.NICs))
	case p.NICs > len(h.Devices):
		return nil, usage("--nics %d: this end has %d", p.NICs, len(h.Devices))
	case p.NICs > len(theirs.NICs):
		return nil, usage("--nics %d: the listening end has %d", p.NICs, len(theirs.NICs))
	}
	p.Provider, p.Conn = h.Provider, h.Config
	if err := p.checkApart(); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := l.conn.Send(ctx, kindTask, taskBody{Self: h.self(), Params: &p}); err != nil {
		return nil, err
	}
	return &p, l.conn.Receive(ctx, kindAccept, nil)
}

// describe is what is shown of the other process.
func describe(h *Half, theirs *selfBody, n int, end string) *Peer {
	p := &Peer{Address: h.Conn.RemoteAddr().String(), End: end, Version: theirs.Version,
		Machine: theirs.Machine, Provider: theirs.Provider, NICs: theirs.NICs[:n]}
	for _, d := range h.Devices[:n] {
		p.Own = append(p.Own, nicoffer.NameOf(d))
	}
	return p
}

// lead drives end a.
func (r *runner) lead(devices []verbs.Device) (*Report, error) {
	err := r.connectColumns(devices)
	if err == nil {
		err = r.rows()
	}
	failed := slices.ContainsFunc(r.report.Results, func(res Result) bool { return res.Err != nil })
	switch {
	case failed: // the conversation is over already
	case err != nil:
		err = r.peer.part(interruptedOr(r.ctx, err))
	default:
		err = r.bye()
		switch {
		case r.complete && errors.Is(err, ErrInterrupted):
			err = nil // everything is measured, and the goodbye was to end
		case err != nil:
			err = r.peer.part(err)
		}
	}
	return r.endApart(err)
}

// endApart ends the conversation and closes what is open.
func (r *runner) endApart(err error) (*Report, error) {
	closing := r.peer.conn.Close()
	if err == nil {
		err = closing
	}
	if closing := r.close(); err == nil {
		err = closing
	}
	return r.end(interruptedOr(r.ctx, err))
}

// bye ends the conversation with the following process.
func (r *runner) bye() error {
	if err := r.peer.conn.Send(r.peer.steps, kindBye, byeBody{Interrupted: r.interrupted() &&
		!r.complete && !r.p.Endless}); err != nil {
		return err
	}
	return r.peer.conn.Receive(r.peer.steps, kindBye, nil)
}

// connectColumns makes this process's end of each column, and connects it with the other one's.
func (r *runner) connectColumns(devices []verbs.Device) error {
	for _, s := range r.p.Schemes {
		if err := r.connectScheme(s, devices); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// connectScheme makes this process's end of a column and connects it with the other one's: both
// exchange cards and memory, and are connected when it returns.
func (r *runner) connectScheme(s Scheme, devices []verbs.Device) error {
	end := 1
	if r.peer.leads {
		end = 0
	}
	column, err := newHalf(r.p, s, r.mem, end, devices)
	if err != nil {
		return err
	}
	r.columns = append(r.columns, column)
	card, err := column.ends[end].Card()
	if err != nil {
		return err
	}
	conn := r.peer.conn
	if err := conn.Send(r.ctx, kindColumn, columnBody{Scheme: s, Card: card}); err != nil {
		return err
	}
	var theirs columnBody
	if err := conn.Receive(r.ctx, kindColumn, &theirs); err != nil {
		return err
	}
	if err := theirs.check(r.p, s, r.mem.window, 1-end); err != nil {
		return err
	}
	if err := column.ends[end].Connect(&theirs.Card); err != nil {
		return err
	}
	if err := conn.Send(r.ctx, kindConnected, nil); err != nil {
		return err
	}
	if err := conn.Receive(r.ctx, kindConnected, nil); err != nil {
		return err
	}
	return nil
}
