package shmem

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"

	"ibverbx/internal/collective"
)

// Package collective says which messages a call takes, and in what order. An exchange carries them
// out through the mailboxes.

// exchange carries out the collective calls of a PE, of whichever team. Several may be under way.
// Between two PEs the messages of one call follow those of another in the order of the calls: a
// call sends to a peer, or receives from it, when the earlier ones have done so for the last time.
// So calls that need nothing of each other's peers are done in any order, and the messages need no
// other mark than their number.
//
// mu guards all of it, the mailboxes and the requests. Who holds it does not wait for other PEs.
//
// Invariant: requests are in the order of the calls. owing has each peer that owes is set for.
type exchange struct {
	mu       sync.Mutex
	under    atomic.Int32 // len(requests)
	requests []*Request   // that are not done
	spare    []*Request
	owing    []*peer
	cache    collective.Cache
	window   int  // the most units that one schedule covers
	shared   bool // the PEs share fewer processors: what costs time is the work of all of them
	driven   bool // a goroutine drives the calls in the background
	drivers  sync.WaitGroup
}

// mostUnderWay is the most collective calls under way. It is far less than the calls that a record
// remembers.
const mostUnderWay = 31

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

// plan returns the plan for a part of a call of some kind.
func (t *Team) plan(kind kind, c part) (plan, error) {
	l := &t.plans[kind]
	if l.part == c && l.schedule != nil {
		return *l, nil
	}
	p := t.pe
	s := collective.Shape{Kind: c.kind, Algorithm: t.algorithm(c), Ranks: t.Size(), Rank: t.rank,
		Root: c.root, Depth: depth, Ordered: c.ordered, InPlace: c.inPlace}
	*l = plan{part: c}
	l.cut(&s, int(p.layout.slot))
	var err error
	l.schedule, err = p.exchange.cache.Schedule(&s)
	return *l, err
}

// algorithm chooses the algorithm, from what all PEs agree on.
func (t *Team) algorithm(c part) collective.Algorithm {
	p := t.pe
	if c.stride != c.bytes { // those that never send several blocks in one message
		switch c.kind {
		case collective.AllGather:
			return collective.Ring
		case collective.Gather, collective.Scatter:
			return collective.Star
		}
		return collective.Pairwise
	}
	a := collective.Choose(&collective.Shape{Kind: c.kind, Ranks: t.Size(), Root: c.root, Count: c.bytes,
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

// memory returns a range of the caller's memory, or of the scratch memory.
func (r *Request) memory(at collective.Range) []byte {
	var m []byte
	switch at.Buffer {
	case collective.Src:
		m = r.src
	case collective.Dst:
		m = r.dst
	case collective.Tmp:
		m = collective.Bytes(r.tmp)
	}
	return m[r.plan.begin(at.Off):r.plan.end(at.Off+at.Len-1)]
}

// startPart begins the run of the next part of a call.
func (p *PE) startPart(r *Request) (err error) {
	c := r.part
	if r.counts[0] != nil {
		r.plan, err = r.team.unequalPlan(r)
		r.left = 0
	} else {
		most := p.exchange.window * int(p.layout.slot)
		blocks := c.kind >= collective.ReduceScatter && c.kind <= collective.AllToAll
		if blocks {
			most = max(p.exchange.window/r.team.Size(), 1) * int(p.layout.slot)
		}
		c.bytes = min(r.left, most)
		if c.stride = c.bytes; blocks {
			c.stride = r.part.bytes
		}
		r.plan, err = r.team.plan(r.kind, c)
		r.left -= c.bytes
	}
	if err != nil {
		return opError(r.op, err)
	}
	s := r.plan.schedule
	r.run.Start(s)
	if n := s.Tmp; n != 0 {
		n = r.plan.end(n - 1)
		if 8*len(r.tmp) < n {
			r.tmp = make([]uint64, (n+7)/8)
		}
	}
	for i := range s.Steps {
		switch step := &s.Steps[i]; step.Action {
		case collective.Send:
			r.lines[step.Peer].sends++
		case collective.Receive:
			r.lines[step.Peer].receives++
		}
	}
	return nil
}

// advance carries out the steps of a call that need not wait, and reports whether all are done.
func (p *PE) advance(ctx context.Context, r *Request) (done bool, err error) {
	if r.rounds.words != 0 {
		return p.disseminate(ctx, r)
	}
	for {
		if err := r.reap(); err != nil {
			return false, err
		}
		if err := p.serve(ctx, r); err != nil {
			return false, err
		}
		for i, ok := r.run.Next(); ok; i, ok = r.run.Next() {
			if err := p.step(ctx, r, i); err != nil {
				return false, err
			}
		}
		if !r.run.Finished() {
			return false, nil
		}
		if r.left == 0 {
			return len(p.exchange.owing) == 0, nil
		}
		r.src, r.dst = behind(r.src, r.plan.bytes), behind(r.dst, r.plan.bytes)
		if err := p.startPart(r); err != nil {
			return false, err
		}
	}
}

// behind returns what follows n bytes of memory, which may not be used.
func behind(b []byte, n int) []byte { return b[min(n, len(b)):] }

// step begins a step.
func (p *PE) step(ctx context.Context, r *Request, i int) error {
	switch s := r.run.Step(i); s.Action {
	case collective.Combine:
		to := r.memory(s.To)
		a, b := p.operand(r, s, s.From, len(to)), p.operand(r, s, s.With, len(to))
		if r.combine != nil {
			r.combine(to, a, b)
		} else {
			r.shape.of.Combine(ReduceOp(r.shape.param), to, a, b)
		}
		return p.combined(r, i)
	case collective.Copy:
		copy(r.memory(s.To), r.memory(s.From))
		r.run.Done(i)
		return nil
	default:
		return p.beginOrWait(ctx, r, i, s)
	}
}

// beginOrWait carries out a send or receive, if it can be done now.
func (p *PE) beginOrWait(ctx context.Context, r *Request, i int, s *collective.Step) error {
	t, l := r.team.members[s.Peer], &r.lines[s.Peer]
	q := &l.in
	if s.Action == collective.Send {
		q = &l.out
	}
	if !l.waits() {
		r.busy = append(r.busy, s.Peer)
	}
	if q.add(i); q.n > 1 {
		return nil
	}
	if s.Action == collective.Send {
		return p.sendAll(r, t, l)
	}
	return p.receiveAll(ctx, r, t, l)
}

// serve does the steps that need not wait any more. The NICs carry what it sends while it copies.
func (p *PE) serve(ctx context.Context, r *Request) error {
	waiting := r.busy[:0]
	for _, rank := range r.busy {
		t, l := r.team.members[rank], &r.lines[rank]
		if err := p.sendAll(r, t, l); err != nil {
			return err
		}
		if err := p.receiveAll(ctx, r, t, l); err != nil {
			return err
		}
		if l.waits() {
			waiting = append(waiting, rank)
		}
	}
	r.busy = waiting
	return nil
}

// isNext reports whether no earlier call sends to a peer any more, or receives from it.
func (x *exchange) isNext(r *Request, t *peer, sends bool) bool {
	for _, e := range x.requests {
		if e == r {
			break
		}
		if e.rounds.words != 0 {
			continue
		}
		rank := e.team.rankOf(t.id)
		if rank < 0 {
			continue
		}
		if l := &e.lines[rank]; e.left != 0 || sends && l.sends != 0 || !sends && l.receives != 0 {
			return false
		}
	}
	return true
}

// sendAll does the sends to a peer that have begun, as far as there is room.
func (p *PE) sendAll(r *Request, t *peer, l *line) error {
	for l.out.n != 0 && !r.broken && t.hasRoom() && p.exchange.isNext(r, t, true) {
		i := l.out.first()
		b := r.memory(r.run.Step(i).From)
		g := r.tag
		if r.counts[0] != nil {
			g |= tagOfLength(len(b))
		}
		done, zcopy, err := t.post(r, g, b, r.segment(b))
		if err != nil {
			return t.opError(r.op, err)
		}
		if !done {
			return nil
		}
		l.out.drop()
		l.sends--
		if zcopy != nil {
			r.leaving = append(r.leaving, leaving{step: i, call: zcopy})
		} else {
			r.run.Done(i)
		}
	}
	return nil
}

// receiveAll does the receives from a peer that have begun, as far as messages have arrived. What
// is to be combined stays in its slot.
func (p *PE) receiveAll(ctx context.Context, r *Request, t *peer, l *line) error {
	for l.in.n != 0 && t.hasNext() && p.exchange.isNext(r, t, false) {
		i := l.in.first()
		s := r.run.Step(i)
		g, n := r.tag, 0
		if s.To.Buffer != collective.Land {
			n = len(r.memory(s.To))
		}
		if r.counts[0] != nil {
			g |= tagOfLength(n)
		}
		if theirs := tag(t.nextWord() &^ tagNumber); theirs != g {
			if t.pe.gone.Load() == nil {
				return p.mismatch(ctx, r.op, t, difference{theirs: theirs, mine: g, of: r.team, in: r.team})
			}
			// Of a call that has ended because a PE is gone. What is not is found by asking.
			if err := t.discard(t.open()); err != nil {
				return t.opError(r.op, err)
			}
			continue
		}
		l.in.drop()
		l.receives--
		l.base, t.more = t.opened-uint64(s.Number), r.run.More(i)
		slot := t.open()
		if s.To.Buffer != collective.Land {
			copy(r.memory(s.To), t.message(slot))
			if err := t.discard(slot); err != nil {
				return t.opError(r.op, err)
			}
		}
		r.run.Done(i)
	}
	return nil
}

// operand returns what a step combines: n bytes of a message, or of a range of memory.
func (p *PE) operand(r *Request, s *collective.Step, at collective.Range, n int) []byte {
	if at.Buffer != collective.Land {
		return r.memory(at)
	}
	return r.team.members[s.Peer].message(landed(r.lines[s.Peer].base, at, r.plan.schedule.Shape.Piece))[:n]
}

// combined ends a combination, and returns the slot of its message.
func (p *PE) combined(r *Request, i int) error {
	s := r.run.Step(i)
	r.run.Done(i)
	for _, at := range [...]collective.Range{s.From, s.With} {
		if at.Buffer == collective.Land {
			t := r.team.members[s.Peer]
			if err := t.discard(landed(r.lines[s.Peer].base, at, r.plan.schedule.Shape.Piece)); err != nil {
				return t.opError(r.op, err)
			}
			return nil
		}
	}
	return nil
}
