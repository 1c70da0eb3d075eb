package shmem

import (
	"context"
	"math/bits"

	"ibverbx/internal/collective"
)

// Package collective says which messages a call takes, and in what order. An exchange carries them
// out through the mailboxes.

// exchange carries out the collective calls of a PE, of whichever team. It is guarded by
// PE.collective.
//
// Invariant: busy has the peers for which a step of the run waits, once each.
type exchange struct {
	run    collective.Run
	cache  collective.Cache
	busy   []*peer
	tmp    []uint64 // scratch memory
	window int      // the most units that one schedule covers
	shared bool     // the PEs share fewer processors: what costs time is the work of all of them
}

// part is what one schedule covers of a collective call: all of it, unless the call is long.
type part struct {
	kind    collective.Kind
	root    int // rank in the team
	bytes   int // of the vector, or of each block
	stride  int // from block to block, at least bytes
	ordered bool
	inPlace bool
}

// plan is how a part is carried out. The elements of its schedule are units: a message has one, or
// several if they are short. So few schedules serve all lengths.
type plan struct {
	part
	schedule *collective.Schedule
	unit     int // bytes; the last unit of a block has what is left
	block    int // units
}

// The network as Choose takes it, in bytes: measured over software NICs of one process. Two PEs
// that exchange 8 bytes take 5 µs, a PE is busy for 3.4 µs with one of many broadcasts, and one of
// 1 MiB goes at 5 GB/s. All PEs must use the same numbers, so these serve every provider.
const (
	latency  = 24 << 10
	overhead = 16 << 10
)

// defaultWindow bounds the memory of a schedule to about a MiB.
const defaultWindow = 512

// begin returns where a unit begins, and end where it ends, in bytes.
func (l *plan) begin(unit int) int { return unit/l.block*l.stride + min(unit%l.block*l.unit, l.bytes) }
func (l *plan) end(unit int) int {
	return unit/l.block*l.stride + min((unit%l.block+1)*l.unit, l.bytes)
}

// plan returns the plan for a part of a call of some kind. It is valid until the next one.
func (p *PE) plan(kind kind, c part) (l *plan, err error) {
	l = &p.in.plans[kind]
	if l.part == c && l.schedule != nil {
		return l, nil
	}
	s := collective.Shape{Kind: c.kind, Algorithm: p.algorithm(c), Ranks: p.in.Size(), Rank: p.in.rank,
		Root: c.root, Depth: depth, Ordered: c.ordered, InPlace: c.inPlace}
	*l = plan{part: c}
	l.cut(&s, int(p.layout.slot))
	l.schedule, err = p.exchange.cache.Schedule(&s)
	return l, err
}

// algorithm chooses the algorithm, from what all PEs agree on.
func (p *PE) algorithm(c part) collective.Algorithm {
	if c.stride != c.bytes { // those that never send several blocks in one message
		switch c.kind {
		case collective.AllGather:
			return collective.Ring
		case collective.Gather, collective.Scatter:
			return collective.Star
		}
		return collective.Pairwise
	}
	a := collective.Choose(&collective.Shape{Kind: c.kind, Ranks: p.in.Size(), Root: c.root, Count: c.bytes,
		Piece: int(p.layout.slot), Ordered: c.ordered},
		collective.Network{Latency: latency, Overhead: overhead})
	if p.exchange.shared && c.kind != collective.Scan && (a == collective.Doubling || a == collective.Chain) {
		return collective.Binomial // the same bits, with fewer messages in all
	}
	return a
}

// cut cuts the data into units, which are the same number in each part that the algorithm makes of
// a vector, and not longer than a slot.
func (l *plan) cut(s *collective.Shape, slot int) {
	parts := 1
	if s.Kind == collective.AllReduce {
		switch s.Algorithm {
		case collective.Ring:
			parts = s.Ranks
		case collective.Halving:
			parts = 1 << (bits.Len(uint(s.Ranks)) - 1)
		}
	}
	each := max((l.bytes+parts*slot-1)/(parts*slot), 1)
	l.block = parts * each
	l.unit = ((l.bytes+l.block-1)/l.block + blockAlign - 1) &^ (blockAlign - 1)
	s.Count, s.Piece = l.block, 1
	if each == 1 && l.stride == l.bytes && l.unit != 0 { // powers of two: few schedules
		s.Piece = min(1<<(bits.Len(uint(slot/l.unit))-1), 1<<bits.Len(uint(s.Ranks)))
	}
}

// work is a call that is being carried out, or the part of it that a plan covers.
type work struct {
	*plan
	op       string
	kind     kind
	tag      tag
	src, dst []byte // from the part on
	tmp      []byte
}

// memory returns a range of the caller's memory, or of the scratch memory.
func (w *work) memory(r collective.Range) []byte {
	var m []byte
	switch r.Buffer {
	case collective.Src:
		m = w.src
	case collective.Dst:
		m = w.dst
	case collective.Tmp:
		m = w.tmp
	}
	return m[w.begin(r.Off):w.end(r.Off+r.Len-1)]
}

// start begins the run of a part.
func (p *PE) start(w *work, c part) (err error) {
	if w.plan, err = p.plan(w.kind, c); err != nil {
		return err
	}
	x := &p.exchange
	x.run.Start(w.schedule)
	if n := w.schedule.Tmp; n != 0 {
		n = w.end(n - 1)
		if 8*len(x.tmp) < n {
			x.tmp = make([]uint64, (n+7)/8)
		}
		w.tmp = collective.Bytes(x.tmp)[:n]
	}
	return nil
}

// advance carries out steps until a combination is next, whose step it returns, or until all are
// done, when it returns -1.
func (p *PE) advance(ctx context.Context, w *work) (combine int, err error) {
	x := &p.exchange
	for {
		for i, ok := x.run.Next(); ok; i, ok = x.run.Next() {
			switch s := x.run.Step(i); s.Action {
			case collective.Combine:
				return i, nil
			case collective.Copy:
				copy(w.memory(s.To), w.memory(s.From))
				x.run.Done(i)
			default:
				if err := p.beginOrWait(ctx, w, i, s); err != nil {
					return -1, err
				}
			}
		}
		if x.run.Finished() {
			return -1, nil
		}
		if err := p.awaitCollective(ctx, w.op, nil, func() bool { return p.canServe() }); err != nil {
			return -1, err
		}
		if err := p.serve(ctx, w); err != nil {
			return -1, err
		}
	}
}

// beginOrWait carries out a send or receive, if it can be done now.
func (p *PE) beginOrWait(ctx context.Context, w *work, i int, s *collective.Step) error {
	t := p.in.members[s.Peer]
	if s.Action == collective.Send && t.out.n == 0 && t.hasRoom() {
		return p.deliver(ctx, w, t, i)
	}
	if s.Action == collective.Receive && t.in.n == 0 && t.hasNext() {
		return p.collect(ctx, w, t, i)
	}
	if !t.waits() {
		p.exchange.busy = append(p.exchange.busy, t)
	}
	if s.Action == collective.Send {
		t.out.add(i)
	} else {
		t.in.add(i)
	}
	return nil
}

// canServe reports whether a step that waits for a peer can be done.
func (p *PE) canServe() bool {
	for _, t := range p.exchange.busy {
		if t.in.n != 0 && t.hasNext() || t.out.n != 0 && t.hasRoom() {
			return true
		}
	}
	return false
}

// serve does the steps that need not wait any more. The NICs carry what it sends while it copies.
func (p *PE) serve(ctx context.Context, w *work) error {
	x := &p.exchange
	waiting := x.busy[:0]
	for _, t := range x.busy {
		for t.out.n != 0 && t.hasRoom() {
			if err := p.deliver(ctx, w, t, t.out.take()); err != nil {
				return err
			}
		}
		for t.in.n != 0 && t.hasNext() {
			if err := p.collect(ctx, w, t, t.in.take()); err != nil {
				return err
			}
		}
		if t.waits() {
			waiting = append(waiting, t)
		}
	}
	x.busy = waiting
	return nil
}

// deliver does a send.
func (p *PE) deliver(ctx context.Context, w *work, t *peer, i int) error {
	run := &p.exchange.run
	if err := t.post(ctx, w.op, w.tag, w.memory(run.Step(i).From)); err != nil {
		return err
	}
	run.Done(i)
	return nil
}

// collect does a receive. What is to be combined stays in its slot.
func (p *PE) collect(ctx context.Context, w *work, t *peer, i int) error {
	run := &p.exchange.run
	s := run.Step(i)
	t.base, t.more = t.opened-uint64(s.Number), run.More(i)
	slot, err := t.open(ctx, w.op, w.tag)
	if err != nil {
		return err
	}
	if s.To.Buffer != collective.Land {
		copy(w.memory(s.To), t.message(slot))
		if err := t.discard(ctx, w.op, slot); err != nil {
			return err
		}
	}
	run.Done(i)
	return nil
}

// abandon forgets the steps of a call that has failed.
func (p *PE) abandon() {
	for _, t := range p.exchange.busy {
		t.out, t.in = begun{}, begun{}
	}
	p.exchange.busy = p.exchange.busy[:0]
}

// carryOut carries out a call, of which c has the whole length. Values of type T are combined.
func carryOut[T Element](ctx context.Context, p *PE, w *work, c part, combine func(to, a, b []T)) error {
	length, left, most := c.bytes, c.bytes, p.exchange.window*int(p.layout.slot)
	blocks := c.kind >= collective.ReduceScatter && c.kind <= collective.AllToAll
	if blocks {
		most = max(p.exchange.window/p.in.Size(), 1) * int(p.layout.slot)
	}
	for {
		c.bytes = min(left, most)
		if c.stride = c.bytes; blocks {
			c.stride = length
		}
		if err := p.start(w, c); err != nil {
			return p.ended(w.op, w.kind, opError(w.op, err))
		}
		if err := steps(ctx, p, w, combine); err != nil {
			p.abandon()
			return p.ended(w.op, w.kind, err)
		}
		if left -= c.bytes; left == 0 {
			return p.ended(w.op, w.kind, p.flushLocal(ctx, w.op))
		}
		w.src, w.dst = behind(w.src, c.bytes), behind(w.dst, c.bytes)
	}
}

// behind returns what follows n bytes of memory, which may not be used.
func behind(b []byte, n int) []byte { return b[min(n, len(b)):] }

// steps makes the steps of a run.
func steps[T Element](ctx context.Context, p *PE, w *work, combine func(to, a, b []T)) error {
	for {
		i, err := p.advance(ctx, w)
		if err != nil || i < 0 {
			return err
		}
		s := p.exchange.run.Step(i)
		to := w.memory(s.To)
		a, b := p.operand(w, s, s.From, len(to)), p.operand(w, s, s.With, len(to))
		combine(collective.View[T](to), collective.View[T](a), collective.View[T](b))
		if err := p.combined(ctx, w, i); err != nil {
			return err
		}
	}
}

// operand returns what a step combines: n bytes of a message, or of a range of memory.
func (p *PE) operand(w *work, s *collective.Step, r collective.Range, n int) []byte {
	if r.Buffer != collective.Land {
		return w.memory(r)
	}
	t := p.in.members[s.Peer]
	return t.message(t.landed(r, w.schedule.Shape.Piece))[:n]
}

// combined ends a combination, and returns the slot of its message.
func (p *PE) combined(ctx context.Context, w *work, i int) error {
	s := p.exchange.run.Step(i)
	p.exchange.run.Done(i)
	for _, r := range [...]collective.Range{s.From, s.With} {
		if r.Buffer == collective.Land {
			t := p.in.members[s.Peer]
			return t.discard(ctx, w.op, t.landed(r, w.schedule.Shape.Piece))
		}
	}
	return nil
}
