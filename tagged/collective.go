package tagged

import (
	"context"
	"fmt"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/verbs"
)

// Element is the type of what collective calls move: integers, floats and complex numbers of a
// fixed size, and [Float16] and [BFloat16], or a type that is defined on one of them. Complex
// numbers have sums and products only.
type Element = collective.Element

// Float16 is an element of 16 bits, IEEE 754's binary16. Its method Float32 returns the value.
// Reductions combine it in float32 and round to nearest, ties to even. A type that you define on
// it is an integer to them.
type Float16 = collective.Float16

// BFloat16 is the same for the upper half of a float32.
type BFloat16 = collective.BFloat16

// ToFloat16 rounds to nearest, ties to even.
func ToFloat16(v float32) Float16 { return collective.ToFloat16(v) }

// ToBFloat16 rounds to nearest, ties to even.
func ToBFloat16(v float32) BFloat16 { return collective.ToBFloat16(v) }

// ReduceOp is the operation by which a reduction combines two values. Its method String names it.
type ReduceOp = collective.Op

// The operations.
const (
	OpSum  = collective.Sum
	OpProd = collective.Prod
	OpMin  = collective.Min // Go's min, also of floats
	OpMax  = collective.Max // Go's max, also of floats
	OpAnd  = collective.And // integers only, like OpOr and OpXor
	OpOr   = collective.Or
	OpXor  = collective.Xor
)

// Barrier waits until every rank has called it.
func (w *Worker) Barrier(ctx context.Context) error {
	return collect[uint8](ctx, w, call{kind: collective.Barrier}, nil, nil, 0)
}

// Broadcast copies rank root's buf to the buf of every rank. All pass the same length.
func Broadcast[T Element](ctx context.Context, g Group, buf []T, root int) error {
	return collect(ctx, g, call{kind: collective.Broadcast, root: root}, buf, nil, len(buf))
}

// Reduce combines every rank's src, element by element, into dst of rank root, which may be src.
// The others' dst is not used.
func Reduce[T Element](ctx context.Context, g Group, dst, src []T, op ReduceOp, root int) error {
	return collect(ctx, g, call{kind: collective.Reduce, op: op, root: root}, dst, src, len(src))
}

// AllReduce combines every rank's src, element by element, into dst of every rank, which may be
// src. All get the same bits.
func AllReduce[T Element](ctx context.Context, g Group, dst, src []T, op ReduceOp) error {
	return collect(ctx, g, call{kind: collective.AllReduce, op: op}, dst, src, len(src))
}

// ReduceScatter combines every rank's src, which has as many blocks of len(dst) as there are ranks,
// and puts block i into dst of rank i.
func ReduceScatter[T Element](ctx context.Context, g Group, dst, src []T, op ReduceOp) error {
	return collect(ctx, g, call{kind: collective.ReduceScatter, op: op}, dst, src, len(dst))
}

// Scan combines src of ranks 0 to i into dst of rank i, which may be src.
func Scan[T Element](ctx context.Context, g Group, dst, src []T, op ReduceOp) error {
	return collect(ctx, g, call{kind: collective.Scan, op: op}, dst, src, len(src))
}

// Gather copies every rank's src to dst of rank root, in the order of the ranks: len(dst) is
// len(src) times their number there, and src may be the root's own block of it. The others' dst is
// not used.
func Gather[T Element](ctx context.Context, g Group, dst, src []T, root int) error {
	return collect(ctx, g, call{kind: collective.Gather, root: root}, dst, src, len(src))
}

// AllGather copies every rank's src to dst of every rank, in the order of the ranks. src may be the
// rank's own block of dst.
func AllGather[T Element](ctx context.Context, g Group, dst, src []T) error {
	return collect(ctx, g, call{kind: collective.AllGather}, dst, src, len(src))
}

// Scatter copies block i of rank root's src, which has as many blocks of len(dst) as there are
// ranks, to dst of rank i. The root's dst may be its own block of src. The others' src is not used.
func Scatter[T Element](ctx context.Context, g Group, dst, src []T, root int) error {
	return collect(ctx, g, call{kind: collective.Scatter, root: root}, dst, src, len(dst))
}

// AllToAll copies block i of src to rank i, and puts what rank i has for this one into block i of
// dst. Both have as many equal blocks as there are ranks.
func AllToAll[T Element](ctx context.Context, g Group, dst, src []T) error {
	return collect(ctx, g, call{kind: collective.AllToAll}, dst, src, len(src))
}

// StartBarrier starts a [Worker.Barrier], as do the other functions named Start their calls: the
// package comment says what that means.
func (w *Worker) StartBarrier() (*Request, error) {
	return start[uint8](w, call{kind: collective.Barrier}, nil, nil, 0)
}

// StartBroadcast starts [Broadcast].
func StartBroadcast[T Element](g Group, buf []T, root int) (*Request, error) {
	return start(g, call{kind: collective.Broadcast, root: root}, buf, nil, len(buf))
}

// StartReduce starts [Reduce].
func StartReduce[T Element](g Group, dst, src []T, op ReduceOp, root int) (*Request, error) {
	return start(g, call{kind: collective.Reduce, op: op, root: root}, dst, src, len(src))
}

// StartAllReduce starts [AllReduce].
func StartAllReduce[T Element](g Group, dst, src []T, op ReduceOp) (*Request, error) {
	return start(g, call{kind: collective.AllReduce, op: op}, dst, src, len(src))
}

// StartReduceScatter starts [ReduceScatter].
func StartReduceScatter[T Element](g Group, dst, src []T, op ReduceOp) (*Request, error) {
	return start(g, call{kind: collective.ReduceScatter, op: op}, dst, src, len(dst))
}

// StartScan starts [Scan].
func StartScan[T Element](g Group, dst, src []T, op ReduceOp) (*Request, error) {
	return start(g, call{kind: collective.Scan, op: op}, dst, src, len(src))
}

// StartGather starts [Gather].
func StartGather[T Element](g Group, dst, src []T, root int) (*Request, error) {
	return start(g, call{kind: collective.Gather, root: root}, dst, src, len(src))
}

// StartAllGather starts [AllGather].
func StartAllGather[T Element](g Group, dst, src []T) (*Request, error) {
	return start(g, call{kind: collective.AllGather}, dst, src, len(src))
}

// StartScatter starts [Scatter].
func StartScatter[T Element](g Group, dst, src []T, root int) (*Request, error) {
	return start(g, call{kind: collective.Scatter, root: root}, dst, src, len(dst))
}

// StartAllToAll starts [AllToAll].
func StartAllToAll[T Element](g Group, dst, src []T) (*Request, error) {
	return start(g, call{kind: collective.AllToAll}, dst, src, len(src))
}

// call is a collective call as this rank makes it.
type call struct {
	kind    collective.Kind
	op      ReduceOp
	root    int
	n       int // elements: of the vector, or of each block
	of      collective.Type
	inPlace bool
	unequal bool // blocks have a length each, by counts
	// counts has the lengths of the blocks in elements, of an all-to-all those that this rank
	// sends, and receives those that it receives. Of unequal Gather and Scatter only the root has
	// them.
	counts, receives []int
	// combine combines by a function of the program; nil for op.
	combine func(c *flight, to, a, b []byte)
}

// name names the call, as in the errors of it.
func (c *call) name() string {
	if c.kind == collective.AllGather && !c.unequal {
		switch c.op {
		case opSplit:
			return "split"
		case opShrink:
			return "shrink"
		}
	}
	return c.kind.String()
}

// blocks reports whether the call moves a block for each rank.
func (c *call) blocks() bool {
	return c.kind >= collective.ReduceScatter && c.kind <= collective.AllToAll
}

// reduces reports whether the call combines values.
func (c *call) reduces() bool {
	return c.kind >= collective.Reduce && c.kind <= collective.ReduceScatter || c.kind == collective.Scan
}

// rooted reports whether the call has a root.
func (c *call) rooted() bool {
	switch c.kind {
	case collective.Broadcast, collective.Reduce, collective.Gather, collective.Scatter:
		return true
	}
	return false
}

// lengths returns how many elements dst and src must have; -1 for one that is not used.
func (c *call) lengths(ranks, rank int) (dst, src int) {
	if c.unequal {
		return c.unequalLengths(rank)
	}
	dst, src = c.n, c.n
	switch c.kind {
	case collective.Barrier, collective.Broadcast:
		src = -1
	case collective.ReduceScatter, collective.Scatter:
		src *= ranks
	case collective.Gather, collective.AllGather:
		dst *= ranks
	case collective.AllToAll:
		dst, src = dst*ranks, src*ranks
	}
	if rank != c.root {
		switch c.kind {
		case collective.Reduce, collective.Gather:
			dst = -1
		case collective.Scatter:
			src = -1
		}
	}
	return dst, src
}

// check returns what is wrong with the arguments of a call.
func (c *call) check(ranks, rank, dst, src int, known bool) error {
	switch {
	case c.root < 0 || c.root >= ranks:
		return fmt.Errorf("%w: root %d: of %d ranks the numbers are 0 to %d", verbs.ErrInvalid, c.root, ranks,
			ranks-1)
	case !known && c.op == opFunc:
		return fmt.Errorf("%w: fn is nil", verbs.ErrInvalid)
	case !known:
		return fmt.Errorf("%w: op %v: elements of %v have %s", verbs.ErrInvalid, c.op, c.of,
			c.of.Operations())
	case c.unequal:
		if err := c.checkCounts(ranks, rank); err != nil {
			return err
		}
	case c.kind == collective.AllToAll && (dst != src || src%ranks != 0):
		return fmt.Errorf("%w: dst has %d elements, src %d: both must have the same multiple of %d",
			verbs.ErrInvalid, dst, src, ranks)
	}
	wantDst, wantSrc := c.lengths(ranks, rank)
	if wantDst >= 0 && dst != wantDst || wantSrc >= 0 && src != wantSrc {
		return fmt.Errorf("%w: dst has %d elements, src %d: of %d ranks they must have %d and %d",
			verbs.ErrInvalid, dst, src, ranks, max(wantDst, 0), max(wantSrc, 0))
	}
	return nil
}

// collect makes a collective call and waits for its end. n is the length of the vector, or of each
// block; of an all-to-all that of all blocks.
func collect[T Element](ctx context.Context, g Group, c call, dst, src []T, n int) error {
	t := teamOf(g)
	if t == nil {
		return refuse(c.name(), verbs.ErrInvalid, noWorker)
	}
	x := &t.exchange
	if err := x.enter(ctx, &c); err != nil {
		return err
	}
	defer x.blocking.Store(false)
	r, err := start(t, c, dst, src, n)
	if err != nil {
		return err
	}
	err = x.finish(ctx, r)
	r.Free()
	return err
}

// start begins a collective call.
func start[T Element](g Group, c call, dst, src []T, n int) (*Request, error) {
	t := teamOf(g)
	if t == nil {
		return nil, refuse(c.name(), verbs.ErrInvalid, noWorker)
	}
	c.n, c.of = n, collective.TypeOf[T]()
	if c.unequal {
		c.op = opUnequal
	}
	x := &t.exchange
	r, err := x.start(&c, collective.Bytes(dst), collective.Bytes(src), len(dst), len(src))
	if err != nil {
		x.flush()
	}
	return r, err
}

const noWorker = "the worker or team is nil"

// enter admits a blocking call.
func (x *exchange) enter(ctx context.Context, c *call) error {
	op := c.name()
	if ctx == nil {
		return refuse(op, verbs.ErrInvalid, "no context")
	}
	if !x.blocking.CompareAndSwap(false, true) {
		return refuse(op, ErrBusy, "another goroutine waits in one, and the order must be that of all ranks")
	}
	x.w.tw.Progress() // for a note that another rank has ended all calls: start reads it
	ended := errwrap.ContextErr(ctx)
	if ended == nil || x.w.ranks.peers == nil {
		return nil
	}
	x.mu.Lock()
	err := x.refuse(stopGaveUp, c, ended)
	x.blocking.Store(false)
	x.release()
	x.flush()
	return err
}

// start begins a call, and returns the request that is done when the call is.
func (x *exchange) start(c *call, dst, src []byte, dstLen, srcLen int) (*Request, error) {
	op := c.name()
	if x.w.ranks.peers == nil {
		return nil, refuse(op, verbs.ErrInvalid, noRanks)
	}
	x.mu.Lock()
	defer x.release()
	size, rank := x.t.Size(), x.t.rank
	if c.kind == collective.AllToAll {
		c.n /= size
	}
	x.readNotes() // another rank may have ended all calls already
	switch {
	case x.stopped != nil:
		return nil, x.ended(op, x.record.Step+1)
	case len(x.calls) != 0 && x.record.Step-x.calls[0].step+1 >= uint64(min(x.most(), mostUnderWay)):
		return nil, &errwrap.Error{Err: fmt.Errorf("tagged: %s: %d calls are under way, the most at once: "+
			"wait for %s %d first: %w", op, len(x.calls), x.calls[0].name(), x.calls[0].step, ErrBusy)}
	case x.underWay >= x.most():
		return nil, &errwrap.Error{Err: fmt.Errorf("tagged: %s: %d calls of all teams are under way, the "+
			"most at once with this Config.MaxUnexpected: wait for one first: %w", op, x.underWay, ErrBusy)}
	}
	known := !c.reduces() || c.combine != nil || c.of.Has(c.op)
	err := c.check(size, rank, dstLen, srcLen, known)
	if err == nil {
		err = c.place(size, rank, dst, src)
	}
	if err != nil {
		return nil, x.refuse(stopMismatch, c, err)
	}
	f := x.newFlight(c, dst, src)
	r := f.req
	x.calls = append(x.calls, f)
	x.underWay++
	if err := x.begin(f); err != nil {
		x.fail(f, stopFailed, err)
		return r, nil
	}
	x.due.Store(true) // release makes the first steps
	return r, nil
}

// newFlight records a call.
func (x *exchange) newFlight(c *call, dst, src []byte) *flight {
	var f *flight
	if n := len(x.spare); n != 0 {
		f, x.spare = x.spare[n-1], x.spare[:n-1]
	} else {
		f = &flight{lands: make([]*Region, x.t.Size())}
	}
	x.add(c)
	f.call, f.dst, f.src, f.step, f.ticket = *c, dst, src, x.record.Step, x.record.Last()
	f.tag = x.tag(f.step, x.record.Hash)
	f.look, f.odd = time.Time{}, time.Time{}
	if f.combine == nil {
		f.combine = combineValues
	}
	if c.unequal {
		f.keepCounts(x.t.Size(), x.t.rank)
	}
	x.w.mu.Lock()
	f.req = x.w.newCall(x)
	x.w.mu.Unlock()
	return f
}

// combineValues combines by the operation of a call.
func combineValues(c *flight, to, a, b []byte) { c.of.Combine(c.op, to, a, b) }

// place finds out whether the call is in place, and refuses memory that overlaps otherwise.
func (c *call) place(ranks, rank int, dst, src []byte) error {
	wantDst, wantSrc := c.lengths(ranks, rank)
	if wantDst < 0 || wantSrc < 0 || !collective.Overlap(dst, src) {
		return nil
	}
	switch c.kind {
	case collective.ReduceScatter, collective.AllToAll:
		return fmt.Errorf("%w: dst and src overlap: what is to be sent would be written over",
			verbs.ErrInvalid)
	case collective.Scatter:
		dst, src = src, dst
	}
	own := 0 // both have one length
	if c.blocks() {
		own = rank * len(src)
	}
	if c.unequal {
		own = sum(c.counts[:rank]) * c.of.Size()
	}
	if &dst[own] == &src[0] {
		c.inPlace = true
		return nil
	}
	return fmt.Errorf("%w: dst and src overlap, but not in place, where they are the same, or one is the "+
		"block of this rank, %d, in the other", verbs.ErrInvalid, rank)
}

// tag is that of the messages of a call. From the top: 8 bits that are one, 24 of the team's
// number, 6 of the step, and 26 of a hash of this call and all before it.
func (x *exchange) tag(step, hash uint64) uint64 {
	return callClass<<56 | x.t.prefix() | step&(tagSteps-1)<<26 | hash>>38
}

// stepOf returns the step modulo tagSteps of the call that a message is of.
func stepOf(tag uint64) uint64 { return tag >> 26 & (tagSteps - 1) }

// tagSteps is how many steps tags tell apart.
const tagSteps = 64

// ticket describes a call to other ranks. From the top: 8 bits that are one, 4 of the kind, 4 of
// the element, 16 of the root, 3 of the operation, 12 of the number of elements or all ones if
// there are more, and 17 of a hash of this call and all before it.
type ticket uint64

const (
	ticketHash     = 17
	ticketElements = 1<<12 - 1
	// ticketCall masks what describes the call itself, not those before it.
	ticketCall = ^ticket(1<<ticketHash - 1)
)

// newTicket describes a call.
func newTicket(c *call, hash uint64) ticket {
	return 0xff<<56 | ticket(c.kind)<<52 | ticket(c.of)<<48 | ticket(c.root)<<32 | ticket(c.op)<<29 |
		ticket(min(c.n, ticketElements))<<ticketHash | ticket(hash>>(64-ticketHash))
}

// call returns what the ticket describes.
func (t ticket) call() *call {
	return &call{kind: collective.Kind(t >> 52 & 15), of: collective.Type(t >> 48 & 15),
		root: int(t >> 32 & (1<<16 - 1)), op: ReduceOp(t >> 29 & 7), n: int(t >> ticketHash & ticketElements)}
}

// String names the call with its arguments: "broadcast of 8 elements of int32 from rank 0".
func (t ticket) String() string {
	c := t.call()
	if name := c.name(); c.kind == collective.Barrier || name != c.kind.String() {
		return name
	}
	s := fmt.Sprintf("%v of %d elements of %v", c.kind, c.n, c.of)
	if c.n == ticketElements {
		s = fmt.Sprintf("%v of %d or more elements of %v", c.kind, c.n, c.of)
	}
	switch {
	case c.reduces() && c.op == opFunc:
		s += " by a function"
	case c.reduces():
		s += fmt.Sprintf(" by %v", c.op)
	case c.op == opUnequal:
		s = fmt.Sprintf("%v of unequal blocks of %v", c.kind, c.of)
	}
	if c.kind == collective.Broadcast || c.kind == collective.Scatter {
		s += fmt.Sprintf(" from rank %d", c.root)
	} else if c.rooted() {
		s += fmt.Sprintf(" to rank %d", c.root)
	}
	return s
}

// add records a call.
func (x *exchange) add(c *call) {
	r := &x.record
	r.Add(int(c.kind), int(c.op), c.root, c.n, int(c.of))
	if c.unequal && c.kind == collective.AllGather {
		r.Hash = hashAll(r.Hash, c.counts)
	}
	r.Describe(newTicket(c, r.Hash))
}
