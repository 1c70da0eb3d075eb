package shmem

import (
	"context"
	"errors"
	"sync/atomic"

	"ibverbx/internal/collective"
	"ibverbx/transport"
)

// Broadcast copies PE root's buf to the buf of every PE. buf may be any memory. It is collective;
// all PEs pass the same length and root. It returns when this PE has the data, whether or not all
// others have it. An invalid root is verbs.ErrInvalid, and ends the call of all other PEs with
// [ErrMismatch].
func Broadcast[T Element](ctx context.Context, on Group, buf []T, root int) error {
	const op = "broadcast"
	t := teamOf(on)
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if uint(root) >= uint(t.Size()) {
		return t.pe.refuse(ctx, kindBroadcast, invalid(op, "root %d: the ranks are 0 to %d", root,
			t.Size()-1))
	}
	g, err := t.call(ctx, op, kindBroadcast,
		shape{n: len(buf), of: collective.TypeOf[T](), param: t.members[root].id})
	if err != nil {
		return err
	}
	w := work{op: op, kind: kindBroadcast, tag: g, src: collective.Bytes(buf), dst: collective.Bytes(buf)}
	return carryOut[byte](ctx, t.pe, &w, part{kind: collective.Broadcast, root: root, bytes: len(w.dst)}, nil)
}

// AllGather copies every PE's src to dst on every PE, in the order of the PEs: len(dst) is len(src)
// times the number of PEs. dst and src may be any memory. They must not overlap, except that src
// may be this PE's own part of dst, in place. It is collective; all PEs pass the same length. If
// the lengths do not fit together, or dst and src overlap otherwise, the error is verbs.ErrInvalid,
// and the call of all other PEs ends with [ErrMismatch].
func AllGather[T Element](ctx context.Context, on Group, dst, src []T) error {
	const op = "all-gather"
	t := teamOf(on)
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if len(dst) != len(src)*t.Size() {
		return t.pe.refuse(ctx, kindAllGather,
			invalid(op, "dst has %d elements: %d for each of %d PEs are %d", len(dst), len(src), t.Size(),
				len(src)*t.Size()))
	}
	to, from := collective.Bytes(dst), collective.Bytes(src)
	if own := to[t.rank*len(from):][:len(from)]; collective.Overlap(to, from) && &own[0] != &from[0] {
		return t.pe.refuse(ctx, kindAllGather, invalid(op, "dst and src overlap, and src is not part %d of "+
			"dst: it would be overwritten before it is sent", t.rank))
	}
	g, err := t.call(ctx, op, kindAllGather, shape{n: len(src), of: collective.TypeOf[T]()})
	if err != nil {
		return err
	}
	return t.pe.gather(ctx, op, kindAllGather, g, to, from)
}

// Gather copies every PE's src to dst of rank root, in the order of the PEs: there len(dst) is
// len(src) times the number of PEs; the others' dst is not used. Memory is as for [AllGather]. It
// returns when this PE's part is done: only the root waits for all. An invalid root is
// verbs.ErrInvalid, and ends the call of all other PEs with [ErrMismatch].
func Gather[T Element](ctx context.Context, on Group, dst, src []T, root int) error {
	return rooted(ctx, teamOf(on), kindGather, dst, src, root)
}

// Scatter copies part i of rank root's src to dst of rank i: there len(src) is len(dst) times the
// number of PEs; the others' src is not used. dst may be the root's own part of src, in place;
// otherwise they must not overlap. The rest is as for [Gather].
func Scatter[T Element](ctx context.Context, on Group, dst, src []T, root int) error {
	return rooted(ctx, teamOf(on), kindScatter, src, dst, root)
}

// rooted is a Gather or a Scatter. all is what only the root has, and part what each PE has.
func rooted[T Element](ctx context.Context, t *Team, k kind, all, each []T, root int) error {
	op := k.String()
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if uint(root) >= uint(t.Size()) {
		return t.pe.refuse(ctx, k, invalid(op, "root %d: the ranks are 0 to %d", root, t.Size()-1))
	}
	long, short := collective.Bytes(all), collective.Bytes(each)
	if t.rank != root {
		long = nil
	} else if err := checkRooted(op, long, short, t, collective.SizeOf[T]()); err != nil {
		return t.pe.refuse(ctx, k, err)
	}
	g, err := t.call(ctx, op, k,
		shape{n: len(each), of: collective.TypeOf[T](), param: t.members[root].id})
	if err != nil {
		return err
	}
	w := work{op: op, kind: k, tag: g, src: short, dst: long}
	c := part{kind: collective.Gather, root: root, bytes: len(short)}
	if k == kindScatter {
		c.kind, w.src, w.dst = collective.Scatter, long, short
	}
	return carryOut[byte](ctx, t.pe, &w, c, nil)
}

// checkRooted returns what is wrong with the memory of the root: the long one has a part for each
// PE, of which the short one may be its own.
func checkRooted(op string, long, short []byte, t *Team, size int) error {
	if len(long) != len(short)*t.Size() {
		return invalid(op, "%d elements for %d PEs, and %d for each of them", len(long)/size, t.Size(),
			len(short)/size)
	}
	if own := long[t.rank*len(short):][:len(short)]; collective.Overlap(long, short) && &own[0] != &short[0] {
		return invalid(op, "dst and src overlap, and not as part %d of one and all of the other", t.rank)
	}
	return nil
}

// gather is an AllGather of bytes, in a call of any kind.
func (p *PE) gather(ctx context.Context, op string, kind kind, g tag, dst, src []byte) error {
	w := work{op: op, kind: kind, tag: g, src: src, dst: dst}
	return carryOut[byte](ctx, p, &w, part{kind: collective.AllGather, bytes: len(src)}, nil)
}

// AllToAll sends part i of src to PE i and receives part i of dst from PE i. Both have as many
// equal parts as there are PEs. dst and src may be any memory, and must not overlap. It is
// collective; all PEs pass the same length. If a length does not fit, or dst and src overlap, the
// error is verbs.ErrInvalid, and the call of all other PEs ends with [ErrMismatch].
func AllToAll[T Element](ctx context.Context, on Group, dst, src []T) error {
	const op = "all-to-all"
	t := teamOf(on)
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if len(dst) != len(src) || len(src)%t.Size() != 0 {
		return t.pe.refuse(ctx, kindAllToAll,
			invalid(op, "dst has %d elements, src %d: both must have the same multiple of %d, the number "+
				"of PEs", len(dst), len(src), t.Size()))
	}
	if collective.Overlap(collective.Bytes(dst), collective.Bytes(src)) {
		return t.pe.refuse(ctx, kindAllToAll, invalid(op, "dst and src overlap: a part would be written "+
			"before it is sent"))
	}
	g, err := t.call(ctx, op, kindAllToAll, shape{n: len(src), of: collective.TypeOf[T]()})
	if err != nil {
		return err
	}
	w := work{op: op, kind: kindAllToAll, tag: g, src: collective.Bytes(src), dst: collective.Bytes(dst)}
	return carryOut[byte](ctx, t.pe, &w, part{kind: collective.AllToAll, bytes: len(w.src) / t.Size()}, nil)
}

// ReduceOp is the operation by which Reduce combines two values. Its method String names it.
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

// Reduce combines every PE's src element by element, and writes the result to dst on every PE. dst
// and src may be any memory, and may be the same. The order in which values are combined depends
// only on the number of PEs and the length, so every PE gets the same bits, in every run. It is
// collective; all PEs pass the same length and op. If dst and src differ in length, or the elements
// do not have op, the error is verbs.ErrInvalid, and the call of all other PEs ends with
// [ErrMismatch].
func Reduce[T Element](ctx context.Context, on Group, dst, src []T, op ReduceOp) error {
	return reduceBy(ctx, teamOf(on), kindReduce, dst, src, op)
}

// ReduceScatter is Reduce of a src that has as many equal parts as there are PEs: part i of the
// result goes to dst of rank i. dst and src must not overlap.
func ReduceScatter[T Element](ctx context.Context, on Group, dst, src []T, op ReduceOp) error {
	return reduceBy(ctx, teamOf(on), kindReduceScatter, dst, src, op)
}

// Scan is Reduce of the PEs up to this one: dst has the result of ranks 0 to its own.
func Scan[T Element](ctx context.Context, on Group, dst, src []T, op ReduceOp) error {
	return reduceBy(ctx, teamOf(on), kindScan, dst, src, op)
}

// reduceBy is a reduction of some kind by an op.
func reduceBy[T Element](ctx context.Context, t *Team, k kind, dst, src []T, op ReduceOp) error {
	if bits := collective.Bitwise(op); bits != nil && !collective.TypeOf[T]().IsFloat() {
		return reduce(ctx, t, k, dst, src, int(op), nil, bits)
	}
	if !collective.Apply[T](op, nil, nil, nil) {
		return reduce(ctx, t, k, dst, src, int(op), nil, nil)
	}
	return reduce(ctx, t, k, dst, src, int(op), func(to, a, b []T) { collective.Apply(op, to, a, b) }, nil)
}

// ReduceFunc is Reduce with the caller's function, which must be associative; its first argument
// comes from PEs with lower numbers. It must not call anything of this package. All PEs must pass
// the same function, which cannot be checked.
func ReduceFunc[T Element](ctx context.Context, on Group, dst, src []T, fn func(a, b T) T) error {
	if fn == nil {
		return reduce(ctx, teamOf(on), kindReduce, dst, src, paramFunc, nil, nil)
	}
	return reduce(ctx, teamOf(on), kindReduce, dst, src, paramFunc, func(to, a, b []T) {
		for i, v := range a {
			to[i] = fn(v, b[i])
		}
	}, nil)
}

// paramFunc replaces the op in the tag of a ReduceFunc.
const paramFunc = 1<<16 - 1

// checkReduce returns an error if the arguments of a reduction are wrong: src has parts times as
// many elements as dst.
func checkReduce(op string, dst, src, parts int, of collective.Type, param int, known bool) error {
	switch {
	case dst*parts != src && parts == 1:
		return invalid(op, "dst has %d elements, src %d", dst, src)
	case dst*parts != src:
		return invalid(op, "src has %d elements: %d for each of %d PEs are %d", src, dst, parts, dst*parts)
	case known:
		return nil
	case param == paramFunc:
		return invalid(op, "fn is nil")
	}
	return invalid(op, "op %v: elements of %v have %s", ReduceOp(param), of, of.Operations())
}

// reduction returns what a kind of reduction is to the schedules.
func (k kind) reduction() collective.Kind {
	switch k {
	case kindScan:
		return collective.Scan
	case kindReduceScatter:
		return collective.ReduceScatter
	}
	return collective.AllReduce
}

// reduce is a reduction of a kind by the first function, or, if that is nil, by the second, of
// bytes. param identifies it to the other PEs.
func reduce[T Element](ctx context.Context, t *Team, k kind, dst, src []T, param int,
	combine func(to, a, b []T), bits func(to, a, b []byte)) error {
	op, of, parts := k.String(), collective.TypeOf[T](), 1
	if param == paramFunc {
		op = "reduce func"
	}
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	if k == kindReduceScatter {
		parts = t.Size()
	}
	known := combine != nil || bits != nil
	if err := checkReduce(op, len(dst), len(src), parts, of, param, known); err != nil {
		return t.pe.refuse(ctx, k, err)
	}
	w := work{op: op, kind: k, src: collective.Bytes(src), dst: collective.Bytes(dst)}
	c := part{kind: k.reduction(), bytes: len(w.dst), ordered: param == paramFunc}
	if c.inPlace = collective.Overlap(w.dst, w.src); c.inPlace && k == kindReduceScatter {
		return t.pe.refuse(ctx, k, invalid(op, "dst and src overlap: a part would be written before it is "+
			"sent"))
	}
	g, err := t.call(ctx, op, k, shape{n: len(dst), of: of, param: param})
	if err != nil {
		return err
	}
	if w.tag = g; c.inPlace {
		copy(dst, src)
	}
	if combine == nil {
		return carryOut(ctx, t.pe, &w, c, bits)
	}
	return carryOut(ctx, t.pe, &w, c, combine)
}

// Barrier calls Quiet and then waits until every PE has called it: what any PE did before it is
// visible to all PEs after it. It is collective.
func (p *PE) Barrier(ctx context.Context) error {
	const op = "barrier"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.barrier(ctx, op)
}

// Sync waits until every PE has called it. Unlike Barrier it completes no operation. It is
// collective.
func (p *PE) Sync(ctx context.Context) error {
	const op = "sync"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	return p.sync(ctx, op)
}

// enter begins a collective call: it takes collective, which the call releases.
func (p *PE) enter(op string) error { return p.world.enter(op) }

func (t *Team) enter(op string) error {
	if t == nil {
		return invalid(op, "no team: this PE is in none")
	}
	if !t.pe.collective.TryLock() {
		return opError(op, ErrBusy)
	}
	if t.pe.closing.Load() || t.closed {
		t.pe.collective.Unlock()
		return opError(op, ErrClosed)
	}
	return nil
}

// barrier is Barrier with collective held.
func (p *PE) barrier(ctx context.Context, op string) error {
	if err := p.inStep(ctx, op); err != nil {
		return err
	}
	if err := p.quiet(ctx, op); err != nil {
		return p.explain(op, err) // this PE has not entered the barrier, and may call it again
	}
	return p.sync(ctx, op)
}

// sync is Sync with collective held.
func (p *PE) sync(ctx context.Context, op string) error {
	if _, err := p.world.call(ctx, op, kindBarrier, shape{}); err != nil {
		return err
	}
	number := p.syncs.Add(1)
	err := p.disseminate(ctx, op, p.layout.rounds, number, p.world.record.mark(number))
	return p.ended(op, kindBarrier, err)
}

// disseminate sends a mark to all PEs and waits until all have reached its number: in round r each
// PE writes to the PE that is 2^r further on, and so passes on all that it has received. The words
// only grow, so the word of a PE that is ahead serves as well. A PE that receives a mark of calls
// other than its own passes nothing on. Each PE receives from every other on some path, and on a
// path between two PEs whose calls differ some PE detects it: if PEs are out of step, none
// completes the barrier.
func (p *PE) disseminate(ctx context.Context, op string, words, number, mark uint64) error {
	n := len(p.peers)
	for d := 1; d < n; d *= 2 {
		to, from := &p.peers[(p.id+d)%n], &p.peers[(p.id-d+n)%n]
		if err := to.putWord(ctx, words, mark); err != nil {
			return to.opError(op, err)
		}
		word := word64(p.heap, words)
		err := p.awaitCollective(ctx, op, from,
			func() bool { return atomic.LoadUint64(word)>>markBits >= number })
		if err != nil {
			return err
		}
		if got := atomic.LoadUint64(word); got != mark && got>>markBits == mark>>markBits {
			return p.mismatch(ctx, op, from, p.differ(p.in.record.Last(), p.in))
		}
		words += 8
	}
	return p.flushLocal(ctx, op)
}

// flushLocal waits until everything that this PE has put has been sent: PEs that wait for it must
// not depend on this PE's next call.
func (p *PE) flushLocal(ctx context.Context, op string) error {
	err := p.worker.Flush(ctx, transport.FlushLocal)
	if err == nil || p.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return nil // a PE that has closed has received everything
	}
	err = p.opError(op, err)
	var gone *PEError
	if errors.As(err, &gone) && p.in.rankOf(gone.PE) < 0 { // a team without that PE goes on
		if gone = p.in.gone(); gone == nil {
			return nil
		}
		return opError(op, gone)
	}
	return err
}
