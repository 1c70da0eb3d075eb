package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// errPeerInterrupted says why some of the figures are missing.
var errPeerInterrupted = errors.New("the other end was interrupted: the rest was not measured")

// errServedLong says why a listening end gives up although nothing is wrong.
var errServedLong = fmt.Errorf("a listening end serves for %v at most", maxServedRun)

// taskError says why a listening end refuses what its client asks for.
type taskError struct{ reason string }

// Error names the client's request as the cause.
func (e *taskError) Error() string { return "the connecting end " + e.reason }

// BrokeOff reports whether the client caused an error of [Follow]: it disconnected, was stopped,
// asked for the impossible, or violated the protocol. The next client can be served.
func BrokeOff(err error) bool {
	var said *rendezvous.PeerError
	var task *taskError
	if errors.Is(err, ErrVerify) || errors.Is(err, layers.ErrMessages) {
		return false
	}
	for _, why := range []error{rendezvous.ErrGone, rendezvous.ErrTimeout, rendezvous.ErrProtocol, ErrStalled,
		errPeerInterrupted, errServedLong} {
		if errors.Is(err, why) {
			return true
		}
	}
	return errors.As(err, &said) || errors.As(err, &task)
}

// Follow measures together with a process that leads: it drives end b as the other one asks for,
// within limits. The report has the other one's parameters and figures. There is none when nothing
// could be measured. The conversation is over when it returns.
func Follow(ctx context.Context, h *Half, o Observer) (*Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxServedRun, errServedLong)
	defer cancel()
	steps, stop := stepsOf(ctx, 0)
	defer stop()
	f := &peer{conn: h.Conn, steps: steps}
	task, err := f.receiveTask(ctx, h)
	if err == nil {
		err = f.conn.Send(ctx, kindAccept, nil)
	}
	if err != nil {
		return nil, f.part(interruptedOr(ctx, err))
	}
	run := newRunner(ctx, task.Params, [2]bool{false, true}, o)
	run.peer = f
	run.report.Peer = describe(h, &task.Self, task.Params.NICs, "a")
	o.Start(task.Params, run.report.Peer)
	return run.follow(h.Devices[:task.Params.NICs])
}

// receiveTask receives what is measured.
func (f *peer) receiveTask(ctx context.Context, h *Half) (*taskBody, error) {
	if err := f.conn.Send(ctx, kindOffer, h.self()); err != nil {
		return nil, err
	}
	patience := min(taskPatience, f.conn.Timeout())
	soon, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w: waited %v for message %q",
		rendezvous.ErrTimeout, patience, kindTask))
	defer cancel()
	m, err := f.conn.ReceiveAny(soon, kindTask)
	if err != nil {
		return nil, err
	}
	task, err := decodeTask(m.Body)
	if err != nil {
		return nil, err
	}
	if p := task.Params; p != nil {
		p.Provider, p.Conn = h.Provider, h.Config // this end's own
	}
	if err := task.check(); err != nil {
		// Not a usage error of this end.
		return nil, &taskError{"asks for what is not possible: " + err.Error()}
	}
	if err := h.reaches(&task.Self); err != nil {
		return nil, &taskError{"has other NICs: " + err.Error()}
	}
	if n := task.Params.NICs; n > len(h.Devices) || n > len(task.Self.NICs) {
		return nil, &taskError{fmt.Sprintf("asks for %d NICs: it has %d, and the listening end has %d",
			n, len(task.Self.NICs), len(h.Devices))}
	}
	return task, nil
}

// taskPatience is how long a process that leads may take to say what it wants to have measured.
const taskPatience = 5 * time.Second

// decodeTask reads a task, all of which this end must know.
func decodeTask(text []byte) (*taskBody, error) {
	var task taskBody
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&task); err != nil { // which repeats what the peer has sent
		return nil, fmt.Errorf("%w: message %q: %s", rendezvous.ErrProtocol, kindTask,
			peertext.Excerpt(err.Error(), maxReason))
	}
	return &task, nil
}

// maxReason is how long a reason may be that repeats what the peer has sent.
const maxReason = 400

// follow drives end b.
func (r *runner) follow(devices []verbs.Device) (*Report, error) {
	err := r.connectColumns(devices)
	for over := false; err == nil && !over; {
		over, err = r.next()
	}
	if r.complete && errors.Is(err, ErrInterrupted) {
		err = nil // everything is measured, and the goodbye was to end
	}
	r.complete = err == nil
	if err != nil && !errors.Is(err, errPeerInterrupted) {
		err = r.peer.part(interruptedOr(r.ctx, err))
	}
	return r.endApart(err)
}

// next does what the leading end asks for next. over reports that the run is over.
func (r *runner) next() (over bool, err error) {
	conn, steps := r.peer.conn, r.peer.steps
	if r.complete { // an interruption leaves the goodbye its time
		goodbye, stop := stepsOf(r.ctx, lastRound)
		defer stop()
		steps = goodbye
	}
	m, err := conn.ReceiveAny(steps, kindCell, kindRow, kindBye)
	if err != nil {
		return false, err
	}
	switch m.Kind {
	case kindCell:
		return false, r.followCell(&m)
	case kindRow:
		return false, r.takeRow(&m)
	}
	var bye byeBody
	if err := m.Decode(&bye); err != nil {
		return false, err
	}
	if err := conn.Send(steps, kindBye, byeBody{}); err != nil {
		return false, err
	}
	if bye.Interrupted {
		return true, errPeerInterrupted
	}
	return true, nil
}

// followCell measures a cell.
func (r *runner) followCell(m *rendezvous.Message) error {
	var theirs cellBody
	if err := m.Decode(&theirs); err != nil {
		return err
	}
	at := slices.IndexFunc(r.columns, func(c *pair) bool { return c.scheme == theirs.Scheme })
	if at < 0 || !slices.Contains(r.p.Sizes, theirs.Size) {
		return fmt.Errorf("%w: a cell of %.20q, %v, which is not in the task", rendezvous.ErrProtocol,
			theirs.Scheme, theirs.Size)
	}
	all := len(r.p.Sizes) * len(r.columns) * r.p.Samples
	r.observer.Cell(r.done%all, all)
	r.done++
	c := r.resume(r.columns[at], int(theirs.Size))
	if err := r.peer.conn.Send(r.peer.steps, kindCell, c.body()); err != nil {
		return err
	}
	if err := c.startCounters(theirs); err != nil {
		return err
	}
	return c.follow()
}

// resume is the cell of a column at a size, of which a further sample may be taken.
func (r *runner) resume(column *pair, size int) *cell {
	for _, c := range r.cells {
		if c.pair == column && c.size == size {
			c.readCounters() // other columns have changed them
			return c
		}
	}
	c := newCell(r, column, size)
	r.cells = append(slices.DeleteFunc(r.cells, func(other *cell) bool { return other.pair == column }), c)
	return c
}

// follow does the rounds that the leading end asks for.
func (c *cell) follow() error {
	for {
		m, err := c.peer.conn.ReceiveAny(c.peer.steps, kindRound, kindOver)
		if err != nil {
			return err
		}
		if m.Kind == kindOver {
			var stats QPStats
			if !c.p.Layered() {
				stats = QPStats{c.pair.scheme, since(c.pair.count()[1], c.before[1])}
			}
			return c.peer.conn.Send(c.peer.steps, kindStats, statsBody{stats})
		}
		var b roundBody
		if err := m.Decode(&b); err != nil {
			return err
		}
		if b.Messages < 1 || b.Messages > c.longest() {
			return fmt.Errorf("%w: a round of %d messages: must be 1 to %d", rendezvous.ErrProtocol,
				b.Messages, c.longest())
		}
		if err := c.runRound(b.Messages, b.WarmUp); err != nil {
			c.pair.failed = true
			return fmt.Errorf("%s, %v: %w", c.pair.scheme, c.result.Size, c.explain(err))
		}
	}
}

// takeRow takes over the figures of a size.
func (r *runner) takeRow(m *rendezvous.Message) error {
	var row rowBody
	if err := m.Decode(&row); err != nil {
		return err
	}
	if err := row.check(r.p); err != nil {
		return err
	}
	if !r.p.Endless && len(r.report.Results)+len(row.Results) > len(r.p.Sizes)*len(r.p.Schemes) {
		return fmt.Errorf("%w: more figures than the task has cells", rendezvous.ErrProtocol)
	}
	r.cells = nil
	r.keep(row.Results)
	r.complete = !r.p.Endless && len(r.report.Results) == len(r.p.Sizes)*len(r.p.Schemes)
	r.observer.Row(row.Results)
	return nil
}
