package collective

import "math/bits"

// Each algorithm is a method of builder: what one rank does, one thing after the other. Ranks count
// around: up is the next one.

// block returns block i of a buffer that has all blocks.
func (b *builder) block(buffer Buffer, i int) Range { return b.run(buffer, i, i+1) }

// run returns blocks lo to hi-1 of a buffer that has all blocks.
func (b *builder) run(buffer Buffer, lo, hi int) Range {
	return Range{buffer, b.blocks[lo], b.blocks[hi] - b.blocks[lo]}
}

// vector returns all of Src or Dst in a kind without blocks.
func (b *builder) vector(buffer Buffer) Range {
	if b.Shape.InPlace && buffer == Src && (b.Shape.Kind != Reduce || b.rank == b.Shape.Root) {
		buffer = Dst
	}
	return Range{buffer, 0, b.Shape.Count}
}

// own returns this rank's block in a buffer that has only that.
func (b *builder) own(buffer Buffer) Range {
	return Range{buffer, 0, b.blocks[b.rank+1] - b.blocks[b.rank]}
}

// up returns the rank that is d further on.
func (b *builder) up(d int) int { return ((b.rank+d)%b.n + b.n) % b.n }

// cutVector cuts the vector into as equal blocks as can be.
func (b *builder) cutVector(blocks int) {
	b.blocks = make([]int, blocks+1)
	for i := range b.blocks {
		b.blocks[i] = b.Shape.Count * i / blocks
	}
}

// barrier: after round r a rank knows that the 2^(r+1)-1 ranks below it have come.
func (b *builder) barrier() {
	for d := 1; d < b.n; d *= 2 {
		b.sendPiece(b.up(d), Range{}, Range{})
		b.gate, _ = b.receivePiece(b.up(-d), Range{})
	}
}

// Partners at powers of two. If n is no power of two, each of the first pairs of ranks acts as one:
// its odd rank hands its vector to the even one first, and gets the result last.

// pairing numbers the actors, power of two, in the order of the ranks.
type pairing struct{ pairs, power int }

func pair(n int) pairing {
	power := 1 << (bits.Len(uint(n)) - 1)
	return pairing{pairs: n - power, power: power}
}

// first returns the rank that acts as number a; of the actor behind the last, the number of ranks.
func (p pairing) first(a int) int { return a + min(a, p.pairs) }

// number returns the actor that a rank belongs to.
func (p pairing) number(rank int) int {
	if rank < 2*p.pairs {
		return rank / 2
	}
	return rank - p.pairs
}

// handOver begins with the pairs: it returns the vector with which this rank acts, and false if
// the other rank of its pair acts for it.
func (b *builder) handOver(p pairing, v, to Range) (acting Range, acts bool) {
	switch {
	case b.rank >= 2*p.pairs:
		return v, true
	case b.rank%2 == 1:
		b.send(b.rank-1, v, Range{Buffer: Land})
		return v, false
	}
	b.combine(b.rank+1, v, to, false)
	return to, true
}

// handBack ends with the pairs: the odd rank gets its part of the result.
func (b *builder) handBack(p pairing, from, to Range) {
	switch {
	case b.rank >= 2*p.pairs:
	case b.rank%2 == 1:
		b.receive(b.rank-1, to)
	default:
		b.send(b.rank+1, from, to)
	}
}

func (b *builder) allReduceDoubling() {
	p, sum := pair(b.n), b.vector(Dst)
	v, acts := b.handOver(p, b.vector(Src), sum)
	me := p.number(b.rank)
	for d := 1; acts && d < p.power; d *= 2 {
		peer := p.first(me ^ d)
		b.send(peer, v, Range{Buffer: Land})
		b.combine(peer, v, sum, peer < b.rank)
		v = sum
	}
	if b.n == 1 {
		b.copy(v, sum)
	}
	b.handBack(p, sum, sum)
}

// allReduceBinomial: the actors combine what allReduceDoubling does, but each only once, up a tree,
// and the result goes down again.
func (b *builder) allReduceBinomial() {
	p, sum := pair(b.n), b.vector(Dst)
	v, acts := b.handOver(p, b.vector(Src), sum)
	me, d := p.number(b.rank), 1
	for ; acts && d < p.power && me&d == 0; d *= 2 {
		b.combine(p.first(me|d), v, sum, false)
		v = sum
	}
	if acts && d < p.power {
		b.send(p.first(me^d), v, Range{Buffer: Land})
		b.receive(p.first(me^d), sum)
	}
	if b.n == 1 {
		b.copy(v, sum)
	}
	for d /= 2; acts && d > 0; d /= 2 { // the largest subtree first
		b.send(p.first(me|d), sum, sum)
	}
	b.handBack(p, sum, sum)
}

// allReduceHalving: partners share what both have, each combines its half, and the halves come back
// in the reverse order. Partners are the nearest first, which keeps the order of the ranks.
func (b *builder) allReduceHalving() {
	p, sum := pair(b.n), b.vector(Dst)
	b.cutVector(p.power)
	v, acts := b.handOver(p, b.vector(Src), sum)
	if acts {
		b.halve(p, v.Buffer)
	}
	if b.n == 1 {
		b.copy(v, sum)
	}
	b.handBack(p, sum, sum)
}

func (b *builder) halve(p pairing, from Buffer) {
	me, lo, hi := p.number(b.rank), 0, p.power
	for d := 1; d < p.power; d *= 2 {
		peer, mid := p.first(me^d), (lo+hi)/2
		mine, theirs := segment{lo: lo, hi: mid}, segment{lo: mid, hi: hi}
		if me&d != 0 {
			mine, theirs = theirs, mine
		}
		b.send(peer, b.run(from, theirs.lo, theirs.hi), Range{Buffer: Land})
		b.combine(peer, b.run(from, mine.lo, mine.hi), b.run(Dst, mine.lo, mine.hi), peer < b.rank)
		from, lo, hi = Dst, mine.lo, mine.hi
	}
	for d := p.power / 2; d > 0; d /= 2 {
		peer, n := p.first(me^d), hi-lo
		other := lo + n
		if me&d != 0 {
			other = lo - n
		}
		b.send(peer, b.run(Dst, lo, hi), b.run(Dst, lo, hi))
		b.receive(peer, b.run(Dst, other, other+n))
		lo, hi = min(lo, other), max(hi, other+n)
	}
}

// reduceScatterHalving: the farthest partner first, so that what is left is one range.
func (b *builder) reduceScatterHalving() {
	p := pair(b.n)
	all := b.run(Src, 0, b.n)
	v, acts := b.handOver(p, all, Range{Tmp, 0, all.Len})
	if acts && b.n > 1 {
		b.scratch(all.Len)
	}
	me, lo, hi := p.number(b.rank), 0, p.power
	for d := p.power / 2; acts && d > 0; d /= 2 {
		peer, mid := p.first(me^d), (lo+hi)/2
		near, far := b.run(v.Buffer, p.first(lo), p.first(mid)), b.run(v.Buffer, p.first(mid), p.first(hi))
		if me&d == 0 {
			hi = mid
		} else {
			near, far, lo = far, near, mid
		}
		b.send(peer, far, Range{Buffer: Land})
		sum := Range{Tmp, near.Off, near.Len}
		b.combine(peer, near, sum, peer < b.rank)
		v = sum
	}
	if acts {
		b.copy(b.block(v.Buffer, b.rank), b.own(Dst))
	}
	if b.rank >= 2*p.pairs {
		return
	}
	if acts {
		b.send(b.rank+1, b.block(v.Buffer, b.rank+1), Range{Buffer: Dst})
	} else {
		b.receive(b.rank-1, b.own(Dst))
	}
}

// The ring. Block i begins at rank i+1, and is complete at rank i.

// circulate: each rank adds its own elements to the blocks that pass. sum says where the block goes
// that arrives in round r.
func (b *builder) circulate(own Buffer, sum func(r, block int) Range) {
	out := b.block(own, b.up(-1))
	for r := 1; r < b.n; r++ {
		b.send(b.up(1), out, Range{Buffer: Land})
		in := b.up(-1 - r)
		to := sum(r, in)
		b.combine(b.up(-1), b.block(own, in), to, true)
		out = to
	}
}

func (b *builder) allReduceRing() {
	b.cutVector(b.n)
	if b.n == 1 {
		b.copy(b.vector(Src), b.vector(Dst))
	}
	b.circulate(b.vector(Src).Buffer, func(_, i int) Range { return b.block(Dst, i) })
	b.allGatherRing()
}

func (b *builder) reduceScatterRing() {
	longest := 0
	for i := range b.n {
		longest = max(longest, b.block(Src, i).Len)
	}
	var half [2]Range // what one round combines, the next one sends
	if b.n > 2 {
		half = [2]Range{b.scratch(longest), b.scratch(longest)}
	}
	if b.n == 1 {
		b.copy(b.own(Src), b.own(Dst))
	}
	b.circulate(Src, func(r, i int) Range {
		if r == b.n-1 {
			return b.own(Dst)
		}
		return half[r%2].part(0, b.block(Src, i).Len)
	})
}

// allGatherRing: a rank passes on what has just arrived.
func (b *builder) allGatherRing() {
	for r := range b.n - 1 {
		out, in := b.block(Dst, b.up(-r)), b.block(Dst, b.up(-r-1))
		b.send(b.up(1), out, out)
		b.receive(b.up(-1), in)
	}
}

// allGather copies this rank's own block, and has the others gathered.
func (b *builder) allGather(others func()) {
	if !b.Shape.InPlace {
		b.copy(b.own(Src), b.block(Dst, b.rank))
	}
	others()
}

// allGatherBruck: before the round of distance d a rank has its own block and the d-1 below it. It
// sends as many as the peer lacks. Blocks that count around are two ranges.
func (b *builder) allGatherBruck() {
	for d := 1; d < b.n; d *= 2 {
		count := min(d, b.n-d)
		for _, s := range b.around(b.rank, count) {
			r := b.run(Dst, s.lo, s.hi)
			b.send(b.up(d), r, r)
		}
		for _, s := range b.around(b.up(-d), count) {
			b.receive(b.up(-d), b.run(Dst, s.lo, s.hi))
		}
	}
}

// around returns the ranks from last-count+1 to last, in one or two segments.
func (b *builder) around(last, count int) []segment {
	first := last - count + 1
	if first >= 0 {
		return []segment{{lo: first, hi: last + 1}}
	}
	return []segment{{lo: first + b.n, hi: b.n}, {lo: 0, hi: last + 1}}
}

// reduceScatterPairwise: every rank sends every other one its block, and combines what arrives in
// the order of the ranks.
func (b *builder) reduceScatterPairwise() {
	for d := 1; d < b.n; d++ {
		to := Range{Buffer: Land}
		if b.rank == 0 {
			to.Buffer = Dst
		}
		b.send(b.up(d), b.block(Src, b.up(d)), to)
	}
	sum, own := b.own(Dst), b.block(Src, b.rank)
	if b.rank == 0 {
		b.copy(own, sum)
	} else {
		b.receive(0, sum)
	}
	for i := 1; i < b.n; i++ {
		if i == b.rank {
			b.local(Step{Action: Combine, From: sum, With: own, To: sum})
		} else {
			b.combine(i, sum, sum, false)
		}
	}
}

func (b *builder) allToAllPairwise() {
	counts, receives := b.Shape.Counts, b.Shape.Receives
	in := offsets(b.n, b.Shape.Count, receives)
	at := func(i int) Range { return Range{Dst, in[i], in[i+1] - in[i]} }
	b.copy(b.block(Src, b.rank), at(b.rank))
	for d := 1; d < b.n; d++ {
		to := Range{} // only the peer knows what the others send it
		if counts == nil {
			to = b.block(Dst, b.rank)
		}
		b.send(b.up(d), b.block(Src, b.up(d)), to)
		b.receive(b.up(-d), at(b.up(-d)))
	}
}

// allToAllBruck: block i of a rank goes to the rank that is i further on, in the rounds of the bits
// of i. A round packs its blocks into one message.
func (b *builder) allToAllBruck() {
	at := make([]Range, b.n) // where block i is
	for i := range at {
		at[i] = b.block(Src, b.up(i))
	}
	for d := 1; d < b.n; d *= 2 {
		count := 0
		for i := range at {
			count += i & d / d
		}
		out, in := b.scratch(count*b.Shape.Count), b.scratch(count*b.Shape.Count)
		k := 0
		for i := range at {
			if i&d == 0 {
				continue
			}
			b.copy(at[i], out.part(k, b.Shape.Count))
			at[i] = in.part(k, b.Shape.Count)
			k += b.Shape.Count
		}
		b.send(b.up(d), out, in)
		b.receive(b.up(-d), in)
	}
	for i := range at {
		b.copy(at[i], b.block(Dst, b.up(-i)))
	}
}

// scanDoubling: before the round of distance d a rank has combined the d ranks up to itself.
func (b *builder) scanDoubling() {
	v, sum := b.vector(Src), b.vector(Dst)
	if b.rank == 0 {
		b.copy(v, sum)
	}
	for d := 1; d < b.n; d *= 2 {
		if b.rank+d < b.n {
			b.send(b.rank+d, v, Range{Buffer: Land})
		}
		if b.rank-d >= 0 {
			b.combine(b.rank-d, v, sum, true)
			v = sum
		}
	}
}

func (b *builder) scanChain() {
	v, sum := b.vector(Src), b.vector(Dst)
	if b.rank == 0 {
		b.copy(v, sum)
	} else {
		b.combine(b.rank-1, v, sum, true)
		v = sum
	}
	if b.rank+1 < b.n {
		b.send(b.rank+1, v, Range{Buffer: Land})
	}
}
