package tagged

import (
	"context"
	"fmt"

	"ibverbx/internal/collective"
	"ibverbx/verbs"
)

// Calls whose blocks have a length each.

// GatherV is [Gather] of blocks of unequal lengths: counts has that of each rank, and dst their
// sum. Only the root's counts and dst are used; the others pass nil.
func GatherV[T Element](ctx context.Context, g Group, dst []T, counts []int, src []T, root int) error {
	return collect(ctx, g, call{kind: collective.Gather, root: root, unequal: true, counts: counts}, dst, src,
		0)
}

// AllGatherV is [AllGather] of blocks of unequal lengths: counts has that of each rank, and dst
// their sum. All pass the same counts.
func AllGatherV[T Element](ctx context.Context, g Group, dst []T, counts []int, src []T) error {
	return collect(ctx, g, call{kind: collective.AllGather, unequal: true, counts: counts}, dst, src, 0)
}

// ScatterV is [Scatter] of blocks of unequal lengths: counts has that of each rank, and src their
// sum. Only the root's counts and src are used; the others pass nil.
func ScatterV[T Element](ctx context.Context, g Group, dst, src []T, counts []int, root int) error {
	return collect(ctx, g, call{kind: collective.Scatter, root: root, unequal: true, counts: counts}, dst,
		src, 0)
}

// AllToAllV is [AllToAll] of blocks of unequal lengths: block i of src has sends[i] elements, and
// block i of dst receives[i], which is what rank i sends to this one.
func AllToAllV[T Element](ctx context.Context, g Group, dst []T, receives []int, src []T,
	sends []int) error {
	return collect(ctx, g, call{kind: collective.AllToAll, unequal: true, counts: sends, receives: receives},
		dst, src, 0)
}

// StartGatherV starts [GatherV].
func StartGatherV[T Element](g Group, dst []T, counts []int, src []T, root int) (*Request, error) {
	return start(g, call{kind: collective.Gather, root: root, unequal: true, counts: counts}, dst, src, 0)
}

// StartAllGatherV starts [AllGatherV].
func StartAllGatherV[T Element](g Group, dst []T, counts []int, src []T) (*Request, error) {
	return start(g, call{kind: collective.AllGather, unequal: true, counts: counts}, dst, src, 0)
}

// StartScatterV starts [ScatterV].
func StartScatterV[T Element](g Group, dst, src []T, counts []int, root int) (*Request, error) {
	return start(g, call{kind: collective.Scatter, root: root, unequal: true, counts: counts}, dst, src, 0)
}

// StartAllToAllV starts [AllToAllV].
func StartAllToAllV[T Element](g Group, dst []T, receives []int, src []T, sends []int) (*Request, error) {
	return start(g, call{kind: collective.AllToAll, unequal: true, counts: sends, receives: receives}, dst,
		src, 0)
}

const (
	// opUnequal is the operation in the tickets of calls with blocks of unequal lengths, and opFunc
	// in those of reductions by a function.
	opUnequal = ReduceOp(1)
	opFunc    = ReduceOp(7)
	// The gathering by which a team is made is a call of its own.
	opSplit  = ReduceOp(2)
	opShrink = ReduceOp(3)
)

// knows reports whether this rank has the lengths of all blocks.
func (c *call) knows(rank int) bool { return !c.rooted() || rank == c.root }

// checkCounts returns what is wrong with the lengths of blocks.
func (c *call) checkCounts(ranks, rank int) error {
	if !c.knows(rank) {
		return nil
	}
	lists := [...][]int{c.counts, c.receives}
	n := 1
	if c.kind == collective.AllToAll {
		n = 2
	}
	for _, counts := range lists[:n] {
		if len(counts) != ranks {
			return fmt.Errorf("%w: %d lengths of blocks: each of %d ranks has one", verbs.ErrInvalid,
				len(counts), ranks)
		}
		for i, k := range counts {
			if k < 0 || k > maxBlock {
				return fmt.Errorf("%w: block %d has %d elements: must be 0 to %d", verbs.ErrInvalid, i, k,
					maxBlock)
			}
		}
	}
	if n == 2 && c.counts[rank] != c.receives[rank] {
		return fmt.Errorf("%w: this rank, %d, sends itself %d elements and receives %d", verbs.ErrInvalid,
			rank, c.counts[rank], c.receives[rank])
	}
	return nil
}

// maxBlock is the most elements of a block: the sum of all fits an int.
const maxBlock = 1 << 40

// unequalLengths is lengths of a call whose blocks have a length each. Of Gather and Scatter a rank
// that is not the root may pass any number: the root finds out.
func (c *call) unequalLengths(rank int) (dst, src int) {
	if !c.knows(rank) {
		return -1, -1
	}
	all, own := sum(c.counts), c.counts[rank]
	switch c.kind {
	case collective.Scatter:
		return own, all
	case collective.AllToAll:
		return sum(c.receives), all
	}
	return all, own
}

// keepCounts copies the lengths of the blocks, so that they are the program's again. A rank that
// knows only its own has that one.
func (c *flight) keepCounts(ranks, rank int) {
	n := len(c.src)
	if c.kind == collective.Scatter {
		n = len(c.dst)
	}
	known := c.knows(rank)
	for i, counts := range [...]*[]int{&c.counts, &c.receives} {
		if i == 1 && c.kind != collective.AllToAll {
			break
		}
		if c.own[i] == nil {
			c.own[i] = make([]int, ranks)
		}
		clear(c.own[i])
		if known {
			copy(c.own[i], *counts)
		} else {
			c.own[i][rank] = n / c.of.Size()
		}
		*counts = c.own[i]
	}
}

// unequalShape makes the shape one of unequal blocks. Only a star works when but the root knows the
// lengths of all.
func (c *flight) unequalShape(s *collective.Shape) {
	s.Count, s.Counts = 0, c.counts
	switch c.kind {
	case collective.Gather, collective.Scatter:
		s.Algorithm = collective.Star
	case collective.AllToAll:
		s.Algorithm, s.Receives = collective.Pairwise, c.receives
	}
}

// sum adds the lengths of blocks.
func sum(counts []int) (n int) {
	for _, k := range counts {
		n += k
	}
	return n
}

// hashAll adds the lengths of all blocks to a hash.
func hashAll(hash uint64, counts []int) uint64 {
	for _, k := range counts {
		hash = collective.Mix(hash, uint64(k))
	}
	return hash
}
