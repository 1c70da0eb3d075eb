package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/rendezvous"
)

// peer is the process that drives the other end, and the conversation with it.
type peer struct {
	conn  *rendezvous.Conn
	leads bool // this process drives end a and decides; the other follows
	// steps bounds each step of the conversation.
	steps  context.Context
	parted bool // this end has reported why it gives up
}

// swap is a step in which both ends send a message: it returns the other's.
func swap[T any](p *peer, kind string, mine T) (theirs T, err error) {
	if err = p.conn.Send(p.steps, kind, mine); err == nil {
		err = p.conn.Receive(p.steps, kind, &theirs)
	}
	return theirs, err
}

// meet is a step that is over when both ends have reached it.
func (p *peer) meet(kind string) error {
	if err := p.conn.Send(p.steps, kind, nil); err != nil {
		return err
	}
	return p.conn.Receive(p.steps, kind, nil)
}

// decide is a step in which the leading end sends its decision. It returns the decision at both
// ends.
func decide[T any](p *peer, kind string, mine T) (decided T, err error) {
	if p.leads {
		return mine, p.conn.Send(p.steps, kind, mine)
	}
	err = p.conn.Receive(p.steps, kind, &decided)
	return decided, err
}

// stepsOf returns a context that ends some time after ctx, because the run was interrupted.
func stepsOf(ctx context.Context, after time.Duration) (context.Context, func()) {
	steps, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(after, func() { cancel(ErrInterrupted) })
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

// flushPatience is how long the NICs may take to complete requests to a peer that has gone: longer
// than their retries.
const flushPatience = 5 * time.Second

// watch returns a context that ends with the peer, after requests to it had time to fail, so that
// the error has the queue pair's report.
func (p *peer) watch(sends bool) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(p.steps)
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-p.conn.Done():
		case <-ctx.Done():
			return
		}
		why := p.conn.Err()
		if sends && errors.Is(why, rendezvous.ErrGone) {
			timer := time.NewTimer(min(flushPatience, p.conn.Timeout()))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		cancel(why)
	}()
	return ctx, func() { cancel(nil); <-over }
}

// part tells the peer why this end gives up, ends the conversation, and returns the reason together
// with the peer's, if that differs. Only the first call does so.
func (p *peer) part(why error) error {
	if p.parted {
		return why
	}
	p.parted = true
	var theirs *rendezvous.PeerError
	known := errors.As(why, &theirs)
	before := p.conn.Err()
	p.conn.Fail(why)
	switch after := p.conn.Err(); {
	case known || before != nil && errors.Is(why, before):
		return why
	case before != nil || errors.As(after, &theirs):
		return errors.Join(why, cmp.Or(before, after))
	}
	return why
}

// The steps of a cell.

// open agrees with the peer to take a sample of the cell. It returns false if the run must end.
func (c *cell) open() (goesOn bool, err error) {
	body := cellBody{Stop: c.interrupted()}
	if c.peer != nil {
		body, err = decide(c.peer, kindCell, body)
	}
	return !body.Stop, err
}

// follow plays the leading end's rounds of a sample.
func (c *cell) follow() error {
	for {
		next, err := decide(c.peer, kindRound, roundBody{})
		if err != nil || next.Messages == 0 {
			return err
		}
		if next.Messages < 0 || next.Messages > c.longest() {
			return fmt.Errorf("%w: a round of %d messages: must be 1 to %d", rendezvous.ErrProtocol,
				next.Messages, c.longest())
		}
		if err := c.runRound(next.Messages, next.WarmUp); err != nil {
			return err
		}
	}
}

// begin begins a round: receives are posted at both ends before anything is sent.
func (c *cell) begin(n int, warmup bool) error {
	switch {
	case c.peer == nil:
		return nil
	case !c.peer.leads:
		return c.peer.conn.Send(c.peer.steps, kindReady, nil)
	}
	if _, err := decide(c.peer, kindRound, roundBody{Messages: n, WarmUp: warmup}); err != nil {
		return err
	}
	return c.peer.conn.Receive(c.peer.steps, kindReady, nil)
}

// conclude ends a round: both ends have compared the arrived messages. took is how long this end's
// messages were under way, and theirs the same for the other end.
func (c *cell) conclude(verified int, took time.Duration) (theirs time.Duration, err error) {
	if c.peer == nil {
		return 0, nil
	}
	v, err := swap(c.peer, kindVerdict, verdictBody{Verified: verified, Took: int64(took)})
	if err != nil {
		return 0, err
	}
	_, at := c.pair.here()
	want := 0
	for end := range c.tasks {
		if c.p.Verify && c.sends(end) && c.compares(end) != at {
			want += c.posted[end]
		}
	}
	if v.Verified != want {
		return 0, fmt.Errorf("%w: an end compared %d messages of %d", rendezvous.ErrProtocol, v.Verified,
			want)
	}
	c.result.Verified += v.Verified
	return time.Duration(v.Took), nil
}

// share exchanges the figures of a size: those of the leading end count, with the statistics of
// each end's queue pairs.
func (r *runner) share(row []Result) ([]Result, error) {
	mine := rowBody{Results: slices.Clone(row), Stop: r.stopped}
	for i := range row { // time lines, and data that only this end knows, stay here
		mine.Results[i].Timeline, mine.Results[i].Losses = nil, nil
	}
	theirs, err := swap(r.peer, kindRow, mine)
	if err == nil {
		err = theirs.check(row)
	}
	if err != nil {
		return row, err
	}
	figures, followers := row, theirs.Results
	if !r.peer.leads {
		figures, followers, r.stopped = followers, figures, theirs.Stop
	}
	for i := range figures {
		figures[i].Stats.B, figures[i].Repairs.B = followers[i].Stats.B, followers[i].Repairs.B
	}
	return figures, nil
}
