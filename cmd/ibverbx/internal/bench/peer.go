package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/rendezvous"
)

// peer is the process that drives the other end, and the conversation with it.
type peer struct {
	conn  *rendezvous.Conn
	leads bool // this process drives end a and decides, the other one follows
	// steps bounds what needs an answer: it ends soon after the user has asked for the end
	// of the run.
	steps context.Context
}

// flushPatience is how long the NICs have to report what becomes of requests to a peer that has
// gone: longer than their retries take.
const flushPatience = 5 * time.Second

// watch is a context that ends with the peer. Requests to it get the time to fail first, so that
// the error has what the queue pair reports.
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

// open agrees with the other process on the cell, of which a sample is taken.
func (c *cell) open() error {
	c.readCounters() // other columns have changed them
	if c.peer == nil {
		return nil
	}
	if err := c.peer.conn.Send(c.peer.steps, kindCell, c.body()); err != nil {
		return err
	}
	var theirs cellBody
	if err := c.peer.conn.Receive(c.peer.steps, kindCell, &theirs); err != nil {
		return err
	}
	return c.startCounters(theirs)
}

// body describes the cell to the other process.
func (c *cell) body() cellBody {
	return cellBody{Size: c.result.Size, Scheme: c.pair.scheme, Counter: c.counter()}
}

// counter is what the counter of atomics at this end holds.
func (c *cell) counter() uint64 {
	if end, _ := c.pair.here(); c.p.Op.Atomic() {
		return end.Counter()
	}
	return 0
}

// startCounters takes over what the other end's counter holds.
func (c *cell) startCounters(theirs cellBody) error {
	if theirs.Size != c.result.Size || theirs.Scheme != c.pair.scheme {
		return fmt.Errorf("%w: the peer measures %v with %.20q, this end %v with %q", rendezvous.ErrProtocol,
			theirs.Size, theirs.Scheme, c.result.Size, c.pair.scheme)
	}
	_, at := c.pair.here()
	c.counters[1-at] = theirs.Counter
	return nil
}

// begin begins a round with the other process: receives are posted before anything is sent.
func (c *cell) begin(n int, warmup bool) error {
	if c.peer == nil {
		return nil
	}
	if !c.peer.leads {
		return c.peer.conn.Send(c.peer.steps, kindReady, nil)
	}
	if err := c.peer.conn.Send(c.peer.steps, kindRound,
		roundBody{Messages: n, WarmUp: warmup}); err != nil {
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
	if err := c.peer.conn.Send(c.peer.steps, kindVerdict,
		verdictBody{Verified: verified, Counter: c.counter(), Took: int64(took)}); err != nil {
		return 0, err
	}
	var v verdictBody
	if err := c.peer.conn.Receive(c.peer.steps, kindVerdict, &v); err != nil {
		return 0, err
	}
	_, at := c.pair.here()
	if c.p.Op.Atomic() && c.sends(at) {
		if err := c.checkCounter(1-at, v.Counter); err != nil {
			return 0, err
		}
	}
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

// over ends the cell at the leading end, and takes over what the other one has counted.
func (c *cell) over() error {
	if err := c.peer.conn.Send(c.peer.steps, kindOver, nil); err != nil {
		return err
	}
	var theirs statsBody
	if err := c.peer.conn.Receive(c.peer.steps, kindStats, &theirs); err != nil {
		return err
	}
	clean(&theirs.Stats)
	if !c.p.Layered() && theirs.Stats.Scheme != c.pair.scheme {
		return fmt.Errorf("%w: stats of %.20q, measured was %q", rendezvous.ErrProtocol, theirs.Stats.Scheme,
			c.pair.scheme)
	}
	c.result.Stats.B = theirs.Stats
	return nil
}

// errSilent reports that the peer did not acknowledge the report of a failure:
// it may be gone, or busy.
var errSilent = errors.New("the peer took no note of that in time")

// part tells the peer why this end gives up, ends the conversation, and returns the reason together
// with the peer's answer.
func (p *peer) part(why error) error {
	var said *rendezvous.PeerError
	if errors.As(why, &said) {
		_ = p.conn.Close()
		return why // the peer knows it already
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
