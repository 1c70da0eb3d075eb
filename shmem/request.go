package shmem

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/collective"
)

// arguments is a collective call as a PE makes it.
type arguments struct {
	op       string
	kind     kind
	shape    shape // what the PEs compare
	part     part  // what to carry out: all of it
	src, dst []byte
	// counts has the lengths of unequal blocks in bytes, of an all-to-all those that are sent, and
	// then those that are received; nil for equal ones.
	counts  [2][]int
	combine func(to, a, b []byte) // nil if it combines nothing
	err     error                 // what is wrong with the arguments
}

// Request is a collective call under way, which one of the functions named Start has begun. It owns
// the memory of the call until it is done. Its methods may be called from any goroutine.
//
// Invariant: busy has the ranks for which a step waits, once each. leaving has the sends that have
// been posted from memory of the program and are not done.
type Request struct {
	arguments
	pe      *PE
	team    *Team
	step    uint64 // the number of the call in its team
	tag     tag
	rounds  rounds // of a barrier by words
	plan    plan
	run     collective.Run
	left    int // bytes of the vector, or of each block, that later parts cover
	lines   []line
	busy    []int
	leaving []leaving
	tmp     []uint64 // scratch memory
	pinned  [2]pinned

	broken bool // it ends, and sends no more
	done   atomic.Bool
	end    error // set before done
}

// line is what a call sends to one peer, and receives from it.
type line struct {
	sends, receives int    // messages that are still to be posted, and to be opened, in this part
	out, in         begun  // sends that wait for room, and receives that wait for their message
	base            uint64 // messages of the peer that were opened before this part
}

func (l *line) waits() bool { return l.out.n+l.in.n != 0 }

// leaving is a send whose memory the NICs still read.
type leaving struct {
	step int
	call *call
}

// pinned is memory of the program that is registered for one call.
type pinned struct {
	buf []byte
	mr  *ibverbx.MR // nil if it is not
}

// Done reports whether the call has ended, with or without an error, so that the program owns its
// memory again. A program that polls calls [PE.Progress] until then.
func (r *Request) Done() bool { return r.done.Load() }

// Err returns the error with which the call ended; nil while it goes on, and after success.
func (r *Request) Err() error {
	if !r.done.Load() {
		return nil
	}
	return r.end
}

// Wait makes progress until the call is done, and returns its error. If ctx ends first, the error
// names the PEs that have not entered the call, which goes on: Wait can be called again.
func (r *Request) Wait(ctx context.Context) error {
	if err := needContext(r.op, ctx); err != nil {
		return err
	}
	if err := r.pe.watch(ctx, r); !r.done.Load() {
		return err
	}
	if r.end != nil {
		return r.end
	}
	return r.pe.flushLocal(ctx, r.op, r.team)
}

// Free returns a request that is done for use by another call, so that starting calls allocates
// nothing. Do not use the request afterwards. Without it the garbage collector takes the request.
// One that is not done stays as it is.
func (r *Request) Free() {
	x := &r.pe.exchange
	r.pe.lock()
	defer x.mu.Unlock()
	if r.done.Load() && r.end == nil {
		x.spare = append(x.spare, r)
	}
}

// collect makes a collective call and waits for its end.
func collect(ctx context.Context, t *Team, a arguments) error {
	if err := t.enter(a.op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if a.err != nil {
		return t.pe.refuse(ctx, a.kind, a.err)
	}
	return t.carryOut(ctx, &a)
}

// carryOut is collect with collective held.
func (t *Team) carryOut(ctx context.Context, a *arguments) error {
	r, err := t.begin(ctx, a)
	if err != nil {
		return err
	}
	return t.pe.finish(ctx, r)
}

// start begins a collective call, and does what can be done at once.
func start(t *Team, a arguments) (*Request, error) {
	if err := t.enter(a.op); err != nil {
		return nil, err
	}
	defer t.pe.collective.Unlock()
	ctx := context.Background()
	if a.err != nil {
		return nil, t.pe.refuse(ctx, a.kind, a.err)
	}
	r, err := t.begin(ctx, &a)
	if err != nil {
		return nil, err
	}
	t.pe.drive(ctx)
	t.pe.driveInBackground()
	return r, nil
}

// begin records a call, and adds it to those that are under way.
func (t *Team) begin(ctx context.Context, a *arguments) (*Request, error) {
	p, x := t.pe, &t.pe.exchange
	p.lock()
	defer x.mu.Unlock()
	if err := p.inStep(ctx, a.op); err != nil {
		return nil, err
	}
	if len(x.requests) == mostUnderWay {
		return nil, opError(a.op, fmt.Errorf("%w: %d calls are under way: wait for one", ErrBusy,
			len(x.requests)))
	}
	r := p.newRequest()
	r.arguments, r.team = *a, t
	r.tag = t.record.add(a.kind, a.shape)
	r.step = t.record.Step
	t.enterCall(r.step)
	if r.part.inPlace {
		copy(r.dst, r.src)
	}
	if r.kind == kindBarrier && t.isWorld() {
		number := p.syncs.Add(1)
		r.rounds = rounds{words: p.layout.rounds, number: number, mark: t.record.mark(number), distance: 1}
	} else {
		r.left = a.part.bytes
		err := p.startPart(r)
		if err != nil {
			return nil, p.ended(r, err)
		}
		r.pin()
	}
	x.requests = append(x.requests, r)
	x.under.Store(int32(len(x.requests)))
	return r, nil
}

// newRequest returns a request for a call. mu is held.
func (p *PE) newRequest() *Request {
	x := &p.exchange
	n := len(x.spare)
	if n == 0 {
		return &Request{pe: p, lines: make([]line, len(p.peers))}
	}
	r := x.spare[n-1]
	x.spare = x.spare[:n-1]
	clear(r.lines)
	r.busy, r.leaving, r.rounds, r.broken = r.busy[:0], r.leaving[:0], rounds{}, false
	r.done.Store(false)
	r.end = nil
	return r
}

// pin registers memory of a call that is sent in long messages, once for all of them, unless it is
// in the heap. If that fails, messages are copied.
func (r *Request) pin() {
	p := r.pe
	least := p.cfg.RegisterFrom
	if least < 0 || r.plan.unit*r.plan.schedule.Shape.Piece <= p.peers[p.id].bcopy && r.counts[0] == nil {
		return
	}
	for i, b := range [...][]byte{r.dst, r.src} {
		if _, in := within(p.heap, b); in || len(b) < least || i == 1 && collective.Overlap(r.dst, b) {
			continue
		}
		if mr, err := p.dom.Register(b, 0); err == nil {
			r.pinned[i] = pinned{b, mr}
		}
	}
}

// segment returns memory of the call as registered memory; the zero segment if it is not.
func (r *Request) segment(b []byte) ibverbx.Segment {
	if at, in := within(r.pe.heap, b); in {
		return r.pe.region.Slice(at, uint64(len(b)))
	}
	for i := range r.pinned {
		if at, in := within(r.pinned[i].buf, b); in && r.pinned[i].mr != nil {
			return r.pinned[i].mr.Slice(at, uint64(len(b)))
		}
	}
	return ibverbx.Segment{}
}

// reap ends the sends whose memory the NICs have read.
func (r *Request) reap() error {
	for k := 0; k < len(r.leaving); {
		l := r.leaving[k]
		if !l.call.comp.Fired() {
			k++
			continue
		}
		err := l.call.comp.Err()
		r.pe.putCall(l.call)
		r.leaving = slices.Delete(r.leaving, k, k+1)
		if err != nil {
			return r.team.members[r.run.Step(l.step).Peer].opError(r.op, err)
		}
		r.run.Done(l.step)
	}
	return nil
}

// waitsFor reports whether a step of the call waits for a peer.
func (r *Request) waitsFor(t *peer) bool {
	if r.rounds.words != 0 {
		return t == r.from()
	}
	rank := r.team.rankOf(t.id)
	return rank >= 0 && r.lines[rank].waits()
}

// lock takes the exchange's mutex. With a scheduler of the program's own it must not block.
func (p *PE) lock() {
	x := &p.exchange
	for p.cfg.Transport.Idle != nil {
		if x.mu.TryLock() {
			return
		}
		p.cfg.Transport.Idle()
	}
	x.mu.Lock()
}

// drive carries out what can be done now in the calls under way, and ends those that are done or
// have failed. If another goroutine does so, it returns.
func (p *PE) drive(ctx context.Context) {
	x := &p.exchange
	if x.under.Load() == 0 || !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	for range len(x.owing) {
		t := x.owing[0]
		x.owing = slices.Delete(x.owing, 0, 1)
		_ = t.settle() // the endpoint reports a peer that has failed
	}
	for i := 0; i < len(x.requests); {
		r := x.requests[i]
		why := p.broken(r)
		r.broken = why != nil // what has arrived still counts, but nothing more goes out
		done, err := p.advance(ctx, r)
		switch {
		case err != nil:
			p.endRequest(r, p.ended(r, err))
		case done:
			p.endRequest(r, nil)
		case why != nil:
			p.endRequest(r, why)
		default:
			i++
		}
	}
}

// broken returns why a call cannot be completed any more; nil if it may be.
func (p *PE) broken(r *Request) error {
	if w := p.mustStop(); w != 0 {
		return p.stopped(r.op, w)
	}
	if p.failed.err != nil && r.kind != kindClose {
		return opError(r.op, p.failed.gaveUp())
	}
	if p.gone.Load() != nil {
		if gone := r.team.gone(); gone != nil {
			return p.explain(r.op, opError(r.op, gone))
		}
	}
	return nil
}

// endRequest ends a call. mu is held.
func (p *PE) endRequest(r *Request, err error) {
	x := &p.exchange
	i := slices.Index(x.requests, r)
	x.requests = slices.Delete(x.requests, i, i+1)
	x.under.Store(int32(len(x.requests)))
	if err != nil {
		for _, t := range r.team.members {
			t.tear(r)
		}
	}
	for i, m := range r.pinned {
		if m.mr != nil {
			p.closeRegion(m.mr, len(r.leaving) == 0 && err == nil)
		}
		r.pinned[i] = pinned{}
	}
	r.src, r.dst, r.combine = nil, nil, nil
	r.end = err
	r.done.Store(true)
}

// watch waits until a call is done.
func (p *PE) watch(ctx context.Context, r *Request) error {
	v := watcher{p: p, ctx: ctx, op: r.op, r: r, step: p.cfg.Step}
	return v.watch(func() bool {
		p.drive(ctx)
		return r.done.Load()
	})
}

// finish waits for a call, and ends it if ctx does.
func (p *PE) finish(ctx context.Context, r *Request) error {
	x := &p.exchange
	err := p.watch(ctx, r)
	if !r.done.Load() {
		p.lock()
		if !r.done.Load() {
			p.endRequest(r, p.ended(r, err))
		}
		x.mu.Unlock()
	}
	if r.end != nil {
		return r.end
	}
	if err = p.flushLocal(ctx, r.op, r.team); err != nil {
		p.lock()
		err = p.ended(r, err)
		x.mu.Unlock()
	}
	r.Free()
	return err
}

// driveInBackground drives the calls under way in a goroutine, if the PE has one that makes
// progress.
func (p *PE) driveInBackground() {
	x := &p.exchange
	if !p.cfg.Background {
		return
	}
	p.lock()
	defer x.mu.Unlock()
	if x.driven || len(x.requests) == 0 {
		return
	}
	x.driven = true
	x.drivers.Go(func() {
		ctx := context.Background()
		for over := false; !over; {
			err := p.worker.WaitFor(ctx, p.cfg.Step, func() bool {
				p.drive(ctx)
				return x.under.Load() == 0
			})
			p.lock()
			if over = err != nil || len(x.requests) == 0; over {
				x.driven = false
			}
			x.mu.Unlock()
		}
	})
}

// closeRequests ends the calls under way, because the PE closes.
func (p *PE) closeRequests() {
	x := &p.exchange
	p.lock()
	for len(x.requests) != 0 {
		r := x.requests[0]
		p.endRequest(r, opError(r.op, ErrClosed))
	}
	x.mu.Unlock()
	x.drivers.Wait()
}
