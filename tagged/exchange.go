package tagged

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"ibverbx/internal/collective"
)

// exchange carries out the collective calls of a team at one rank. Package collective says which
// messages a call takes, and in what order. Between two ranks they arrive in the order of sending,
// and the receives of a call are posted in that order, so all messages of a call have one tag.
//
// Several calls may be under way. Whoever completes a request of one sets teams.due, and drive
// carries out what can be done now: in progress, or in a call of the program, whichever comes
// first. Ranks are those of the team, but in texts.
//
// Invariant: calls are in the order of their steps, and the first and the last are less than
// mostUnderWay steps apart. Once stopped is set no call is under way, and none begins. teams.mu
// guards all that is neither atomic nor says otherwise.
type exchange struct {
	*teams
	t        *Team
	blocking atomic.Bool // a goroutine is in a blocking call
	unsent   atomic.Bool // that the calls have ended may not have reached the other ranks

	stopped error  // why no call works any more, without the name of one
	err     error  // the same with the name of the first call that it has ended
	over    bool   // stopped is set; Worker.mu guards it
	base    uint64 // the step before the first: not 0 if there is only one call, to shrink a team
	record  collective.Record[ticket]
	cache   collective.Cache
	parties []party // by rank
	calls   []*flight
	spare   []*flight
	one     [1][]byte

	notes     *Request // receives the next note
	note      [maxNote]byte
	questions []question
	rolls     []*roll // those under way
}

// party is another rank, as the exchange sees it.
type party struct {
	ep    *Endpoint
	asked uint64 // the step in which this rank last asked it
}

// flight is a collective call under way.
//
// Invariant: waiting has the sends and receives of the run that have begun and are not done.
type flight struct {
	call
	req      *Request // done when the call is
	step     uint64
	ticket   ticket
	tag      uint64 // of its messages
	run      collective.Run
	dst, src []byte
	own      [2][]int  // memory for counts and receives
	tmp      *Region   // scratch memory
	lands    []*Region // by rank, where messages arrive that are to be combined
	pinned   [2]*Region
	unit     int // bytes of what the schedule counts
	land     int // bytes of each of lands
	waiting  []begun
	look     time.Time // when to find out why nothing happens; zero after something has
	odd      time.Time // when to give up on a rank that has sent something else, and does not say what
}

// begun is a step of a run that is under way.
type begun struct {
	req  *Request
	step int
}

const (
	// depth is how many messages from one rank to another are under way at once in a call, and
	// pieceSize the longest of them in bytes. An all-reduce of 1 MiB of 4 ranks in one process
	// takes 1.03 ms in pieces of 64 KiB, 0.77 ms of 128 KiB, 0.67 ms of 256 KiB, and 0.86 ms of 512
	// KiB; it takes 0.93 ms at half the depth.
	depth     = 4
	pieceSize = 256 << 10
	// The network as collective.Choose takes it, in bytes: see package shmem. All ranks must use
	// the same numbers.
	latency  = 24 << 10
	overhead = 16 << 10
	// patience is long for a rank that is in the same call, and short for a person.
	patience = 50 * time.Millisecond
	// mostUnderWay is the most collective calls of a team under way: a tag has the step modulo
	// tagSteps, which must tell those that another rank may be ahead from those that it is behind.
	mostUnderWay = tagSteps/2 - 1
)

// init makes what calls need, and receives notes from now on, so that a rank that has made no call
// yet answers.
func (x *exchange) init() {
	x.mu.Lock()
	defer x.release()
	x.parties = make([]party, x.t.Size())
	x.active = append(x.active, x)
	x.readNotes()
}

// most is how many calls of all teams are under way at most. The places of the window that a rank
// gives another must hold what that rank, being ahead, sends in all of its calls: otherwise they
// could fill up before the message that this rank waits for.
func (s *teams) most() int { return max(s.w.cfg.MaxUnexpected/(2*depth), 1) }

// retire ends the calls for good, because of err, and tells the other ranks if any is under way, or
// if tell is set.
func (x *exchange) retire(err error, tell bool) {
	x.mu.Lock()
	defer x.release()
	switch {
	case x.stopped != nil:
	case len(x.calls) != 0:
		x.fail(x.calls[0], stopGaveUp, err)
	case tell:
		x.stop(stopGaveUp, x.t.rank, err, "shrink", x.record.Step+1)
	default:
		x.stopped = err
		x.w.mu.Lock()
		x.over = true
		x.w.mu.Unlock()
	}
	x.notes.Cancel()
	x.notes.Free()
	x.notes = nil
	x.active = slices.DeleteFunc(x.active, func(other *exchange) bool { return other == x })
	for _, f := range x.spare {
		for _, r := range append(f.lands, f.tmp) {
			if r != nil {
				_ = r.Close() // refused while a failed call uses it: then it ends with the worker
			}
		}
	}
	x.spare = nil
}

// begin starts the run of a call.
func (x *exchange) begin(c *flight) error {
	s := collective.Shape{Kind: c.kind, Ranks: x.t.Size(), Rank: x.t.rank, Root: c.root,
		Count: c.n * c.of.Size(), Piece: pieceSize, Depth: depth, InPlace: c.inPlace}
	s.Ordered = c.op == opFunc && c.reduces()
	if c.unequal {
		s.Count = sum(c.counts) * c.of.Size() / s.Ranks
	}
	s.Algorithm = collective.Choose(&s, collective.Network{Latency: latency, Overhead: overhead})
	c.unit = c.of.Size()
	cuts := c.kind == collective.AllReduce &&
		(s.Algorithm == collective.Ring || s.Algorithm == collective.Halving)
	if n := s.Count; n != 0 && n <= pieceSize && !cuts && !c.unequal { // few schedules serve all short calls
		c.unit, s.Count = n, 1
		s.Piece = 1 << min(bits.Len(uint(pieceSize/n))-1, bits.Len(uint(s.Ranks)))
	} else {
		s.Count, s.Piece = c.n, pieceSize/c.of.Size()
	}
	if c.unequal {
		c.unequalShape(&s)
	}
	c.land = depth * s.Piece * c.unit
	schedule, err := x.cache.Schedule(&s)
	if err != nil {
		return err
	}
	if err := x.grow(&c.tmp, schedule.Tmp*c.unit); err != nil {
		return err
	}
	c.run.Start(schedule)
	if min(s.Piece*c.unit, max(len(c.dst), len(c.src))) > x.w.cfg.EagerLimit {
		c.pinned = [2]*Region{x.pin(c.dst, ForSends|ForReceives), x.pin(c.src, ForSends)}
	}
	return nil
}

// grow makes a region of the exchange at least n bytes long. No request uses it.
func (x *exchange) grow(r **Region, n int) (err error) {
	if n == 0 || *r != nil && len((*r).buf) >= n {
		return nil
	}
	if *r != nil {
		if err := (*r).Close(); err != nil {
			return err
		}
	}
	*r, err = x.w.Alloc(1 << bits.Len(uint(n-1)))
	return err
}

// pin registers memory of the program for a call with long messages, once for all of them, unless
// it is in a region. If that fails, each message registers its own.
func (x *exchange) pin(buf []byte, use Use) *Region {
	if len(buf) == 0 {
		return nil
	}
	x.w.mu.Lock()
	in, _ := x.w.regions.find(buf, use)
	x.w.mu.Unlock()
	if in != nil {
		return nil
	}
	r, err := x.w.RegisterFor(use, buf)
	if err != nil {
		return nil
	}
	return r
}

// end completes a call. After an error a request of it may use the program's memory until
// Worker.Close.
func (x *exchange) end(c *flight, err error) {
	for i, r := range c.pinned {
		if r != nil {
			_ = r.Close()
		}
		c.pinned[i] = nil
	}
	x.w.mu.Lock()
	c.req.complete(err)
	x.w.mu.Unlock()
	x.underWay--
	c.call, c.req, c.dst, c.src = call{}, nil, nil, nil
	x.spare = append(x.spare, c)
}

// memory returns a range of the program's memory, or of that of the exchange.
func (c *flight) memory(r collective.Range, peer int) []byte {
	var m []byte
	switch r.Buffer {
	case collective.Src:
		m = c.src
	case collective.Dst:
		m = c.dst
	case collective.Tmp:
		m = c.tmp.buf
	case collective.Land:
		m = c.lands[peer].buf
	}
	return m[r.Off*c.unit : (r.Off+r.Len)*c.unit]
}

// advanceAll reads the notes and advances all calls.
func (x *exchange) advanceAll() {
	x.readNotes()
	for i := 0; i < len(x.calls); { // none is left after an error
		c := x.calls[i]
		if done := x.advance(c); !done {
			i++
		} else if len(x.calls) != 0 {
			x.calls = slices.Delete(x.calls, i, i+1)
			x.end(c, nil)
		}
	}
}

// advance carries out the steps of a call that need not wait, and reports whether all are done. If
// the call fails, all end.
func (x *exchange) advance(c *flight) (done bool) {
	if !x.reap(c) {
		return true
	}
	for i, ok := c.run.Next(); ok; i, ok = c.run.Next() {
		switch s := c.run.Step(i); s.Action {
		case collective.Combine:
			c.combine(c, c.memory(s.To, s.Peer), c.memory(s.From, s.Peer), c.memory(s.With, s.Peer))
			c.run.Done(i)
		case collective.Copy:
			copy(c.memory(s.To, s.Peer), c.memory(s.From, s.Peer))
			c.run.Done(i)
		default:
			if err := x.post(c, i, s); err != nil {
				x.fail(c, stopFailed, err)
				return true
			}
		}
	}
	return c.run.Finished()
}

// reap ends the sends and receives of a call that are done. It returns false if one has failed.
func (x *exchange) reap(c *flight) bool {
	for k := 0; k < len(c.waiting); {
		b := c.waiting[k]
		if !b.req.Done() {
			k++
			continue
		}
		c.waiting = slices.Delete(c.waiting, k, k+1)
		if why, err := x.done(c, b); err != nil {
			x.fail(c, why, err)
			return false
		}
		c.look = time.Time{}
	}
	return true
}

// done ends a send or a receive.
func (x *exchange) done(c *flight, b begun) (why byte, err error) {
	s := c.run.Step(b.step)
	err, n := b.req.Err(), b.req.Info().Length
	b.req.Free()
	switch {
	case err != nil && !errors.Is(err, ErrTruncated):
		return stopFailed, err
	case s.Action == collective.Receive && n != s.To.Len*c.unit:
		return stopMismatch, fmt.Errorf("%w: rank %d has sent %d bytes in place of %d", ErrMismatch,
			x.t.world(s.Peer), n, s.To.Len*c.unit)
	}
	c.run.Done(b.step)
	return 0, nil
}

// post begins a send or a receive.
func (x *exchange) post(c *flight, i int, s *collective.Step) (err error) {
	p := &x.parties[s.Peer]
	if p.ep == nil {
		if p.ep, err = x.t.Peer(s.Peer); err != nil {
			return err
		}
	}
	tag := c.tag
	var r *Request
	if s.Action == collective.Send {
		x.one[0] = c.memory(s.From, s.Peer)
		if r, err = p.ep.send(opCollective, tag, x.one[:], false); r == nil && err == nil {
			c.run.Done(i)
		}
	} else {
		if s.To.Buffer == collective.Land {
			if err = x.grow(&c.lands[s.Peer], c.land); err != nil {
				return err
			}
		}
		r, err = x.receive(p.ep, tag, c.memory(s.To, s.Peer))
	}
	x.one[0] = nil
	if r != nil {
		c.waiting = append(c.waiting, begun{r, i})
	}
	return err
}

// opCollective is the operation of the sends of an exchange, which have tags of their own.
const opCollective = "collective call"

// receive posts a receive, of one rank or of any.
func (x *exchange) receive(from *Endpoint, tag uint64, buf []byte) (*Request, error) {
	w := x.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, refuse(opCollective, ErrClosed, "")
	}
	x.one[0] = buf
	r := w.newRequest(tag, x.one[:], len(buf))
	x.one[0] = nil
	return w.post(r, from, false, Exact)
}

// finish waits for a call, and ends it if ctx does.
func (x *exchange) finish(ctx context.Context, r *Request) error {
	err := x.w.tw.WaitFor(ctx, lookInterval, r.poll)
	if !r.Done() {
		x.giveUp(ctx, r, err)
	}
	if err = r.Err(); err != nil {
		x.flush()
	}
	return err
}

// wait is Request.Wait of a call, which goes on when ctx ends.
func (x *exchange) wait(ctx context.Context, r *Request) error {
	err := x.w.tw.WaitFor(ctx, lookInterval, r.poll)
	if r.Done() {
		if err = r.Err(); err != nil {
			x.flush()
		}
		return err
	}
	x.mu.Lock()
	defer x.release()
	if c := x.callOf(r); c != nil {
		name, step := c.name(), c.step
		err = x.callError(name, step, x.late(ctx, r, err))
	}
	if r.Done() { // while this rank asked for those that are late
		return r.Err()
	}
	return &InterruptedError{Req: r, Err: within{err}}
}

// giveUp ends the call of a request, unless it is done.
func (x *exchange) giveUp(ctx context.Context, r *Request, err error) {
	x.mu.Lock()
	defer x.release()
	if x.callOf(r) == nil {
		return
	}
	why := byte(stopFailed)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		why = stopGaveUp
	}
	err = x.late(ctx, r, err)
	if c := x.callOf(r); c != nil {
		x.fail(c, why, err)
	}
}

// callOf returns the call of a request; nil if it is done.
func (x *exchange) callOf(r *Request) *flight {
	for _, c := range x.calls {
		if c.req == r {
			return c
		}
	}
	return nil
}
