package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/rendezvous"
	"ibverbx/verbs"
)

// layerColumnBody connects the ends of a scheme through a layer.
type layerColumnBody struct {
	Scheme Scheme      `json:"scheme"`
	Card   layers.Card `json:"card"`
}

// check says whether the memory is what the rounds will name.
func (b *layerColumnBody) check(p *Params, scheme Scheme, window, end int) error {
	if b.Scheme != scheme {
		return fmt.Errorf("%w: the peer connects column %.20q, this end %q", rendezvous.ErrProtocol, b.Scheme,
			scheme)
	}
	src, dst := p.bufferSizes(end, window)
	if err := b.Card.Regions.Check(src, dst); err != nil {
		return fmt.Errorf("%w: %w", rendezvous.ErrProtocol, err)
	}
	if at := b.Card.Regions.Dst.Addr(); at%8 != 0 {
		return fmt.Errorf("%w: the peer's target begins at %#x: its words need a multiple of 8",
			rendezvous.ErrProtocol, at)
	}
	return nil
}

// newHalfStack makes this process's end of a column.
func (r *runner) newHalfStack(s Scheme, devices []verbs.Device) (*stack, error) {
	half, end := &stack{scheme: s}, 1
	if r.peer.leads {
		end = 0
	}
	var err error
	cfg := r.p.endConfig(s, devices, r.mem, end)
	half.ends[end], err = layers.New(&cfg)
	return half, err
}

// connectStack exchanges cards and memory with the other process. Both are connected when it
// returns.
func (r *runner) connectStack(s *stack) error {
	here, other := s.here()
	conn := r.peer.conn
	card, err := here.Card()
	if err != nil {
		return err
	}
	if err := conn.Send(r.ctx, kindColumn, layerColumnBody{Scheme: s.scheme, Card: card}); err != nil {
		return err
	}
	var theirs layerColumnBody
	if err := conn.Receive(r.ctx, kindColumn, &theirs); err != nil {
		return err
	}
	if err := theirs.check(r.p, s.scheme, r.mem.window, other); err != nil {
		return err
	}
	if err := here.Connect(&theirs.Card); err != nil {
		return err
	}
	if err := conn.Send(r.ctx, kindConnected, nil); err != nil {
		return err
	}
	if err := conn.Receive(r.ctx, kindConnected, nil); err != nil {
		return err
	}
	return r.p.checkLongest(here)
}

// open agrees with the other process on the cell.
func (c *layerCell) open() error {
	if c.peer == nil {
		return nil
	}
	mine := cellBody{Size: c.result.Size, Scheme: c.stack.scheme, Counter: c.counter()}
	if err := c.peer.conn.Send(c.peer.steps, kindCell, mine); err != nil {
		return err
	}
	var theirs cellBody
	if err := c.peer.conn.Receive(c.peer.steps, kindCell, &theirs); err != nil {
		return err
	}
	return c.startCounters(theirs)
}

// counter is what this end's counter of atomics holds.
func (c *layerCell) counter() uint64 {
	_, other := c.stack.here()
	return c.counters[1-other]
}

// startCounters takes in what the other end's counter holds.
func (c *layerCell) startCounters(theirs cellBody) error {
	if theirs.Size != c.result.Size || theirs.Scheme != c.stack.scheme {
		return fmt.Errorf("%w: the peer measures %v with %.20q, this end %v with %q",
			rendezvous.ErrProtocol, theirs.Size, theirs.Scheme, c.result.Size, c.stack.scheme)
	}
	_, other := c.stack.here()
	c.counters[other] = theirs.Counter
	return nil
}

// begin begins a round with the other process. Receives are posted at this end.
func (c *layerCell) begin(n int, warmup bool) error {
	if c.peer == nil {
		return nil
	}
	c.told, c.heard, c.parting = false, false, nil
	if !c.peer.leads {
		return c.peer.conn.Send(c.peer.steps, kindReady, nil)
	}
	if err := c.peer.conn.Send(c.peer.steps, kindRound,
		roundBody{Messages: n, WarmUp: warmup, Endpoints: c.endpoints}); err != nil {
		return err
	}
	return c.peer.conn.Receive(c.peer.steps, kindReady, nil)
}

// playApart plays this end's part, and serves the other one until that is over too.
func (c *layerCell) playApart(ctx context.Context, n int, start time.Time) (time.Duration, error) {
	end, _ := c.stack.here()
	if c.p.Mode == Latency && c.peer.leads {
		if err := end.SeriesAsleep(ctx, c.take(n)); err != nil {
			return 0, cause(ctx, err)
		}
	}
	if err := end.Run(ctx, c.parted); err != nil || c.parting != nil {
		return 0, errors.Join(c.parting, cause(ctx, err))
	}
	if t := &c.tasks[c.at()]; t.Send == 0 {
		return 0, nil // what the clock of an end sees that sends nothing is conversation
	}
	return end.EndedAt().Sub(start), nil
}

// at is which end this process drives.
func (c *layerCell) at() int {
	_, other := c.stack.here()
	return 1 - other
}

// parted tells the other process that this end is over, and says whether it has said so too.
func (c *layerCell) parted() bool {
	if c.heard || c.parting != nil {
		return true // a wait may ask once more
	}
	if !c.told {
		c.told = true
		if c.parting = c.peer.conn.Send(c.peer.steps, kindDone,
			doneBody{c.tasks[c.at()].Send}); c.parting != nil {
			return true
		}
	}
	select {
	case m := <-c.peer.conn.Inbox():
		c.watch.feed()
		c.heard, c.parting = true, c.hear(&m)
	default:
	}
	return c.heard
}

// hear takes in that the other end is over.
func (c *layerCell) hear(m *rendezvous.Message) error {
	if err := m.Expect(kindDone); err != nil {
		return err
	}
	var done doneBody
	if err := m.Decode(&done); err != nil {
		return err
	}
	if want := c.tasks[1-c.at()].Send; done.Posted != want {
		return fmt.Errorf("%w: an end says that it sent %d messages in a round of %d", rendezvous.ErrProtocol,
			done.Posted, want)
	}
	return nil
}

// conclude ends a round with the other process: what came has been compared at both ends. took is
// how long what this end sends has been under way, and theirs the same of the other one.
func (c *layerCell) conclude(n, verified int, took time.Duration) (theirs time.Duration, err error) {
	if c.peer == nil {
		return 0, nil
	}
	counter := uint64(0)
	if end, _ := c.stack.here(); c.shape.Atomic {
		counter = end.Counter()
	}
	if err := c.peer.conn.Send(c.peer.steps, kindVerdict, verdictBody{Verified: verified, Counter: counter,
		Took: int64(took)}); err != nil {
		return 0, err
	}
	var v verdictBody
	if err := c.peer.conn.Receive(c.peer.steps, kindVerdict, &v); err != nil {
		return 0, err
	}
	want, other := 0, 1-c.at()
	for end := range c.tasks {
		if c.p.Verify && c.sends(end) && c.compares(end) == other {
			want += n
		}
	}
	if v.Verified != want {
		return 0, fmt.Errorf("%w: an end compared %d messages of %d", rendezvous.ErrProtocol, v.Verified,
			want)
	}
	c.result.Verified += v.Verified
	if c.shape.Atomic && c.sends(1-other) {
		if err := c.checkCounter(other, v.Counter); err != nil {
			return 0, err
		}
	}
	return time.Duration(v.Took), nil
}

// over ends the cell at the leading end, and takes in what the other one has counted.
func (c *layerCell) over() error {
	if err := c.peer.conn.Send(c.peer.steps, kindOver, nil); err != nil {
		return err
	}
	var theirs layerStatsBody
	if err := c.peer.conn.Receive(c.peer.steps, kindStats, &theirs); err != nil {
		return err
	}
	c.result.Transport = &TransportStats{B: theirs.Transport}
	return nil
}

// layerStatsBody is what the following end has counted through a layer.
type layerStatsBody struct {
	Transport TransportCounts `json:"transport"`
}

// follow does the rounds that the leading end asks for.
func (c *layerCell) follow() error {
	before := c.stats()
	for {
		m, err := c.peer.conn.ReceiveAny(c.peer.steps, kindRound, kindOver)
		if err != nil {
			return err
		}
		if m.Kind == kindOver {
			now := c.stats()
			return c.peer.conn.Send(c.peer.steps, kindStats, layerStatsBody{now.B.since(&before.B)})
		}
		var b roundBody
		if err := m.Decode(&b); err != nil {
			return err
		}
		if longest := c.mem.slots(c.size); b.Messages < 1 || b.Messages > longest {
			return fmt.Errorf("%w: a round of %d messages: must be 1 to %d", rendezvous.ErrProtocol,
				b.Messages, longest)
		}
		if b.Endpoints < 1 || b.Endpoints > c.p.Endpoints {
			return fmt.Errorf("%w: a round over %d endpoints: must be 1 to %d", rendezvous.ErrProtocol,
				b.Endpoints, c.p.Endpoints)
		}
		c.endpoints = b.Endpoints
		if _, err := c.round(b.Messages, b.WarmUp); err != nil {
			c.stack.failed = true
			return fmt.Errorf("%s, %v: %w", c.stack.scheme, c.result.Size, err)
		}
	}
}

func (c *layerCell) deadlineApart(n int) (context.Context, *watchdog, context.CancelFunc) {
	d := patience(c.p, c.peer.conn.Timeout(), c.size)
	if t := c.task(c.at(), n, 0); t.Send+t.Take == 0 { // it sees nothing of the round
		d = passivePatience(c.peer.conn.Timeout(), n, c.size, c.rate)
	}
	ctx, stop := c.peer.watch(c.sends(c.at()))
	ctx, w, cancel := watched(ctx, d)
	return ctx, w, func() { cancel(); stop() }
}
