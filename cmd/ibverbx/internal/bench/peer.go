package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// peer is the process that drives the other end, and the conversation with it.
type peer struct {
	conn  *rendezvous.Conn
	leads bool            // this process drives end a and decides, the other one follows
	steps context.Context // in which what needs an answer has to end; soon after the user has asked for it
}

// flushPatience is how long the NICs have to report what becomes of requests to a peer that has
// gone: longer than their retries take.
const flushPatience = 5 * time.Second

// watch is a context that ends with the peer. Where requests are on their way to it they get the
// time to fail first, so that it can be said what the queue pair made of it.
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

// errSilent says that the peer did not answer when it was told of a failure: it may be gone, or
// busy.
var errSilent = errors.New("the peer took no note of that in time")

// part tells the peer why this end gives up, ends the conversation, and returns the reason together
// with what the peer has to say to it.
func (p *peer) part(why error) error {
	var said *rendezvous.PeerError
	if errors.As(why, &said) {
		_ = p.conn.Close()
		return why // the peer knows it best
	}
	before := p.conn.Err()
	p.conn.Fail(why)
	after := p.conn.Err()
	switch {
	case before != nil && errors.Is(why, before):
		return why
	case before != nil:
		return errors.Join(why, before)
	case errors.As(after, &said):
		return errors.Join(why, after)
	case errors.Is(after, rendezvous.ErrClosed):
		return errors.Join(why, errSilent)
	}
	return why
}

// open agrees with the other process on the cell.
func (c *cell) open() error {
	if c.peer == nil {
		return nil
	}
	mine := cellBody{Size: c.result.Size, Scheme: c.rig.scheme, Counter: c.counter()}
	if err := c.peer.conn.Send(c.peer.steps, kindCell, mine); err != nil {
		return err
	}
	var theirs cellBody
	if err := c.peer.conn.Receive(c.peer.steps, kindCell, &theirs); err != nil {
		return err
	}
	return c.startCounters(theirs)
}

// counter is what the counter of atomics at this end holds.
func (c *cell) counter() uint64 {
	for _, f := range c.flows {
		if f.target != nil {
			return f.held()
		}
	}
	return 0
}

// startCounters takes in what the other end's counter holds.
func (c *cell) startCounters(theirs cellBody) error {
	if theirs.Size != c.result.Size || theirs.Scheme != c.rig.scheme {
		return fmt.Errorf("%w: the peer measures %v with %.20q, this end %v with %q", rendezvous.ErrProtocol,
			theirs.Size, theirs.Scheme, c.result.Size, c.rig.scheme)
	}
	for _, f := range c.flows {
		if f.op.Atomic() && f.target == nil {
			f.counter = theirs.Counter
		}
	}
	return nil
}

// begin begins a round with the other process: what is sent meets receives.
func (c *cell) begin(limit int, warmup bool) error {
	if c.peer == nil {
		return nil
	}
	for _, f := range c.flows {
		if err := f.credit(); err != nil {
			return err
		}
	}
	if !c.peer.leads {
		return c.peer.conn.Send(c.peer.steps, kindReady, nil)
	}
	if err := c.peer.conn.Send(c.peer.steps, kindRound,
		roundBody{Messages: limit, WarmUp: warmup}); err != nil {
		return err
	}
	return c.peer.conn.Receive(c.peer.steps, kindReady, nil)
}

// conclude ends a round with the other process: what came has been compared at both ends. took is
// how long what this end sends has been under way, and theirs the same of the other one.
func (c *cell) conclude(verified int, took time.Duration) (theirs time.Duration, err error) {
	if c.peer == nil {
		return 0, nil
	}
	mine := verdictBody{Verified: verified, Counter: c.counter(), Took: int64(took)}
	if err := c.peer.conn.Send(c.peer.steps, kindVerdict, mine); err != nil {
		return 0, err
	}
	var v verdictBody
	if err := c.peer.conn.Receive(c.peer.steps, kindVerdict, &v); err != nil {
		return 0, err
	}
	want := 0
	for _, f := range c.flows {
		if !c.p.Verify {
			continue
		}
		if !f.compares() {
			want += f.posted
		}
		if f.op.Atomic() && f.from != nil {
			if err := f.checkCounter(v.Counter); err != nil {
				return 0, err
			}
		}
	}
	if v.Verified != want {
		return 0, fmt.Errorf("%w: an end compared %d messages of %d", rendezvous.ErrProtocol, v.Verified,
			want)
	}
	c.result.Verified += v.Verified
	return time.Duration(v.Took), nil
}

// over ends the cell at the leading end, and takes in what the other one has counted.
func (c *cell) over() error {
	if err := c.peer.conn.Send(c.peer.steps, kindOver, nil); err != nil {
		return err
	}
	var theirs statsBody
	if err := c.peer.conn.Receive(c.peer.steps, kindStats, &theirs); err != nil {
		return err
	}
	clean(&theirs.Stats)
	c.result.Stats.B = theirs.Stats
	return nil
}
