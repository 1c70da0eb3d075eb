package collective

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var everything = flag.Bool("everything", false, "every algorithm and length for every number of ranks")

// mapping is x -> a*x + b. Applying one after the other is associative, and depends on the order.
type mapping struct{ a, b uint64 }

func then(f, g mapping) mapping { return mapping{f.a * g.a, f.a*g.b + f.b} }
func add(f, g mapping) mapping  { return mapping{f.a + g.a, f.b + g.b} }

// world is all ranks of one call, in one process.
type world[T any] struct {
	t      testing.TB
	ranks  []rank[T]
	op     func(a, b T) T
	rng    *rand.Rand
	depth  int
	piece  int
	events []event
	rounds int
}

// rank is one rank and its memory.
type rank[T any] struct {
	run           Run
	src, dst, tmp []T
	land          [][][]T    // by peer and slot
	posted        [2][][]int // the steps begun, by action, peer and number
	at            []int      // when steps are done, in latencies of messages
}

// event is a step that can be done now.
type event struct{ rank, step int }

// newWorld makes the schedules, and the memory with what the ranks pass.
func newWorld[T any](t testing.TB, shape Shape, op func(a, b T) T, value func(rng *rand.Rand) T,
	seed uint64) *world[T] {
	w := &world[T]{t: t, op: op, rng: rand.New(rand.NewPCG(seed, 1)), depth: shape.Depth, piece: shape.Piece}
	w.ranks = make([]rank[T], shape.Ranks)
	matrix := shape.Counts
	for i := range w.ranks {
		r := &w.ranks[i]
		shape.Rank = i
		if shape.Kind == AllToAll && matrix != nil {
			shape.Counts, shape.Receives = row(matrix, i, shape.Ranks), column(matrix, i, shape.Ranks)
		}
		s, err := New(shape)
		if err != nil {
			t.Fatal(err)
		}
		r.run.Start(s)
		in, out := lengths(&s.Shape)
		r.src, r.dst, r.tmp = make([]T, in), make([]T, out), make([]T, s.Tmp)
		for k := range r.src {
			r.src[k] = value(w.rng)
		}
		r.inPlace(&s.Shape, value, w.rng)
		r.land = make([][][]T, shape.Ranks)
		r.posted = [2][][]int{make([][]int, shape.Ranks), make([][]int, shape.Ranks)}
		r.at = make([]int, len(s.Steps))
	}
	return w
}

// inPlace puts into dst what the caller of Broadcast or of a call in place has there.
func (r *rank[T]) inPlace(s *Shape, value func(rng *rand.Rand) T, rng *rand.Rand) {
	at := offsets(s.Ranks, s.Count, s.Counts)
	switch {
	case s.Kind == Broadcast && s.Rank == s.Root:
		for k := range r.dst {
			r.dst[k] = value(rng)
		}
	case !s.InPlace:
	case s.Kind == AllReduce, s.Kind == Scan, s.Kind == Reduce && s.Rank == s.Root:
		copy(r.dst, r.src)
		clear(r.src)
	case s.Kind == AllGather, s.Kind == Gather && s.Rank == s.Root:
		copy(r.dst[at[s.Rank]:], r.src)
		clear(r.src)
	}
}

// row and column are what rank i sends and receives, by the rank at the other end.
func row(matrix []int, i, n int) []int { return slices.Clone(matrix[i*n : (i+1)*n]) }
func column(matrix []int, i, n int) []int {
	c := make([]int, n)
	for j := range c {
		c[j] = matrix[j*n+i]
	}
	return c
}

// lengths returns the elements of Src and Dst.
func lengths(s *Shape) (src, dst int) {
	at := offsets(s.Ranks, s.Count, s.Counts)
	all, own := at[s.Ranks], at[s.Rank+1]-at[s.Rank]
	root := s.Rank == s.Root
	switch s.Kind {
	case Broadcast:
		return 0, s.Count
	case Reduce:
		return s.Count, when(root, s.Count)
	case AllReduce, Scan:
		return s.Count, s.Count
	case ReduceScatter:
		return all, own
	case Gather:
		return own, when(root, all)
	case AllGather:
		return own, all
	case Scatter:
		return when(root, all), own
	case AllToAll:
		return all, offsets(s.Ranks, s.Count, s.Receives)[s.Ranks]
	}
	return 0, 0
}

func when(ok bool, n int) int {
	if ok {
		return n
	}
	return 0
}

// memory returns a range of a rank; peer is whose messages land in it.
func (w *world[T]) memory(r *rank[T], at Range, peer int) []T {
	var m []T
	switch at.Buffer {
	case Src:
		m = r.src
	case Dst:
		m = r.dst
	case Tmp:
		m = r.tmp
	case Land:
		slots := r.land[peer]
		if slots == nil {
			slots = make([][]T, w.depth)
			r.land[peer] = slots
		}
		slot := at.Off / w.piece
		if len(slots[slot]) < at.Len { // and not a whole piece: there are many slots
			slots[slot] = make([]T, at.Len)
		}
		return slots[slot][at.Off%w.piece:][:at.Len]
	}
	return m[at.Off:][:at.Len:at.Len]
}

// begin begins all steps of a rank that may begin.
func (w *world[T]) begin(me int) {
	r := &w.ranks[me]
	for i, ok := r.run.Next(); ok; i, ok = r.run.Next() {
		s := r.run.Step(i)
		for _, a := range r.run.s.After(i) {
			r.at[i] = max(r.at[i], r.at[a])
		}
		if s.Action == Combine || s.Action == Copy {
			w.events = append(w.events, event{me, i})
			continue
		}
		mine, theirs := &r.posted[s.Action][s.Peer], w.ranks[s.Peer].posted[Receive-s.Action][me]
		if s.Number != len(*mine) {
			w.t.Fatalf("rank %d begins message %d with rank %d before message %d", me, s.Number, s.Peer,
				len(*mine))
		}
		*mine = append(*mine, i)
		if s.Number >= len(theirs) {
			continue // the peer's step begins later
		}
		if s.Action == Receive { // the receive is the event
			w.events = append(w.events, event{me, i})
		} else {
			w.events = append(w.events, event{s.Peer, theirs[s.Number]})
		}
	}
}

// play lets things happen in random order until nothing can.
func (w *world[T]) play() {
	for i := range w.ranks {
		w.begin(i)
	}
	for len(w.events) > 0 {
		k := w.rng.IntN(len(w.events))
		e := w.events[k]
		w.events[k] = w.events[len(w.events)-1]
		w.events = w.events[:len(w.events)-1]
		w.happen(e)
		w.begin(e.rank)
	}
	for i := range w.ranks {
		if r := &w.ranks[i]; !r.run.Finished() {
			w.t.Fatalf("rank %d waits forever: %d steps left", i, r.run.left)
		}
	}
}

// happen does a step. A message is taken from the sender's memory now, and its send is done later.
func (w *world[T]) happen(e event) {
	r := &w.ranks[e.rank]
	s := r.run.Step(e.step)
	switch s.Action {
	case Combine:
		to, left, right := w.memory(r, s.To, s.Peer), w.memory(r, s.From, s.Peer), w.memory(r, s.With, s.Peer)
		for i := range to {
			to[i] = w.op(left[i], right[i])
		}
	case Copy:
		copy(w.memory(r, s.To, 0), w.memory(r, s.From, 0))
	case Receive:
		peer := &w.ranks[s.Peer]
		i := peer.posted[Send][e.rank][s.Number]
		from := peer.run.Step(i)
		if from.From.Len != s.To.Len || from.To.Buffer != None && (from.To.Buffer != s.To.Buffer ||
			from.To.Off != s.To.Off) {
			w.t.Fatalf("rank %d sends %+v, rank %d expects %+v", s.Peer, *from, e.rank, *s)
		}
		copy(w.memory(r, s.To, s.Peer), w.memory(peer, from.From, e.rank))
		r.at[e.step] = max(r.at[e.step], peer.at[i]+1)
		w.rounds = max(w.rounds, r.at[e.step])
		w.events = append(w.events, event{s.Peer, i})
	}
	r.run.Done(e.step)
}

// passed returns what a rank passed in Src, before the call.
func (w *world[T]) passed() [][]T {
	all := make([][]T, len(w.ranks))
	for i := range w.ranks {
		r := &w.ranks[i]
		s := &r.run.s.Shape
		all[i] = slices.Clone(r.src)
		at := offsets(s.Ranks, s.Count, s.Counts)
		switch {
		case s.Kind == Broadcast:
			all[i] = slices.Clone(r.dst)
		case !s.InPlace:
		case s.Kind == AllReduce, s.Kind == Scan, s.Kind == Reduce && s.Rank == s.Root:
			all[i] = slices.Clone(r.dst)
		case s.Kind == AllGather, s.Kind == Gather && s.Rank == s.Root:
			all[i] = slices.Clone(r.dst[at[i]:at[i+1]])
		}
	}
	return all
}

// expected returns what one process that has all of it puts into each rank's Dst.
func (w *world[T]) expected(in [][]T) [][]T {
	out := make([][]T, len(w.ranks))
	sum := slices.Clone(in[0])
	for i := range w.ranks {
		s := &w.ranks[i].run.s.Shape
		if i > 0 && len(sum) == len(in[i]) {
			for k := range sum {
				sum[k] = w.op(sum[k], in[i][k])
			}
		}
		if s.Kind == Scan {
			out[i] = slices.Clone(sum)
		}
	}
	for i := range w.ranks {
		s := &w.ranks[i].run.s.Shape
		at := offsets(s.Ranks, s.Count, s.Counts)
		switch s.Kind {
		case Broadcast:
			out[i] = in[s.Root]
		case AllReduce:
			out[i] = sum
		case ReduceScatter:
			out[i] = sum[at[i]:at[i+1]]
		case AllGather:
			out[i] = slices.Concat(in...)
		case Scatter:
			out[i] = in[s.Root][at[i]:at[i+1]]
			if s.InPlace && i == s.Root {
				out[i] = make([]T, len(out[i])) // it is in Src
			}
		case AllToAll:
			for j := range in {
				from := offsets(s.Ranks, s.Count, w.ranks[j].run.s.Shape.Counts)
				out[i] = append(out[i], in[j][from[i]:from[i+1]]...)
			}
		case Reduce, Gather:
			if i != s.Root {
				continue
			}
			if out[i] = sum; s.Kind == Gather {
				out[i] = slices.Concat(in...)
			}
		}
	}
	return out
}

// name describes a shape in failures.
func name(s *Shape, seed uint64) string {
	return fmt.Sprintf("%v by %v, %d ranks, root %d, count %d %v, pieces of %d, %d deep, ordered %v, "+
		"in place %v, seed %d", s.Kind, s.Algorithm, s.Ranks, s.Root, s.Count, s.Counts, s.Piece, s.Depth,
		s.Ordered, s.InPlace, seed)
}

// check plays a shape and compares every rank's result with that of one process. What a rank passes
// in Src must be there as before.
func check(t *testing.T, m *method, s Shape, seed uint64) *world[mapping] {
	t.Helper()
	op := then
	if m.needs&unordered != 0 {
		op = add
	}
	w := newWorld(t, s, op, func(rng *rand.Rand) mapping { return mapping{rng.Uint64(), rng.Uint64()} }, seed)
	in := w.passed()
	sources := make([][]mapping, len(w.ranks))
	for i := range w.ranks {
		sources[i] = slices.Clone(w.ranks[i].src)
	}
	want := w.expected(in)
	defer func() {
		if t.Failed() {
			t.Log(name(&s, seed))
		}
	}()
	w.play()
	for i := range w.ranks {
		if got := w.ranks[i].dst; !slices.Equal(got, want[i]) {
			t.Fatalf("%s: rank %d has\n%v, want\n%v", name(&s, seed), i, got, want[i])
		}
		if !slices.Equal(w.ranks[i].src, sources[i]) {
			t.Fatalf("%s: rank %d: its source has changed", name(&s, seed), i)
		}
	}
	return w
}

// rooted reports whether a kind has a root.
func rooted(k Kind) bool { return k == Broadcast || k == Reduce || k == Gather || k == Scatter }

// shapes calls f with shapes of a method for n ranks: all lengths around the pieces and all roots,
// or a few of them if there are too many.
func shapes(m *method, n int, rng *rand.Rand, all bool, f func(s Shape)) {
	const piece = 4
	counts := []int{0, 1, piece - 1, piece, piece + 1, 3*piece + 2, n - 1, n, n + 1, n*piece - 1, n*piece + 1}
	blocks := m.kind >= ReduceScatter && m.kind <= AllToAll
	if blocks {
		counts = []int{0, 1, piece - 1, piece, piece + 1, 2*piece + 3}
	}
	slices.Sort(counts)
	counts = slices.Compact(counts)
	if m.kind == Barrier {
		counts = counts[:1]
	}
	roots := []int{0}
	if rooted(m.kind) {
		roots = rng.Perm(n)
	}
	if n > 16 {
		roots = roots[:min(len(roots), 4)]
	}
	if !all {
		rng.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
		counts, roots = counts[:1], roots[:1]
		if blocks && n > 16 { // n² messages
			counts[0] = 1 + n%2*piece
			blocks = n%8 == 0
		}
	}
	for _, root := range roots {
		for _, count := range counts {
			s := Shape{Kind: m.kind, Algorithm: m.algorithm, Ranks: n, Root: root, Count: count, Piece: piece,
				Depth: 1 + rng.IntN(3), Ordered: m.needs&unordered == 0 && rng.IntN(2) == 0}
			s.InPlace = m.kind >= Reduce && m.kind != ReduceScatter && m.kind != AllToAll && rng.IntN(2) == 0
			f(s)
		}
		if blocks && m.needs&equal == 0 {
			s := Shape{Kind: m.kind, Algorithm: m.algorithm, Ranks: n, Root: root, Piece: piece,
				Depth: 1 + rng.IntN(3), Counts: unequal(m.kind, n, piece, rng)}
			f(s)
		}
	}
}

// unequal returns lengths of blocks, some of them 0: for an all-to-all of each rank to each.
func unequal(k Kind, n, piece int, rng *rand.Rand) []int {
	if k == AllToAll {
		n *= n
	}
	counts := make([]int, n)
	for i := range counts {
		counts[i] = max(0, rng.IntN(3*piece)-piece)
	}
	return counts
}

// Whatever happens first, every rank gets what one process computes.
func TestResults(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		t.Run(fmt.Sprintf("%v by %v", m.kind, m.algorithm), func(t *testing.T) {
			for n := 1; n <= 64; n++ {
				if n > 12 && n%8 != i%8 && !*everything || n > 12 && testing.Short() {
					continue // some other algorithms play this number
				}
				rng := rand.New(rand.NewPCG(uint64(n), uint64(i)))
				shapes(m, n, rng, n <= 4 || *everything, func(s Shape) { check(t, m, s, rng.Uint64()) })
			}
		})
	}
}

// Calls cost what the table says: messages behind each other, and messages and elements of the rank
// that has most. That shows that an algorithm is what its name says.
func TestCosts(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		for n := 1; n <= 64; n++ {
			if n > 9 && n != 12 && n != 16 && n != 23 && n != 33 && !*everything {
				continue
			}
			s := Shape{Kind: m.kind, Algorithm: m.algorithm, Ranks: n, Count: 2, Piece: 1 << 20, Depth: 2}
			in := measure{n: n, all: 2 * n}
			if m.kind < ReduceScatter || m.kind == Scan {
				s.Count = n * pair(n).power
				in.all = s.Count
			}
			if m.algorithm == Chain && m.kind != Scan {
				s.Root = n / 3
				in.root = s.Root
			}
			w := check(t, m, s, uint64(n))
			if got, want := w.cost(), m.cost(in); got != want {
				t.Errorf("%s: costs %+v, want %+v", name(&s, uint64(n)), got, want)
			}
		}
	}
}

// cost counts what the ranks have done.
func (w *world[T]) cost() cost {
	c := cost{rounds: w.rounds}
	for i := range w.ranks {
		var messages, elements [2]int
		for _, s := range w.ranks[i].run.s.Steps {
			if s.Action == Send || s.Action == Receive {
				messages[s.Action]++
				elements[s.Action] += s.From.Len + when(s.Action == Receive, s.To.Len)
			}
		}
		c.messages = max(c.messages, messages[Send], messages[Receive])
		c.elements = max(c.elements, elements[Send], elements[Receive])
	}
	return c
}

// Roots other than 0 cost no more than the table says.
func TestCostsOfRoots(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		if !rooted(m.kind) {
			continue
		}
		for n := 1; n <= 9; n++ {
			for root := range n {
				s := Shape{Kind: m.kind, Algorithm: m.algorithm, Ranks: n, Root: root, Count: 2,
					Piece: 1 << 20, Depth: 2}
				in := measure{n: n, all: 2, root: root}
				if m.kind >= ReduceScatter {
					in.all = 2 * n
				}
				got, most := check(t, m, s, 1).cost(), m.cost(in)
				if m.algorithm == Binomial {
					most.rounds = in.log()
				}
				if got.rounds > most.rounds || got.messages > most.messages || got.elements > most.elements {
					t.Errorf("%s: costs %+v, at most %+v", name(&s, 1), got, most)
				}
			}
		}
	}
}

// Steps that use the same memory, and do not only read it, wait for each other; and messages from
// one rank to another, for the one Depth before.
func TestDependencies(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		for n := 1; n <= 6; n++ {
			rng := rand.New(rand.NewPCG(uint64(n), uint64(i)))
			shapes(m, n, rng, true, func(s Shape) {
				s.Rank = rng.IntN(n)
				if s.Kind == AllToAll && s.Counts != nil {
					s.Counts, s.Receives = row(s.Counts, s.Rank, n), column(s.Counts, s.Rank, n)
				}
				made, err := New(s)
				if err != nil {
					t.Fatal(err)
				}
				if why := conflict(made); why != "" {
					t.Fatalf("%s: rank %d: %s", name(&s, 0), s.Rank, why)
				}
			})
		}
	}
}

// conflict returns two steps that may be under way at once and must not be.
func conflict(s *Schedule) string {
	behind := make([][]bool, len(s.Steps)) // behind[i][k]: step i begins after k is done
	for i := range s.Steps {
		behind[i] = make([]bool, i)
		for _, a := range s.After(i) {
			behind[i][a] = true
			for k, is := range behind[a] {
				behind[i][k] = behind[i][k] || is
			}
		}
		me := &s.Steps[i]
		for k := range i {
			other := &s.Steps[k]
			deep := (me.Action == Send || me.Action == Receive) && me.Action == other.Action &&
				me.Peer == other.Peer && (me.Number-other.Number)%s.Shape.Depth == 0
			if !behind[i][k] && (deep || meets(me, other) || meets(other, me)) {
				return fmt.Sprintf("step %d, %+v, does not wait for step %d, %+v", i, *me, k, *other)
			}
		}
	}
	return ""
}

// meets reports whether a writes what b reads or writes.
func meets(a, b *Step) bool {
	if a.Action == Send {
		return false
	}
	uses := []Range{b.From, b.With}
	if b.Action != Send {
		uses = append(uses, b.To)
	}
	for _, r := range uses {
		if r.Buffer == a.To.Buffer && (r.Buffer != Land || a.Peer == b.Peer) &&
			r.Off < a.To.Off+a.To.Len && a.To.Off < r.Off+r.Len {
			return true
		}
	}
	return false
}

// So do steps of any program, whatever ranges they use.
func TestDependenciesOfPrograms(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		shape := Shape{Kind: AllToAll, Algorithm: Pairwise, Ranks: 3, Piece: 1 + rng.IntN(8),
			Depth: 1 + rng.IntN(3)}
		m := &method{kind: AllToAll, build: func(b *builder) {
			// Two windows of Tmp, and pieces on both sides of the border.
			at := func(n int) Range {
				return Range{Tmp, wide*b.Shape.Piece + rng.IntN(6*b.Shape.Piece) - 3*b.Shape.Piece, n}
			}
			for range 60 {
				n, peer := 1+rng.IntN(2*b.Shape.Piece), rng.IntN(3)
				switch rng.IntN(4) {
				case 0:
					b.send(peer, at(n), Range{Buffer: Land})
				case 1:
					b.receive(peer, at(n))
				case 2:
					b.copy(at(n), at(n))
				case 3:
					b.combine(peer, at(n), at(n), true)
				}
			}
		}}
		if why := conflict(m.make(shape)); why != "" {
			t.Fatalf("seed %d: %s", seed, why)
		}
	}
}

// No rank leaves a barrier before all have come.
func TestBarrierHolds(t *testing.T) {
	for n := 2; n <= 17; n++ {
		for absent := range n {
			s := Shape{Kind: Barrier, Algorithm: Dissemination, Ranks: n, Piece: 1, Depth: 1}
			w := newWorld(t, s, add, func(*rand.Rand) mapping { return mapping{} }, 1)
			for i := range n {
				if i != absent {
					w.begin(i)
				}
			}
			for len(w.events) > 0 {
				e := w.events[0]
				w.events = w.events[1:]
				w.happen(e)
				w.begin(e.rank)
			}
			for i := range w.ranks {
				if w.ranks[i].run.Finished() {
					t.Fatalf("%d ranks: rank %d leaves without rank %d", n, i, absent)
				}
			}
		}
	}
}

// Depth pieces in each direction are under way at once, each in a slot of its own, and receives are
// begun before sends.
func TestPiecesUnderWay(t *testing.T) {
	s, err := New(Shape{Kind: AllReduce, Algorithm: Ring, Ranks: 4, Count: 400, Piece: 10, Depth: 3})
	if err != nil {
		t.Fatal(err)
	}
	var run Run
	run.Start(s)
	var actions []Action
	slots := map[int]bool{}
	for i, ok := run.Next(); ok; i, ok = run.Next() {
		actions = append(actions, run.Step(i).Action)
		if run.Step(i).Action == Receive {
			slots[run.Step(i).To.Off] = true
		}
	}
	want := []Action{Receive, Receive, Receive, Send, Send, Send}
	if !slices.Equal(actions, want) || len(slots) != 3 {
		t.Errorf("steps begin with %v into %d slots, want %v", actions, len(slots), want)
	}
}

// Floats are combined in the same order on every rank and in every run.
func TestSameBits(t *testing.T) {
	for i := range methodTable {
		m := &methodTable[i]
		if m.kind != AllReduce && m.kind != Reduce && m.kind != Scan && m.kind != ReduceScatter {
			continue
		}
		for _, n := range []int{3, 7, 8, 13} {
			var before [][]float32
			for seed := range uint64(3) {
				s := Shape{Kind: m.kind, Algorithm: m.algorithm, Ranks: n, Count: 9, Piece: 4, Depth: 2}
				w := newWorld(t, s, func(a, b float32) float32 { return a + b },
					func(*rand.Rand) float32 { return 0 }, seed)
				rng := rand.New(rand.NewPCG(5, 5))
				var results [][]float32
				for k := range w.ranks {
					for j := range w.ranks[k].src {
						w.ranks[k].src[j] = rng.Float32() * float32(uint64(1)<<rng.IntN(40))
					}
				}
				w.play()
				for k := range w.ranks {
					results = append(results, w.ranks[k].dst)
					if m.kind == AllReduce && !slices.Equal(results[k], results[0]) {
						t.Fatalf("%s: rank %d has %v, rank 0 %v", name(&s, seed), k, results[k], results[0])
					}
				}
				if seed > 0 && !slices.EqualFunc(results, before, slices.Equal[[]float32]) {
					t.Fatalf("%s: %v, and in an earlier run %v", name(&s, seed), results, before)
				}
				before = results
			}
		}
	}
}

// The choice goes from few rounds to few elements as vectors get longer, and can be carried out.
func TestChoose(t *testing.T) {
	net := Network{Latency: 1 << 15, Overhead: 1 << 13}
	for _, c := range []struct {
		kind        Kind
		ranks       int
		ordered     bool
		short, long Algorithm
	}{
		{Barrier, 7, false, Dissemination, Dissemination},
		{Broadcast, 8, false, Binomial, Chain},
		{Reduce, 8, false, Binomial, Chain},
		{AllReduce, 8, false, Doubling, Halving},
		{AllReduce, 4, true, Doubling, Halving},
		{AllReduce, 6, false, Doubling, Ring},
		{AllReduce, 6, true, Doubling, Halving},
		{ReduceScatter, 8, true, Pairwise, Pairwise},
		{AllGather, 64, false, Bruck, Bruck},
		{AllToAll, 64, false, Bruck, Pairwise},
		{Gather, 64, false, Binomial, Binomial},
		{Gather, 4, false, Star, Star},
		{Scan, 16, false, Doubling, Chain},
	} {
		for _, long := range []bool{false, true} {
			s := Shape{Kind: c.kind, Ranks: c.ranks, Count: 1, Piece: 1 << 14, Depth: 4, Ordered: c.ordered}
			want := c.short
			if long {
				s.Count, want = 1<<20, c.long
			}
			if s.Algorithm = Choose(&s, net); s.Algorithm != want {
				t.Errorf("%v of %d elements, %d ranks: %v, want %v", s.Kind, s.Count, s.Ranks,
					s.Algorithm, want)
			}
			if _, err := New(s); err != nil {
				t.Error(err)
			}
		}
	}
}

// A shape that cannot be carried out is refused.
func TestRefusals(t *testing.T) {
	good := Shape{Kind: AllReduce, Algorithm: Ring, Ranks: 4, Count: 8, Piece: 4, Depth: 2}
	for want, change := range map[string]func(s *Shape){
		"Rank 4: must be 0 to 3":                  func(s *Shape) { s.Rank = 4 },
		"Root -1: must be 0 to 3":                 func(s *Shape) { s.Root = -1 },
		"Count -1":                                func(s *Shape) { s.Count = -1 },
		"Piece 0: must be 1":                      func(s *Shape) { s.Piece = 0 },
		"Depth 0: must be 1":                      func(s *Shape) { s.Depth = 0 },
		"there is no such algorithm of this kind": func(s *Shape) { s.Algorithm = Pairwise },
		"it combines out of the order":            func(s *Shape) { s.Ordered = true },
		"a kind with blocks takes one":            func(s *Shape) { s.Counts = []int{1, 2, 3, 4} },
		"no such call in place":                   func(s *Shape) { s.Kind, s.InPlace = AllToAll, true },
		"its blocks have one length": func(s *Shape) {
			s.Kind, s.Algorithm, s.Counts, s.Receives = AllToAll, Bruck, make([]int, 4), make([]int, 4)
		},
		"sends itself 1 elements and receives 0": func(s *Shape) {
			s.Kind, s.Algorithm, s.Counts, s.Receives = AllToAll, Pairwise, []int{1, 0, 0, 0}, make([]int, 4)
		},
	} {
		s := good
		change(&s)
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
