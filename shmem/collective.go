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
	t := teamOf(on)
	return collect(ctx, t, broadcast(t, buf, root))
}

// StartBroadcast starts a [Broadcast], as do the other functions named Start their calls: the
// package comment says what that means.
func StartBroadcast[T Element](on Group, buf []T, root int) (*Request, error) {
	t := teamOf(on)
	return start(t, broadcast(t, buf, root))
}

func broadcast[T Element](t *Team, buf []T, root int) arguments {
	b := collective.Bytes(buf)
	a := arguments{op: "broadcast", kind: kindBroadcast, src: b, dst: b,
		shape: shape{n: len(buf), of: collective.TypeOf[T]()},
		part:  part{kind: collective.Broadcast, root: root, bytes: len(b)}}
	return a.from(t, root)
}

// from completes the arguments of a call with a root.
func (a arguments) from(t *Team, root int) arguments {
	if t == nil {
		return a // which is refused
	}
	if uint(root) >= uint(t.Size()) {
		a.err = invalid(a.op, "root %d: the ranks are 0 to %d", root, t.Size()-1)
	} else {
		a.shape.param = t.members[root].id
	}
	return a
}

// AllGather copies every PE's src to dst on every PE, in the order of the PEs: len(dst) is len(src)
// times the number of PEs. dst and src may be any memory. They must not overlap, except that src
// may be this PE's own part of dst, in place. It is collective; all PEs pass the same length. If
// the lengths do not fit together, or dst and src overlap otherwise, the error is verbs.ErrInvalid,
// and the call of all other PEs ends with [ErrMismatch].
func AllGather[T Element](ctx context.Context, on Group, dst, src []T) error {
	t := teamOf(on)
	return collect(ctx, t, allGather(t, dst, src))
}

// StartAllGather starts an [AllGather].
func StartAllGather[T Element](on Group, dst, src []T) (*Request, error) {
	t := teamOf(on)
	return start(t, allGather(t, dst, src))
}

func allGather[T Element](t *Team, dst, src []T) arguments {
	a := gatherOf("all-gather", kindAllGather, collective.Bytes(dst), collective.Bytes(src))
	a.shape = shape{n: len(src), of: collective.TypeOf[T]()}
	if n := t.Size(); len(dst) != len(src)*n {
		a.err = invalid(a.op, "dst has %d elements: %d for each of %d PEs are %d", len(dst), len(src), n,
			len(src)*n)
	} else if !fits(a.dst, a.src, t.Rank()*len(a.src)) {
		a.err = invalid(a.op, "dst and src overlap, and src is not part %d of dst: it would be overwritten "+
			"before it is sent", t.Rank())
	}
	return a
}

// gatherOf is an AllGather of bytes, in a call of any kind.
func gatherOf(op string, k kind, dst, src []byte) arguments {
	return arguments{op: op, kind: k, dst: dst, src: src,
		part: part{kind: collective.AllGather, bytes: len(src)}}
}

// fits reports whether short does not overlap long, or is its part at off.
func fits(long, short []byte, off int) bool {
	return !collective.Overlap(long, short) || off+len(short) <= len(long) && &long[off] == &short[0]
}

// Gather copies every PE's src to dst of rank root, in the order of the PEs: there len(dst) is
// len(src) times the number of PEs; the others' dst is not used. Memory is as for [AllGather]. It
// returns when this PE's part is done: only the root waits for all. An invalid root is
// verbs.ErrInvalid, and ends the call of all other PEs with [ErrMismatch].
func Gather[T Element](ctx context.Context, on Group, dst, src []T, root int) error {
	t := teamOf(on)
	return collect(ctx, t, rooted(t, kindGather, dst, src, root))
}

// StartGather starts a [Gather].
func StartGather[T Element](on Group, dst, src []T, root int) (*Request, error) {
	t := teamOf(on)
	return start(t, rooted(t, kindGather, dst, src, root))
}

// Scatter copies part i of rank root's src to dst of rank i: there len(src) is len(dst) times the
// number of PEs; the others' src is not used. dst may be the root's own part of src, in place;
// otherwise they must not overlap. The rest is as for [Gather].
func Scatter[T Element](ctx context.Context, on Group, dst, src []T, root int) error {
	t := teamOf(on)
	return collect(ctx, t, rooted(t, kindScatter, src, dst, root))
}

// StartScatter starts a [Scatter].
func StartScatter[T Element](on Group, dst, src []T, root int) (*Request, error) {
	t := teamOf(on)
	return start(t, rooted(t, kindScatter, src, dst, root))
}

// rooted is a Gather or a Scatter. all is what only the root has, and each what each PE has.
func rooted[T Element](t *Team, k kind, all, each []T, root int) arguments {
	long, short := collective.Bytes(all), collective.Bytes(each)
	a := arguments{op: k.String(), kind: k, src: short, dst: long,
		shape: shape{n: len(each), of: collective.TypeOf[T]()},
		part:  part{kind: collective.Gather, root: root, bytes: len(short)}}
	if a = a.from(t, root); t.Rank() != root || t == nil {
		long, a.dst = nil, nil
	} else if a.err == nil {
		a.err = checkRooted(a.op, long, short, t, collective.SizeOf[T]())
	}
	if k == kindScatter {
		a.part.kind, a.src, a.dst = collective.Scatter, long, short
	}
	return a
}

// checkRooted returns what is wrong with the memory of the root: the long one has a part for each
// PE, of which the short one may be its own.
func checkRooted(op string, long, short []byte, t *Team, size int) error {
	if len(long) != len(short)*t.Size() {
		return invalid(op, "%d elements for %d PEs, and %d for each of them", len(long)/size, t.Size(),
			len(short)/size)
	}
	if !fits(long, short, t.rank*len(short)) {
		return invalid(op, "dst and src overlap, and not as part %d of one and all of the other", t.rank)
	}
	return nil
}

// AllToAll sends part i of src to PE i and receives part i of dst from PE i. Both have as many
// equal parts as there are PEs. dst and src may be any memory, and must not overlap. It is
// collective; all PEs pass the same length. If a length does not fit, or dst and src overlap, the
// error is verbs.ErrInvalid, and the call of all other PEs ends with [ErrMismatch].
func AllToAll[T Element](ctx context.Context, on Group, dst, src []T) error {
	t := teamOf(on)
	return collect(ctx, t, allToAll(t, dst, src))
}

// StartAllToAll starts an [AllToAll].
func StartAllToAll[T Element](on Group, dst, src []T) (*Request, error) {
	t := teamOf(on)
	return start(t, allToAll(t, dst, src))
}

func allToAll[T Element](t *Team, dst, src []T) arguments {
	n := max(t.Size(), 1)
	a := arguments{op: "all-to-all", kind: kindAllToAll, src: collective.Bytes(src),
		dst: collective.Bytes(dst), shape: shape{n: len(src), of: collective.TypeOf[T]()}}
	a.part = part{kind: collective.AllToAll, bytes: len(a.src) / n}
	if len(dst) != len(src) || len(src)%n != 0 {
		a.err = invalid(a.op, "dst has %d elements, src %d: both must have the same multiple of %d, the "+
			"number of PEs", len(dst), len(src), n)
	} else if collective.Overlap(a.dst, a.src) {
		a.err = invalid(a.op, "dst and src overlap: a part would be written before it is sent")
	}
	return a
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
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindReduce, dst, src, int(op)))
}

// StartReduce starts a [Reduce].
func StartReduce[T Element](on Group, dst, src []T, op ReduceOp) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindReduce, dst, src, int(op)))
}

// ReduceScatter is Reduce of a src that has as many equal parts as there are PEs: part i of the
// result goes to dst of rank i. dst and src must not overlap.
func ReduceScatter[T Element](ctx context.Context, on Group, dst, src []T, op ReduceOp) error {
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindReduceScatter, dst, src, int(op)))
}

// StartReduceScatter starts a [ReduceScatter].
func StartReduceScatter[T Element](on Group, dst, src []T, op ReduceOp) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindReduceScatter, dst, src, int(op)))
}

// Scan is Reduce of the PEs up to this one: dst has the result of ranks 0 to its own.
func Scan[T Element](ctx context.Context, on Group, dst, src []T, op ReduceOp) error {
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindScan, dst, src, int(op)))
}

// StartScan starts a [Scan].
func StartScan[T Element](on Group, dst, src []T, op ReduceOp) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindScan, dst, src, int(op)))
}

// ReduceFunc is Reduce with the caller's function, which must be associative; its first argument
// comes from PEs with lower numbers. All PEs must pass the same function, which cannot be checked.
// It runs in whichever goroutine makes progress, and must not call anything of this package. A call
// allocates a little.
func ReduceFunc[T Element](ctx context.Context, on Group, dst, src []T, fn func(a, b T) T) error {
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindReduce, dst, src, paramFunc).by(combineBy(fn)))
}

// StartReduceFunc starts a [ReduceFunc].
func StartReduceFunc[T Element](on Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindReduce, dst, src, paramFunc).by(combineBy(fn)))
}

// ReduceScatterFunc is [ReduceScatter] by a function, as in [ReduceFunc].
func ReduceScatterFunc[T Element](ctx context.Context, on Group, dst, src []T, fn func(a, b T) T) error {
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindReduceScatter, dst, src, paramFunc).by(combineBy(fn)))
}

// StartReduceScatterFunc starts a [ReduceScatterFunc].
func StartReduceScatterFunc[T Element](on Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindReduceScatter, dst, src, paramFunc).by(combineBy(fn)))
}

// ScanFunc is [Scan] by a function, as in [ReduceFunc].
func ScanFunc[T Element](ctx context.Context, on Group, dst, src []T, fn func(a, b T) T) error {
	t := teamOf(on)
	return collect(ctx, t, reduction(t, kindScan, dst, src, paramFunc).by(combineBy(fn)))
}

// StartScanFunc starts a [ScanFunc].
func StartScanFunc[T Element](on Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	t := teamOf(on)
	return start(t, reduction(t, kindScan, dst, src, paramFunc).by(combineBy(fn)))
}

// paramFunc replaces the op in the tag of a reduction by a function.
const paramFunc = 1<<16 - 1

// combineBy returns a function that combines the elements of two ranges; nil for nil.
func combineBy[T Element](fn func(a, b T) T) func(to, a, b []byte) {
	if fn == nil {
		return nil
	}
	return func(to, a, b []byte) {
		sum, x, y := collective.View[T](to), collective.View[T](a), collective.View[T](b)
		for i := range sum {
			sum[i] = fn(x[i], y[i])
		}
	}
}

// by makes a reduction one by a function.
func (a arguments) by(combine func(to, a, b []byte)) arguments {
	a.combine = combine
	if combine == nil && a.err == nil {
		a.err = invalid(a.op, "fn is nil")
	}
	return a
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

// reduction is a reduction of a kind. param identifies its operation to the other PEs.
func reduction[T Element](t *Team, k kind, dst, src []T, param int) arguments {
	a := arguments{op: k.String(), kind: k, src: collective.Bytes(src), dst: collective.Bytes(dst),
		shape: shape{n: len(dst), of: collective.TypeOf[T](), param: param}}
	if param == paramFunc {
		a.op += " func"
	}
	a.part = part{kind: k.reduction(), bytes: len(a.dst), ordered: param == paramFunc,
		inPlace: collective.Overlap(a.dst, a.src)}
	switch parts := t.Size(); {
	case k != kindReduceScatter && len(dst) != len(src):
		a.err = invalid(a.op, "dst has %d elements, src %d", len(dst), len(src))
	case k == kindReduceScatter && len(dst)*parts != len(src):
		a.err = invalid(a.op, "src has %d elements: %d for each of %d PEs are %d", len(src), len(dst), parts,
			len(dst)*parts)
	case param != paramFunc && !a.shape.of.Has(ReduceOp(param)):
		a.err = invalid(a.op, "op %v: elements of %v have %s", ReduceOp(param), a.shape.of,
			a.shape.of.Operations())
	case k == kindReduceScatter && a.part.inPlace:
		a.err = invalid(a.op, "dst and src overlap: a part would be written before it is sent")
	}
	return a
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
	if err := p.checkInStep(ctx, op); err != nil {
		return err
	}
	if err := p.quiet(ctx, op); err != nil {
		return p.explain(op, err) // this PE has not entered the barrier, and may call it again
	}
	return p.sync(ctx, op)
}

// sync is Sync with collective held.
func (p *PE) sync(ctx context.Context, op string) error { return p.world.sync(ctx, op) }

// rounds is how far a barrier of all PEs has come: each round sends a mark to one PE and waits for
// that of another.
type rounds struct {
	words        uint64 // offset of the word of this round; 0 in a call that has messages instead
	number, mark uint64
	distance     int  // to the PE that the mark goes to
	sent         bool // it is on its way
}

// from returns the PE whose mark a barrier waits for.
func (r *Request) from() *peer {
	p := r.pe
	n := len(p.peers)
	return &p.peers[(p.id-min(r.rounds.distance, n)+n)%n]
}

// disseminate sends a mark to all PEs, and reports whether all have reached its number: in round i
// each PE writes to the PE that is 2^i further on, and so passes on all that it has received. The
// words only grow, so the word of a PE that is ahead serves as well. A PE that receives a mark of
// calls other than its own passes nothing on. Each PE receives from every other on some path, and
// on a path between two PEs whose calls differ some PE detects it: if PEs are out of step, none
// completes the barrier.
func (p *PE) disseminate(ctx context.Context, r *Request) (done bool, err error) {
	n, d := len(p.peers), &r.rounds
	for _, e := range p.exchange.requests {
		if e == r {
			break
		}
		if e.rounds.words != 0 {
			return false, nil // its words are those of this one
		}
	}
	for ; d.distance < n; d.distance *= 2 {
		to, from := &p.peers[(p.id+d.distance)%n], r.from()
		if !d.sent && r.broken {
			return false, nil
		}
		if !d.sent {
			if ok, err := to.tryWord(d.words, d.mark); !ok {
				if err != nil {
					err = to.opError(r.op, err)
				}
				return false, err
			}
			d.sent = true
		}
		got := atomic.LoadUint64(word64(p.heap, d.words))
		if got>>markBits < d.number {
			return false, nil
		}
		if got != d.mark && got>>markBits == d.mark>>markBits {
			return false, p.mismatch(ctx, r.op, from, r.differ(r.tag, r.team))
		}
		d.words += 8
		d.sent = false
	}
	return true, nil
}

// flushLocal waits until everything that this PE has put has been sent: PEs that wait for it must
// not depend on this PE's next call.
func (p *PE) flushLocal(ctx context.Context, op string, in *Team) error {
	err := p.worker.Flush(ctx, transport.FlushLocal)
	if err == nil || p.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return nil // a PE that has closed has received everything
	}
	err = p.opError(op, err)
	var gone *PEError
	if errors.As(err, &gone) && in.rankOf(gone.PE) < 0 { // a team without that PE goes on
		if gone = in.gone(); gone == nil {
			return nil
		}
		return opError(op, gone)
	}
	return err
}
