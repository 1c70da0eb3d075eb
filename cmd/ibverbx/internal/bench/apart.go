package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/nicoffer"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Half is a process's contribution to a run of which it drives one end.
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

// reaches returns why the NICs of two processes do not reach each other; nil if they do, or if that
// is not known.
func (h *Half) reaches(theirs *selfBody) error {
	mine := nicoffer.Of(h.Provider, h.Devices)
	if err := mine.Reaches(&theirs.Offer); err != nil {
		return usage("%v; give both ends the same --provider", err)
	}
	return nil
}

// describe returns the description of the other process, n of whose NICs are used.
func (h *Half) describe(theirs *selfBody, n int, end string) *Peer {
	p := &Peer{Address: h.Conn.RemoteAddr().String(), End: end, Version: theirs.Version,
		Machine: theirs.Machine, Provider: theirs.Provider, NICs: theirs.NICs[:n]}
	for _, d := range h.Devices[:n] {
		p.Own = append(p.Own, nicoffer.NameOf(d))
	}
	return p
}

// Lead measures together with a process that follows: p decides what is measured, and Lead drives
// end a. With p.NICs 0 it uses as many NICs as both processes have. Errors are those of [Run];
// there is no report if the ends did not agree on what to measure. The conversation is over when it
// returns.
func Lead(ctx context.Context, p *Params, h *Half, o Observer) (*Report, error) {
	l := &peer{conn: h.Conn, leads: true, steps: ctx}
	p, theirs, err := l.agree(*p, h)
	if err != nil {
		return nil, l.part(interruptedOr(ctx, err))
	}
	return l.measure(p, h, h.describe(theirs, p.NICs, endName(1)), o)
}

// Follow measures together with a process that leads: it drives end b with the other's parameters,
// within limits. The report has the other's parameters and figures. There is none if nothing could
// be measured. The conversation is over when it returns.
func Follow(ctx context.Context, h *Half, o Observer) (*Report, error) {
	f := &peer{conn: h.Conn, steps: ctx}
	task, err := f.receiveTask(h)
	if err == nil {
		err = f.conn.Send(ctx, kindAccept, nil)
	}
	if err != nil {
		return nil, f.part(interruptedOr(ctx, err))
	}
	return f.measure(task.Params, h, h.describe(&task.Self, task.Params.NICs, endName(0)), o)
}

// agree agrees with the following process on what is measured.
func (p *peer) agree(params Params, h *Half) (*Params, *selfBody, error) {
	var theirs selfBody
	if err := p.conn.Receive(p.steps, kindOffer, &theirs); err != nil {
		return nil, nil, err
	}
	if err := theirs.check(); err != nil {
		return nil, nil, err
	}
	if err := h.reaches(&theirs); err != nil {
		return nil, nil, err
	}
	switch {
	case params.NICs == 0:
		params.NICs = min(len(h.Devices), len(theirs.NICs))
	case params.NICs > len(h.Devices):
		return nil, nil, usage("--nics %d: this end has %d", params.NICs, len(h.Devices))
	case params.NICs > len(theirs.NICs):
		return nil, nil, usage("--nics %d: the listening end has %d", params.NICs, len(theirs.NICs))
	}
	params.Provider, params.Conn = h.Provider, h.Config
	if err := params.completeApart(); err != nil {
		return nil, nil, err
	}
	if err := p.conn.Send(p.steps, kindTask, taskBody{Self: h.self(), Params: &params}); err != nil {
		return nil, nil, err
	}
	return &params, &theirs, p.conn.Receive(p.steps, kindAccept, nil)
}

// taskPatience is how long a client may take to send its task, because others wait.
const taskPatience = 5 * time.Second

// receiveTask receives the parameters of the measurement.
func (p *peer) receiveTask(h *Half) (*taskBody, error) {
	if err := p.conn.Send(p.steps, kindOffer, h.self()); err != nil {
		return nil, err
	}
	soon, cancel := context.WithTimeoutCause(p.steps, taskPatience, rendezvous.ErrTimeout)
	defer cancel()
	task := &taskBody{}
	if err := p.conn.Receive(soon, kindTask, task); err != nil {
		return nil, err
	}
	if params := task.Params; params != nil {
		params.Provider, params.Conn = h.Provider, h.Config // this end's own
	}
	if err := task.check(); err != nil {
		// Not a usage error of this end.
		return nil, fmt.Errorf("%w asks for what is not possible: %s", errTask, err.Error())
	}
	if err := h.reaches(&task.Self); err != nil {
		return nil, fmt.Errorf("%w has other NICs: %s", errTask, err.Error())
	}
	if n := task.Params.NICs; n > len(h.Devices) || n > len(task.Self.NICs) {
		return nil, fmt.Errorf("%w asks for %d NICs: it has %d, and the listening end has %d", errTask, n,
			len(task.Self.NICs), len(h.Devices))
	}
	return task, nil
}

// measure drives this process's end of the agreed measurement, and ends the conversation. Both ends
// go through the same steps; the leading one makes all decisions.
func (p *peer) measure(params *Params, h *Half, about *Peer, o Observer) (*Report, error) {
	ctx := p.steps
	r := newRunner(ctx, params, [2]bool{p.leads, !p.leads}, o)
	r.peer, r.report.Peer = p, about
	o.Start(params, about)
	err := r.connect(h.Devices[:params.NICs])
	if err == nil {
		after := lastRound // the leading end finishes the round under way
		if !p.leads {
			after = 0
		}
		var stop func()
		p.steps, stop = stepsOf(ctx, after)
		defer stop()
		if err = r.rows(); err == nil && !p.parted {
			if err = r.traces(); err == nil {
				err = r.bye()
			}
		}
	}
	switch {
	case r.complete && errors.Is(err, ErrInterrupted):
		err = nil // everything is measured; only the goodbye was cut short
	case err != nil && !errors.Is(err, errPeerInterrupted):
		err = p.part(interruptedOr(ctx, err))
	}
	err = cmp.Or(err, p.conn.Close(), r.close())
	return r.end(interruptedOr(ctx, err))
}

// bye ends the conversation. It takes a moment even after an interrupt.
func (r *runner) bye() error {
	steps, stop := stepsOf(r.ctx, lastRound)
	defer stop()
	r.peer.steps = steps
	if err := r.peer.meet(kindBye); err != nil {
		return err
	}
	if r.stopped && !r.complete && !r.peer.leads {
		return errPeerInterrupted
	}
	return nil
}

// connect makes this process's end of each column and connects it with the other one's: both
// exchange cards and memory, and both are connected when it returns.
func (r *runner) connect(devices []verbs.Device) error {
	end := 1
	if r.peer.leads {
		end = 0
	}
	for _, s := range r.p.Schemes {
		column, err := newHalf(r.p, s, r.mem, end, devices)
		if err == nil {
			r.columns = append(r.columns, column)
			err = r.connectEnd(column.ends[end], 1-end)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// connectEnd connects an end with the one that the other process drives.
func (r *runner) connectEnd(e *layers.End, other int) error {
	mine, err := e.Card()
	if err != nil {
		return err
	}
	theirs, err := swap(r.peer, kindColumn, mine)
	if err == nil {
		err = checkCard(&theirs, r.p, r.mem.window, other)
	}
	if err == nil {
		err = e.Connect(&theirs)
	}
	if err != nil {
		return err
	}
	return r.peer.meet(kindConnected)
}

// errPeerInterrupted explains incomplete figures although nothing is wrong at this end.
var errPeerInterrupted = errors.New("the other end was interrupted: the rest was not measured")

// errTask begins the reason why a listening end refuses its client's task.
var errTask = errors.New("the connecting end")

// BrokeOff reports whether the client caused an error of [Follow]: it disconnected, was stopped,
// asked for the impossible, or violated the protocol. The next client can be served.
func BrokeOff(err error) bool {
	if errors.Is(err, layers.ErrVerify) || errors.Is(err, layers.ErrMessages) {
		return false
	}
	for _, why := range []error{rendezvous.ErrGone, rendezvous.ErrTimeout, rendezvous.ErrProtocol,
		layers.ErrStalled, errPeerInterrupted, errTask} {
		if errors.Is(err, why) {
			return true
		}
	}
	return errors.As(err, new(*rendezvous.PeerError))
}
