package collective

import (
	"fmt"
	"math/bits"
	"slices"
)

// Kind is a kind of collective call.
type Kind uint8

// The kinds. Blocks are in the order of the ranks, without gaps.
const (
	Barrier       Kind = iota
	Broadcast          // Dst of the root to Dst of all
	Reduce             // Src of all, combined, to Dst of the root
	AllReduce          // to Dst of all
	ReduceScatter      // block i of the combination to Dst of rank i
	Gather             // Src of rank i is block i of Dst at the root
	AllGather          // of Dst at all
	Scatter            // block i of Src at the root to Dst of rank i
	AllToAll           // block j of Src at rank i is block i of Dst at rank j
	Scan               // Src of ranks 0 to i, combined, to Dst of rank i
	kinds
)

// kindNames has the names in the order of the constants.
var kindNames = [kinds]string{"barrier", "broadcast", "reduce", "all-reduce", "reduce-scatter", "gather",
	"all-gather", "scatter", "all-to-all", "scan"}

// String returns the name of the kind: "all-reduce".
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("unknown kind %d", uint8(k))
}

// Algorithm is a way to carry out a kind. Not every kind has every algorithm: see methodTable.
type Algorithm uint8

// The algorithms.
const (
	Dissemination Algorithm = iota + 1 // in round r to the rank 2^r further on
	Binomial                           // a tree of ⌊log₂ n⌋ levels below its root
	Chain                              // from rank to rank, piece behind piece
	Star                               // straight between the root and each rank
	Doubling                           // with a partner at distance 1, 2, 4, ...
	Halving                            // the same with half of the data each time, and back
	Ring                               // a block to the next rank in each round
	Pairwise                           // straight between all ranks
	Bruck                              // ⌈log₂ n⌉ rounds, several blocks in one message
	algorithms
)

// algorithmNames has the names in the order of the constants.
var algorithmNames = [algorithms]string{"none", "dissemination", "binomial", "chain", "star", "doubling",
	"halving", "ring", "pairwise", "Bruck"}

// String returns the name of the algorithm.
func (a Algorithm) String() string {
	if a < algorithms {
		return algorithmNames[a]
	}
	return fmt.Sprintf("unknown algorithm %d", uint8(a))
}

// Shape is a collective call as one rank makes it.
type Shape struct {
	Kind      Kind
	Algorithm Algorithm
	Ranks     int
	Rank      int
	Root      int // of Broadcast, Reduce, Gather and Scatter
	// Count is the number of elements: of the vector in Broadcast, Reduce, AllReduce and Scan, of
	// each block in the other kinds.
	Count int
	// Counts, if not nil, has the elements of each block instead of Count. All ranks pass the same,
	// except for AllToAll: there Counts[j] is what this rank sends to rank j, and Receives[j] what
	// it receives from it.
	Counts   []int
	Receives []int
	// Piece is the most elements of one message, and Depth the most messages from one rank to
	// another that are under way at once.
	Piece, Depth int
	// Ordered means that values must be combined in the order of the ranks.
	Ordered bool
	// InPlace means that Dst is Src too: of AllReduce, Scan and the root of Reduce. In AllGather
	// and at the root of Gather and Scatter it means that this rank's own block is there already.
	InPlace bool
}

// equal reports whether two shapes have the same schedule.
func (s *Shape) equal(t *Shape) bool {
	return s.Kind == t.Kind && s.Algorithm == t.Algorithm && s.Ranks == t.Ranks && s.Rank == t.Rank &&
		s.Root == t.Root && s.Count == t.Count && s.Piece == t.Piece && s.Depth == t.Depth &&
		s.Ordered == t.Ordered && s.InPlace == t.InPlace && (s.Counts == nil) == (t.Counts == nil) &&
		slices.Equal(s.Counts, t.Counts) && slices.Equal(s.Receives, t.Receives)
}

// validate returns what is wrong with a shape, and the row of its algorithm.
func (s *Shape) validate() (*method, error) {
	for _, f := range [...]struct {
		name           string
		v, least, most int
	}{
		{"Ranks", s.Ranks, 1, 1 << 20},
		{"Rank", s.Rank, 0, s.Ranks - 1},
		{"Root", s.Root, 0, s.Ranks - 1},
		{"Count", s.Count, 0, 1 << 40},
		{"Piece", s.Piece, 1, 1 << 40},
		{"Depth", s.Depth, 1, 1 << 16},
	} {
		if f.v < f.least || f.v > f.most {
			return nil, fmt.Errorf("collective: %v: %s %d: must be %d to %d", s.Kind, f.name, f.v,
				f.least, f.most)
		}
	}
	if s.InPlace && (s.Kind < Reduce || s.Kind == ReduceScatter || s.Kind == AllToAll) {
		return nil, fmt.Errorf("collective: %v: there is no such call in place", s.Kind)
	}
	if err := s.validateCounts(); err != nil {
		return nil, err
	}
	for i := range methodTable {
		m := &methodTable[i]
		if m.kind != s.Kind || m.algorithm != s.Algorithm {
			continue
		}
		if why := m.refuses(s); why != "" {
			return nil, fmt.Errorf("collective: %v by %v: %s", s.Kind, s.Algorithm, why)
		}
		return m, nil
	}
	return nil, fmt.Errorf("collective: %v by %v: there is no such algorithm of this kind", s.Kind,
		s.Algorithm)
}

func (s *Shape) validateCounts() error {
	if s.Counts == nil && s.Receives == nil {
		return nil
	}
	blocks := s.Kind >= ReduceScatter && s.Kind <= AllToAll
	both := s.Kind == AllToAll
	receives := 0
	if both {
		receives = s.Ranks
	}
	if !blocks || len(s.Counts) != s.Ranks || len(s.Receives) != receives {
		return fmt.Errorf("collective: %v: %d Counts and %d Receives: a kind with blocks takes one of each "+
			"rank, and Receives only an all-to-all", s.Kind, len(s.Counts), len(s.Receives))
	}
	for _, counts := range [...][]int{s.Counts, s.Receives} {
		for i, c := range counts {
			if c < 0 || c > 1<<40 {
				return fmt.Errorf("collective: %v: block %d has %d elements: must be 0 to 1<<40", s.Kind,
					i, c)
			}
		}
	}
	if both && s.Counts[s.Rank] != s.Receives[s.Rank] {
		return fmt.Errorf("collective: %v: rank %d sends itself %d elements and receives %d", s.Kind, s.Rank,
			s.Counts[s.Rank], s.Receives[s.Rank])
	}
	return nil
}

// method is an algorithm of a kind.
type method struct {
	kind      Kind
	algorithm Algorithm
	needs     need
	build     func(b *builder)
	cost      func(m measure) cost
}

// need is what a method needs of a shape.
type need uint8

const (
	unordered need = 1 << iota // the order of the operands may be any
	equal                      // all blocks have the same length
)

// cost is what a call costs if every message is one piece.
type cost struct {
	rounds   int // messages behind each other, on the longest path through all ranks
	messages int // the most that one rank sends, or receives
	elements int // the most that one rank sends, or receives
}

// measure is what costs depend on.
type measure struct {
	n    int // ranks
	all  int // elements of the vector, or of all blocks
	root int
}

// methodTable has all algorithms. Binomial trees cost this with root 0; with other roots they may
// have ⌈log₂ n⌉ rounds. Kinds with blocks cost this if all blocks have the same length.
var methodTable = [...]method{
	{Barrier, Dissemination, 0, (*builder).barrier, func(m measure) cost {
		return cost{m.log(), m.log(), 0}
	}},
	{Broadcast, Binomial, 0, func(b *builder) { b.broadcast(binomial) }, measure.tree},
	{Broadcast, Chain, 0, func(b *builder) { b.broadcast(chain) }, measure.chain},
	{Reduce, Binomial, 0, func(b *builder) { b.reduce(binomial) }, measure.tree},
	{Reduce, Chain, 0, func(b *builder) { b.reduce(chain) }, measure.chain},
	{AllReduce, Doubling, 0, (*builder).allReduceDoubling, func(m measure) cost {
		p, odd := m.pairing()
		return cost{m.actors(), log(p) + odd, (log(p) + odd) * m.all}
	}},
	{AllReduce, Binomial, 0, (*builder).allReduceBinomial, func(m measure) cost {
		p, odd := m.pairing()
		return cost{2 * log(p), log(p) + odd, (log(p) + odd) * m.all}
	}},
	{AllReduce, Halving, 0, (*builder).allReduceHalving, func(m measure) cost {
		p, odd := m.pairing()
		return cost{2*log(p) + 2*odd, 2*log(p) + odd, 2*(p-1)*m.all/p + odd*m.all}
	}},
	{AllReduce, Ring, unordered, (*builder).allReduceRing, func(m measure) cost {
		return cost{2 * (m.n - 1), 2 * (m.n - 1), 2 * m.others()}
	}},
	{ReduceScatter, Pairwise, 0, (*builder).reduceScatterPairwise, measure.direct},
	{ReduceScatter, Halving, unordered, (*builder).reduceScatterHalving, func(m measure) cost {
		p, odd := m.pairing()
		if odd == 0 {
			return cost{log(p), log(p), m.others()}
		}
		return cost{m.actors(), log(p) + 1, m.all + m.kept()}
	}},
	{ReduceScatter, Ring, unordered, (*builder).reduceScatterRing, measure.ring},
	{Gather, Binomial, 0, func(b *builder) { b.gather(binomial) }, measure.blockTree},
	{Gather, Star, 0, func(b *builder) { b.gather(star) }, measure.direct},
	{AllGather, Bruck, 0, func(b *builder) { b.allGather(b.allGatherBruck) }, func(m measure) cost {
		return cost{m.spread(), m.wrapped(), m.others()}
	}},
	{AllGather, Ring, 0, func(b *builder) { b.allGather(b.allGatherRing) }, measure.ring},
	{Scatter, Binomial, 0, func(b *builder) { b.scatter(binomial) }, measure.blockTree},
	{Scatter, Star, 0, func(b *builder) { b.scatter(star) }, measure.direct},
	{AllToAll, Pairwise, 0, (*builder).allToAllPairwise, measure.direct},
	{AllToAll, Bruck, equal, (*builder).allToAllBruck, func(m measure) cost {
		packed := 0
		for i := range m.n {
			packed += bits.OnesCount(uint(i))
		}
		return cost{m.spread(), m.log(), packed * (m.all / m.n)}
	}},
	{Scan, Doubling, 0, (*builder).scanDoubling, measure.tree},
	{Scan, Chain, 0, (*builder).scanChain, measure.chain},
}

// refuses says why a shape cannot have the method; "" if it can.
func (m *method) refuses(s *Shape) string {
	switch {
	case m.needs&unordered != 0 && s.Ordered:
		return "it combines out of the order of the ranks"
	case m.needs&equal != 0 && s.Counts != nil:
		return "its blocks have one length"
	}
	return ""
}

// log returns ⌈log₂ n⌉.
func log(n int) int { return bits.Len(uint(n - 1)) }

func (m measure) log() int { return log(m.n) }

// pairing returns the largest power of two that is not above n, and 1 if that is not n.
func (m measure) pairing() (power, odd int) {
	p := pair(m.n)
	return p.power, min(p.pairs, 1)
}

// actors returns the rounds in which pairs hand over, actors meet, and pairs hand back. The way
// from one pair to another is that long only if some of them are opposite corners.
func (m measure) actors() int {
	p := pair(m.n)
	rounds := log(p.power) + min(p.pairs, 1)
	if 2*p.pairs > p.power {
		rounds++
	}
	return rounds
}

// spread returns the rounds of Bruck's algorithms: the last message, of the blocks that are left,
// goes out as soon as its sender has them.
func (m measure) spread() int {
	if m.n == 1 {
		return 0
	}
	d := 1 << (m.log() - 1)
	return max(m.log()-1, log(m.n-d)+1)
}

// others returns the elements of all blocks but one.
func (m measure) others() int { return m.all - m.all/m.n }

// kept returns the most elements that a rank combines in a reduce-scatter by halving, of pairs.
func (m measure) kept() int {
	sum := 0
	for p := pair(m.n); p.power > 1; p.power /= 2 {
		sum += p.first(p.power/2) * (m.all / m.n)
	}
	return sum
}

// wrapped returns the most messages of a rank in Bruck's all-gather: a round whose blocks count
// around at it takes two.
func (m measure) wrapped() int {
	most := 0
	for rank := range m.n {
		count := 0
		for d := 1; d < m.n; d *= 2 {
			if count++; rank-min(d, m.n-d)+1 < 0 {
				count++
			}
		}
		most = max(most, count)
	}
	return most
}

func (m measure) ring() cost   { return cost{m.n - 1, m.n - 1, m.others()} }
func (m measure) direct() cost { return cost{min(m.n-1, 1), m.n - 1, m.others()} }

// A tree is less deep than its root has children, unless n is a power of two. So is a scan.
func (m measure) tree() cost      { return cost{log(pair(m.n).power), m.log(), m.log() * m.all} }
func (m measure) blockTree() cost { return cost{log(pair(m.n).power), m.log(), m.others()} }

func (m measure) chain() cost {
	c := cost{max(m.root, m.n-1-m.root), min(m.n-1, 1), min(m.n-1, 1) * m.all}
	if m.root > 0 && m.root < m.n-1 {
		c.messages, c.elements = 2, 2*m.all
	}
	return c
}

// Network is what messages cost a transport. All ranks must use the same numbers.
type Network struct {
	// Latency is how many elements the network carries in the time that a message takes, and
	// Overhead in the time that a rank is busy with one.
	Latency, Overhead int
}

// Choose returns the algorithm that costs least: rounds × Latency + messages × Overhead + elements.
// Whatever Shape.Algorithm says is ignored; Shape.Counts of an all-to-all, too, which the ranks do
// not share: blocks of unequal length go straight.
func Choose(s *Shape, net Network) Algorithm {
	best, least := Algorithm(0), 0
	for i := range methodTable {
		m := &methodTable[i]
		if m.kind != s.Kind || m.refuses(s) != "" {
			continue
		}
		if t := m.time(s, net); best == 0 || t < least {
			best, least = m.algorithm, t
		}
	}
	return best
}

// time returns what the method costs, in elements.
func (m *method) time(s *Shape, net Network) int {
	in := measure{n: s.Ranks, all: s.Count, root: s.Root}
	if s.Kind == AllToAll && s.Counts != nil {
		in.all = 0
	} else if s.Kind >= ReduceScatter && s.Kind <= AllToAll {
		in.all = offsets(s.Ranks, s.Count, s.Counts)[s.Ranks]
	}
	c := m.cost(in)
	t := c.rounds*net.Latency + c.messages*net.Overhead + c.elements
	if m.algorithm == Chain && c.rounds > 0 { // the last rank gets the first piece after all others
		t += (c.rounds - 1) * min(in.all, s.Piece)
	}
	return t
}
