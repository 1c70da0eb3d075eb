package shmem

import (
	"context"
	"math"

	"ibverbx/internal/collective"
)

// Calls whose blocks have a length each.

// GatherV is [Gather] of parts of unequal lengths: counts has that of each PE, and dst their sum.
// Only the root's counts and dst are used; the others pass nil. If the root expects a length other
// than a PE sends, both get [ErrMismatch]; if one of the two lengths is zero, perhaps only in the
// next call.
func GatherV[T Element](ctx context.Context, on Group, dst []T, counts []int, src []T, root int) error {
	t := teamOf(on)
	return collect(ctx, t, rootedV(t, kindGather, dst, counts, src, root))
}

// StartGatherV starts a [GatherV].
func StartGatherV[T Element](on Group, dst []T, counts []int, src []T, root int) (*Request, error) {
	t := teamOf(on)
	return start(t, rootedV(t, kindGather, dst, counts, src, root))
}

// AllGatherV is [AllGather] of parts of unequal lengths: counts has that of each PE, and dst their
// sum. All pass the same counts.
func AllGatherV[T Element](ctx context.Context, on Group, dst []T, counts []int, src []T) error {
	t := teamOf(on)
	return collect(ctx, t, allGatherV(t, dst, counts, src))
}

// StartAllGatherV starts an [AllGatherV].
func StartAllGatherV[T Element](on Group, dst []T, counts []int, src []T) (*Request, error) {
	t := teamOf(on)
	return start(t, allGatherV(t, dst, counts, src))
}

// ScatterV is [Scatter] of parts of unequal lengths: counts has that of each PE, and src their sum.
// Only the root's counts and src are used; the others pass nil. The rest is as for [GatherV].
func ScatterV[T Element](ctx context.Context, on Group, dst, src []T, counts []int, root int) error {
	t := teamOf(on)
	return collect(ctx, t, rootedV(t, kindScatter, src, counts, dst, root))
}

// StartScatterV starts a [ScatterV].
func StartScatterV[T Element](on Group, dst, src []T, counts []int, root int) (*Request, error) {
	t := teamOf(on)
	return start(t, rootedV(t, kindScatter, src, counts, dst, root))
}

// AllToAllV is [AllToAll] of parts of unequal lengths: part i of src has sends[i] elements, and
// part i of dst receives[i], which is what PE i sends to this one. What two PEs say of each other
// is compared as in [GatherV].
func AllToAllV[T Element](ctx context.Context, on Group, dst []T, receives []int, src []T,
	sends []int) error {
	t := teamOf(on)
	return collect(ctx, t, allToAllV(t, dst, receives, src, sends))
}

// StartAllToAllV starts an [AllToAllV].
func StartAllToAllV[T Element](on Group, dst []T, receives []int, src []T, sends []int) (*Request, error) {
	t := teamOf(on)
	return start(t, allToAllV(t, dst, receives, src, sends))
}

// rootedV is a GatherV or a ScatterV. all is what only the root has, and each what each PE has.
func rootedV[T Element](t *Team, k kind, all []T, counts []int, each []T, root int) arguments {
	long, short := collective.Bytes(all), collective.Bytes(each)
	a := arguments{op: k.String(), kind: k, src: short, dst: long,
		shape: shape{of: collective.TypeOf[T](), unequal: true},
		part:  part{kind: collective.Gather, root: root}}
	if a = a.from(t, root); t.Rank() == root && t != nil {
		a.unequal(t, 0, "counts", counts, len(all))
		a.own(t, counts, len(each), long, short)
	} else {
		long, a.dst = nil, nil
		a.counts[0] = make([]int, t.Size())
		if a.err == nil && t != nil {
			a.counts[0][t.rank] = len(short)
		}
	}
	if k == kindScatter {
		a.part.kind, a.src, a.dst = collective.Scatter, long, short
	}
	return a
}

func allGatherV[T Element](t *Team, dst []T, counts []int, src []T) arguments {
	a := gatherOf("all-gather", kindAllGather, collective.Bytes(dst), collective.Bytes(src))
	a.shape = shape{of: collective.TypeOf[T](), unequal: true}
	for _, n := range counts {
		a.shape.counts = int(collective.Mix(uint64(a.shape.counts), uint64(n)))
	}
	if t != nil {
		a.unequal(t, 0, "counts", counts, len(dst))
		a.own(t, counts, len(src), a.dst, a.src)
	}
	return a
}

func allToAllV[T Element](t *Team, dst []T, receives []int, src []T, sends []int) arguments {
	a := arguments{op: "all-to-all", kind: kindAllToAll, src: collective.Bytes(src),
		dst: collective.Bytes(dst), shape: shape{of: collective.TypeOf[T](), unequal: true},
		part: part{kind: collective.AllToAll}}
	if t == nil {
		return a
	}
	a.unequal(t, 0, "sends", sends, len(src))
	a.unequal(t, 1, "receives", receives, len(dst))
	switch {
	case a.err != nil:
	case sends[t.rank] != receives[t.rank]:
		a.err = invalid(a.op, "this PE, rank %d, sends itself %d elements and receives %d", t.rank,
			sends[t.rank], receives[t.rank])
	case collective.Overlap(a.dst, a.src):
		a.err = invalid(a.op, "dst and src overlap: a part would be written before it is sent")
	}
	return a
}

// maxPart is the most elements of a part: the sum of all, in bytes, fits an int.
const maxPart = 1 << 40

// unequal checks a list of lengths, of which all is to be the sum, and copies it in bytes.
func (a *arguments) unequal(t *Team, list int, name string, counts []int, all int) {
	if a.err != nil {
		return
	}
	if len(counts) != t.Size() {
		a.err = invalid(a.op, "%s has %d lengths: each of %d PEs has one", name, len(counts), t.Size())
		return
	}
	sum := 0
	bytes := make([]int, len(counts))
	for i, n := range counts {
		if n < 0 || n > maxPart {
			a.err = invalid(a.op, "%s: part %d has %d elements: must be 0 to %d", name, i, n, maxPart)
			return
		}
		sum += n
		bytes[i] = n * a.shape.of.Size()
	}
	if sum != all {
		a.err = invalid(a.op, "%s has %d elements in all, the slice %d", name, sum, all)
	}
	a.counts[list] = bytes
}

// own checks the part of this PE, of n elements, which may be in its place of the long one.
func (a *arguments) own(t *Team, counts []int, n int, long, short []byte) {
	if a.err != nil {
		return
	}
	off := 0
	for _, k := range a.counts[0][:t.rank] {
		off += k
	}
	switch {
	case counts[t.rank] != n:
		a.err = invalid(a.op, "counts gives this PE, rank %d, %d elements: its slice has %d", t.rank,
			counts[t.rank], n)
	case !fits(long, short, off):
		a.err = invalid(a.op, "dst and src overlap, and not as part %d of one and all of the other", t.rank)
	}
}

// unequalPlan is the plan of a call with blocks of unequal lengths: its elements are bytes, and one
// schedule covers all. Only a star works when but the root knows the lengths of all.
func (t *Team) unequalPlan(r *Request) (plan, error) {
	s := collective.Shape{Kind: r.part.kind, Ranks: t.Size(), Rank: t.rank, Root: r.part.root,
		Piece: int(t.pe.layout.slot), Depth: depth, Counts: r.counts[0]}
	switch s.Kind {
	case collective.AllToAll:
		s.Algorithm, s.Receives = collective.Pairwise, r.counts[1]
	case collective.AllGather:
		s.Algorithm = collective.Choose(&s, collective.Network{Latency: latency, Overhead: overhead})
	default:
		s.Algorithm = collective.Star
	}
	schedule, err := t.pe.exchange.cache.Schedule(&s)
	whole := part{kind: s.Kind, root: s.Root, bytes: math.MaxInt}
	return plan{part: whole, schedule: schedule, unit: 1, block: math.MaxInt}, err
}
