package collective

import "math/bits"

// Trees. Every subtree is a segment of consecutive ranks, so its blocks are one range, and
// combining a rank's subtrees from the nearest to the farthest keeps the order of the ranks,
// whatever the root.

// segment is ranks lo to hi-1, below one of them.
type segment struct{ lo, hi, head int }

func (s segment) holds(rank int) bool { return s.lo <= rank && rank < s.hi }

// node is a rank's place in a tree.
type node struct {
	parent int       // -1 for the root
	above  segment   // the whole of the parent's
	mine   segment   // the whole of this rank's
	below  []segment // those of its children, the farthest first
}

// cut takes the farthest subtree out of a segment of several ranks.
type cut func(s segment) (near, far segment)

func binomial(s segment) (near, far segment) {
	mid := s.lo + 1<<(bits.Len(uint(s.hi-s.lo-1))-1) // the largest power of two below the length
	if s.head < mid {
		return segment{s.lo, mid, s.head}, segment{mid, s.hi, mid}
	}
	return segment{mid, s.hi, s.head}, segment{s.lo, mid, s.lo}
}

func chain(s segment) (near, far segment) {
	if s.head+1 < s.hi {
		return segment{s.lo, s.head + 1, s.head}, segment{s.head + 1, s.hi, s.head + 1}
	}
	return segment{s.head, s.hi, s.head}, segment{s.lo, s.head, s.head - 1}
}

func star(s segment) (near, far segment) {
	if s.head+1 < s.hi {
		return segment{s.lo, s.hi - 1, s.head}, segment{s.hi - 1, s.hi, s.hi - 1}
	}
	return segment{s.lo + 1, s.hi, s.head}, segment{s.lo, s.lo + 1, s.lo}
}

// node finds this rank's place: it goes down the tree to the segment that this rank heads.
func (b *builder) node(far cut) node {
	s := segment{0, b.n, b.Shape.Root}
	t := node{parent: -1, above: s, mine: s}
	for s.hi-s.lo > 1 {
		near, far := far(s)
		switch {
		case far.holds(b.rank):
			t.parent, t.above, t.mine, s = s.head, t.mine, far, far
		default:
			if s.head == b.rank {
				t.below = append(t.below, far)
			}
			s = near
		}
	}
	return t
}

func (b *builder) broadcast(far cut) {
	t, v := b.node(far), b.vector(Dst)
	if t.parent >= 0 {
		b.receive(t.parent, v)
	}
	for _, child := range t.below {
		b.send(child.head, v, v)
	}
}

func (b *builder) reduce(far cut) {
	t, v := b.node(far), b.vector(Src)
	sum := b.vector(Dst)
	if t.parent >= 0 && len(t.below) > 0 {
		sum = b.scratch(v.Len)
	}
	for i := len(t.below) - 1; i >= 0; i-- {
		child := t.below[i].head
		b.combine(child, v, sum, child < b.rank)
		v = sum
	}
	if t.parent >= 0 {
		b.send(t.parent, v, Range{Buffer: Land})
	} else {
		b.copy(v, sum) // if there is one rank
	}
}

// gather: a rank collects the blocks of its segment, and sends them to its parent as one range.
func (b *builder) gather(far cut) {
	t := b.node(far)
	all, v := b.segment(t, Dst), b.own(Src)
	if t.parent < 0 || len(t.below) > 0 {
		own := b.within(all, t.mine, segment{lo: b.rank, hi: b.rank + 1})
		if t.parent >= 0 || !b.Shape.InPlace {
			b.copy(v, own)
		}
		v = all
	}
	for _, child := range t.below {
		b.receive(child.head, b.within(all, t.mine, child))
	}
	if t.parent >= 0 {
		to := Range{Tmp, b.run(None, t.above.lo, t.mine.lo).Len, 0}
		if t.parent == b.Shape.Root {
			to.Buffer = Dst
		}
		b.send(t.parent, v, to)
	}
}

// scatter is gather the other way round.
func (b *builder) scatter(far cut) {
	t := b.node(far)
	all := b.segment(t, Src)
	if t.parent >= 0 {
		b.receive(t.parent, all)
	}
	for _, child := range t.below {
		to := Range{Buffer: Dst}
		if child.hi-child.lo > 1 {
			to.Buffer = Tmp
		}
		b.send(child.head, b.within(all, t.mine, child), to)
	}
	if (t.parent >= 0 || !b.Shape.InPlace) && all.Buffer != Dst {
		b.copy(b.within(all, t.mine, segment{lo: b.rank, hi: b.rank + 1}), b.own(Dst))
	}
}

// segment returns where the blocks of a node's segment are: at the root in a buffer, at a leaf in
// Dst, in between in Tmp.
func (b *builder) segment(t node, root Buffer) Range {
	switch {
	case t.parent < 0:
		return b.run(root, 0, b.n)
	case len(t.below) == 0:
		return b.own(Dst)
	}
	return b.scratch(b.run(None, t.mine.lo, t.mine.hi).Len)
}

// within returns where the blocks of a part of a segment are.
func (b *builder) within(all Range, s, part segment) Range {
	r := b.run(None, part.lo, part.hi)
	return all.part(r.Off-b.blocks[s.lo], r.Len)
}
