package tagged

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
)

// exchange carries out the collective calls of a rank. Package collective says which messages a
// call takes, and in what order. Between two ranks they arrive in the order of sending, and the
// receives are posted in that order, so the tag of all messages of a call is its ticket.
//
// Invariant: waiting has the sends and receives of the run that have begun and are not done. Once
// err is set no call works any more. A call holds mu.
type exchange struct {
	mu      sync.Mutex
	w       *Worker
	err     error
	over    bool // err is set; Worker.mu guards it
	record  collective.Record[ticket]
	cache   collective.Cache
	parties []party // by rank; nil before the first call

	call     call
	run      collective.Run
	dst, src []byte
	tmp      *Region // scratch memory
	pinned   [2]*Region
	unit     int // bytes of what the schedule counts
	land     int // bytes of a party's land
	one      [1][]byte
	waiting  []begun
	moved    func() bool // anyMoved, made once
	polls    int
	patience time.Duration // after which a call looks whether the ranks that it waits for make another
	look     time.Time     // when it does so next

	notes     *Request // receives the next note
	note      [maxNote]byte
	questions []question
}

// party is another rank, as the exchange sees it.
type party struct {
	ep    *Endpoint
	land  *Region // where messages arrive that are to be combined
	asked uint64  // the step in which this rank last asked it
}

// begun is a step of the run that is under way.
type begun struct {
	req  *Request
	step int
}

const (
	// depth is how many messages from one rank to another are under way at once, and pieceSize the
	// longest of them in bytes. An all-reduce of 1 MiB of 4 ranks in one process takes 1.03 ms in
	// pieces of 64 KiB, 0.77 ms of 128 KiB, 0.67 ms of 256 KiB, and 0.86 ms of 512 KiB; it takes
	// 0.93 ms at half the depth.
	depth     = 4
	pieceSize = 256 << 10
	// The network as collective.Choose takes it, in bytes: see package shmem. All ranks must use
	// the same numbers.
	latency  = 24 << 10
	overhead = 16 << 10
	// patience is long for a rank that is in the same call, and short for a person.
	patience = 50 * time.Millisecond
)

// begin starts the run of a call.
func (x *exchange) begin(c *call, dst, src []byte) error {
	if x.parties == nil {
		x.parties, x.patience = make([]party, x.w.cfg.Size), cmp.Or(x.patience, patience)
		x.moved = x.anyMoved
	}
	x.call, x.dst, x.src = *c, dst, src
	x.add(c)
	x.polls, x.look = 0, time.Time{}
	s := collective.Shape{Kind: c.kind, Ranks: x.w.cfg.Size, Rank: x.w.cfg.Rank, Root: c.root,
		Count: c.n * c.of.Size(), Piece: pieceSize, Depth: depth, InPlace: c.inPlace}
	s.Algorithm = collective.Choose(&s, collective.Network{Latency: latency, Overhead: overhead})
	x.unit = c.of.Size()
	cuts := c.kind == collective.AllReduce &&
		(s.Algorithm == collective.Ring || s.Algorithm == collective.Halving)
	if n := s.Count; n != 0 && n <= pieceSize && !cuts { // few schedules serve all short calls
		x.unit, s.Count = n, 1
		s.Piece = 1 << min(bits.Len(uint(pieceSize/n))-1, bits.Len(uint(s.Ranks)))
	} else {
		s.Count, s.Piece = c.n, pieceSize/c.of.Size()
	}
	x.land = depth * s.Piece * x.unit
	schedule, err := x.cache.Schedule(&s)
	if err != nil {
		return err
	}
	if err := x.grow(&x.tmp, schedule.Tmp*x.unit); err != nil {
		return err
	}
	x.run.Start(schedule)
	if min(s.Piece*x.unit, max(len(dst), len(src))) > x.w.cfg.EagerLimit {
		x.pinned = [2]*Region{x.pin(dst, ForSends|ForReceives), x.pin(src, ForSends)}
	}
	return x.readNotes()
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

// unpin ends what pin has begun. After an error a request may be under way: then Worker.Close does.
func (x *exchange) unpin() {
	x.dst, x.src = nil, nil
	for i, r := range x.pinned {
		if r != nil {
			_ = r.Close()
		}
		x.pinned[i] = nil
	}
}

// memory returns a range of the program's memory, or of that of the exchange.
func (x *exchange) memory(r collective.Range, peer int) []byte {
	var m []byte
	switch r.Buffer {
	case collective.Src:
		m = x.src
	case collective.Dst:
		m = x.dst
	case collective.Tmp:
		m = x.tmp.buf
	case collective.Land:
		m = x.parties[peer].land.buf
	}
	return m[r.Off*x.unit : (r.Off+r.Len)*x.unit]
}

// advance carries out steps until a combination is next, whose step it returns, or until all are
// done, when it returns -1.
func (x *exchange) advance(ctx context.Context) (combine int, err error) {
	for {
		for i, ok := x.run.Next(); ok; i, ok = x.run.Next() {
			switch s := x.run.Step(i); s.Action {
			case collective.Combine:
				return i, nil
			case collective.Copy:
				copy(x.memory(s.To, s.Peer), x.memory(s.From, s.Peer))
				x.run.Done(i)
			default:
				if err := x.post(i, s); err != nil {
					return -1, x.fail(stopFailed, err)
				}
			}
		}
		if x.run.Finished() {
			return -1, nil
		}
		if err := x.await(ctx); err != nil {
			return -1, err
		}
	}
}

// post begins a send or a receive.
func (x *exchange) post(i int, s *collective.Step) (err error) {
	p := &x.parties[s.Peer]
	if p.ep == nil {
		if p.ep, err = x.w.Peer(s.Peer); err != nil {
			return err
		}
	}
	tag := uint64(x.record.Last())
	var r *Request
	if s.Action == collective.Send {
		x.one[0] = x.memory(s.From, s.Peer)
		if r, err = p.ep.send(opCollective, tag, x.one[:], false); r == nil && err == nil {
			x.run.Done(i)
		}
	} else {
		if s.To.Buffer == collective.Land {
			if err = x.grow(&p.land, x.land); err != nil {
				return err
			}
		}
		r, err = x.receive(p.ep, tag, x.memory(s.To, s.Peer))
	}
	x.one[0] = nil
	if r != nil {
		x.waiting = append(x.waiting, begun{r, i})
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

// anyMoved reports whether the call can go on, or should look why it cannot.
func (x *exchange) anyMoved() bool {
	for i := range x.waiting {
		if x.waiting[i].req.Done() {
			return true
		}
	}
	if x.polls++; x.polls&63 == 0 && time.Now().After(x.look) {
		return true
	}
	return x.notes.Done()
}

// await waits until a step is done.
func (x *exchange) await(ctx context.Context) error {
	if x.look.IsZero() {
		x.look = time.Now().Add(x.patience)
	}
	err := x.w.tw.WaitFor(ctx, lookInterval, x.moved)
	if x.notes.Done() {
		if err := x.readNotes(); err != nil {
			return err
		}
	}
	done := 0
	for k := 0; k < len(x.waiting); {
		if !x.waiting[k].req.Done() {
			k++
			continue
		}
		b := x.waiting[k]
		x.waiting = slices.Delete(x.waiting, k, k+1)
		if err := x.done(b); err != nil {
			return err
		}
		done++
	}
	switch {
	case done != 0:
		x.look = time.Time{}
		return nil
	case err != nil:
		return x.late(ctx, err)
	case time.Now().After(x.look):
		x.look = time.Now().Add(x.patience)
		return x.compare()
	}
	return nil
}

// done ends a send or a receive.
func (x *exchange) done(b begun) error {
	s := x.run.Step(b.step)
	err, n := b.req.Err(), b.req.Info().Length
	b.req.Free()
	switch {
	case err != nil && !errors.Is(err, ErrTruncated):
		return x.fail(stopFailed, err)
	case s.Action == collective.Receive && n != s.To.Len*x.unit:
		return x.fail(stopMismatch, fmt.Errorf("%w: rank %d has sent %d bytes in place of %d", ErrMismatch,
			s.Peer, n, s.To.Len*x.unit))
	}
	x.run.Done(b.step)
	return nil
}

// late returns the error of a call whose context has ended, with the ranks that it waits for.
func (x *exchange) late(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) {
		return x.fail(stopFailed, err)
	}
	return x.fail(stopGaveUp, fmt.Errorf("%w: %s", errwrap.ContextErr(ctx), x.awaited()))
}

// awaited says which ranks the call waits for.
func (x *exchange) awaited() string {
	return roster.Late("rank", x.w.cfg.Size, func(rank int) bool {
		return slices.ContainsFunc(x.waiting, func(b begun) bool { return x.run.Step(b.step).Peer == rank })
	}, "is awaited", "are awaited")
}
