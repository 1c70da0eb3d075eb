package sendside

import (
	"math/rand/v2"
	"slices"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// side is a team, and its PEs by rank. PEs that are not in it have nil.
type side struct {
	*shmem.Team
	pes []int
}

// split makes the teams: of all PEs, of every other one, and of the last half in reverse.
func (e *element) split() {
	n, all := len(e.t.peers), e.pe.Team()
	var world, others, back []int
	for i := range n {
		world, others, back = append(world, i), append(others, n-1-i), append(back, n-1-i)
	}
	others = slices.DeleteFunc(others, func(pe int) bool { return (pe-e.id)%2 != 0 })
	second, err := all.Split(e.t.ctx, e.id%2, -e.id)
	e.must("split", err)
	third, err := all.SplitStrided(e.t.ctx, n-1, -1, (n+1)/2)
	e.must("split strided", err)
	e.sides = []side{{all, world}, {second, others}, {third, back[:(n+1)/2]}}
}

// numbers is the input of a collective call of a team: n numbers from each PE, which every PE can
// compute.
type numbers struct {
	*element
	side
	n, key int
	mine   []int32
}

// collective is a phase with a call of a team that is drawn. PEs that are not in it do nothing.
func collective(play func(c *numbers, common *rand.Rand)) func(e *element, common *rand.Rand) {
	return func(e *element, common *rand.Rand) {
		c := &numbers{element: e, side: e.sides[common.IntN(len(e.sides))], n: 1 + common.IntN(300)}
		if c.Team == nil {
			return
		}
		if common.IntN(4) == 0 {
			c.n *= 20 // many pieces
		}
		c.key = common.IntN(lab.Keys)
		if c.mine = c.values(c.n, 0); common.IntN(3) == 0 {
			e.must("sync of a team", c.Sync(e.t.ctx))
		}
		play(c, common)
	}
}

// val returns number i of a PE.
func (c *numbers) val(pe, i int) int32 {
	return int32(lab.Noise((c.key+31*pe+i)%lab.Keys, 1)[0]) - 100
}

// values returns numbers of the PE itself.
func (c *numbers) values(n, from int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = c.val(c.id, from+i)
	}
	return list
}

// gives checks the result of a call.
func (c *numbers) gives(what string, err error, got []int32, want func(i int) int32) {
	c.must(what, err)
	for i, v := range got {
		if v != want(i) {
			c.t.Broken(lab.Content, "PE %d: %s of %d in %v: element %d is %d, must be %d", c.id, what, c.n,
				c.Team, i, v, want(i))
		}
	}
}

func (c *numbers) broadcast(common *rand.Rand) {
	root := common.IntN(len(c.pes))
	for round := range 1 + common.IntN(12) { // the root may get ahead of the others
		list := c.values(c.n, round)
		err := shmem.Broadcast(c.t.ctx, c, list, root)
		c.gives("broadcast", err, list, func(i int) int32 { return c.val(c.pes[root], i+round) })
	}
}

// reductions are the operations, and what each does.
var reductions = []struct {
	op shmem.ReduceOp
	do func(a, b int32) int32
}{
	{shmem.OpSum, func(a, b int32) int32 { return a + b }},
	{shmem.OpMin, func(a, b int32) int32 { return min(a, b) }},
	{shmem.OpMax, func(a, b int32) int32 { return max(a, b) }},
	{shmem.OpXor, func(a, b int32) int32 { return a ^ b }},
	{shmem.OpAnd, func(a, b int32) int32 { return a & b }},
	{shmem.OpOr, func(a, b int32) int32 { return a | b }},
	{shmem.OpProd, func(a, b int32) int32 { return a * b }},
}

func (c *numbers) reduce(common *rand.Rand) {
	o := reductions[common.IntN(len(reductions))]
	dst := make([]int32, c.n)
	if common.IntN(2) == 0 {
		dst = c.mine
	}
	var err error
	own, upTo := 0, len(c.pes)
	switch common.IntN(6) {
	case 0:
		err = shmem.ReduceFunc(c.t.ctx, c, dst, c.mine, o.do)
	case 1:
		err, upTo = shmem.Scan(c.t.ctx, c, dst, c.mine, o.op), c.Rank()+1
	case 2:
		err, own = shmem.ReduceScatter(c.t.ctx, c, dst, c.values(c.n*upTo, 0), o.op), c.n*c.Rank()
	default:
		err = shmem.Reduce(c.t.ctx, c, dst, c.mine, o.op)
	}
	c.gives(sprintf("reduce %v", o.op), err, dst, func(i int) int32 {
		v := c.val(c.pes[0], own+i)
		for _, pe := range c.pes[1:upTo] {
			v = o.do(v, c.val(pe, own+i))
		}
		return v
	})
}

func (c *numbers) gather(*rand.Rand) {
	dst := make([]int32, c.n*len(c.pes))
	err := shmem.AllGather(c.t.ctx, c, dst, c.mine)
	c.gives("all-gather", err, dst, func(i int) int32 { return c.val(c.pes[i/c.n], i%c.n) })
}

func (c *numbers) trade(*rand.Rand) {
	src := c.values(c.n*len(c.pes), 0)
	dst := make([]int32, len(src))
	err := shmem.AllToAll(c.t.ctx, c, dst, src)
	c.gives("all-to-all", err, dst, func(i int) int32 { return c.val(c.pes[i/c.n], c.Rank()*c.n+i%c.n) })
}

// started starts calls of the teams of this PE, of all kinds in one order, and waits for their ends
// in another one.
func (e *element) started(common *rand.Rand) {
	type flight struct {
		c    *numbers
		req  *shmem.Request
		dst  []int32
		want func(i int) int32
	}
	var flights []flight
	for range 2 + common.IntN(4) {
		c := &numbers{element: e, side: e.sides[common.IntN(len(e.sides))], n: 1 + common.IntN(300)}
		if common.IntN(3) == 0 {
			c.n *= 20
		}
		c.key = common.IntN(lab.Keys)
		kind, root := common.IntN(4), common.IntN(1<<10)
		if c.Team == nil {
			continue
		}
		root %= len(c.pes)
		c.mine = c.values(c.n, 0)
		f := flight{c: c, dst: make([]int32, c.n)}
		var err error
		switch kind {
		case 0:
			f.req, err = shmem.StartReduce(c, f.dst, c.mine, shmem.OpSum)
			f.want = func(i int) (sum int32) {
				for _, pe := range c.pes {
					sum += c.val(pe, i)
				}
				return sum
			}
		case 1:
			f.dst = c.mine
			f.req, err = shmem.StartBroadcast(c, f.dst, root)
			f.want = func(i int) int32 { return c.val(c.pes[root], i) }
		case 2:
			f.dst = make([]int32, c.n*len(c.pes))
			f.req, err = shmem.StartAllGather(c, f.dst, c.mine)
			f.want = func(i int) int32 { return c.val(c.pes[i/c.n], i%c.n) }
		case 3: // rank r has r parts more than the first
			counts, all := make([]int, len(c.pes)), 0
			for r := range counts {
				counts[r] = c.n * (1 + r)
				all += counts[r]
			}
			f.dst = make([]int32, all)
			f.req, err = shmem.StartAllGatherV(c, f.dst, counts, c.values(counts[c.Rank()], 0))
			f.want = func(i int) int32 {
				r := 0
				for ; i >= counts[r]; r++ {
					i -= counts[r]
				}
				return c.val(c.pes[r], i)
			}
		}
		if e.must("start", err); err == nil {
			flights = append(flights, f)
		}
	}
	for len(flights) != 0 {
		i := e.t.Rng.IntN(len(flights))
		f := flights[i]
		flights = slices.Delete(flights, i, i+1)
		err := f.req.Wait(e.t.ctx)
		f.c.gives("started call", err, f.dst, f.want)
		f.req.Free()
	}
}

// shrink makes a team of the PEs of another one of which none has died, calls it, and closes it.
func (c *numbers) shrink(*rand.Rand) {
	ctx := c.t.ctx
	left, err := c.Shrink(ctx)
	c.must("shrink", err)
	if left.Rank() != c.Rank() || left.Size() != len(c.pes) {
		c.t.Broken(lab.Content, "PE %d: rank %d of %d in %v, and %d of %d in %v", c.id, left.Rank(),
			left.Size(), left, c.Rank(), len(c.pes), c.Team)
	}
	dst := make([]int32, c.n*len(c.pes))
	err = shmem.AllGather(ctx, left, dst, c.mine)
	c.gives("all-gather after shrink", err, dst, func(i int) int32 { return c.val(c.pes[i/c.n], i%c.n) })
	c.must("close team", left.Close())
}

// allocate allocates one or two blocks, uses them, and frees them; or it asks for blocks that are
// refused on all PEs.
func (e *element) allocate(common *rand.Rand) {
	t, before := e.t, e.pe.Stats()
	n, two := 1+common.IntN(1000), common.IntN(2) == 0
	if common.IntN(4) == 0 {
		e.refusedBlock(common)
		return
	}
	s := alloc[byte](e, n)
	for i, v := range s.Local(e.pe) {
		if v != 0 {
			t.Broken(lab.Content, "PE %d: byte %d of a new block is %#x", e.id, i, v)
		}
	}
	first := s
	if two {
		s = alloc[byte](e, 2*n)
	}
	e.must("barrier", e.pe.Barrier(t.ctx))
	e.quieted()
	mine := slices.Repeat([]byte{byte(e.id + 1)}, s.Len())
	e.must("put", shmem.Put(t.ctx, e.pe, s, mine, (e.id+1)%len(t.peers)))
	e.must("barrier", e.pe.Barrier(t.ctx))
	if from := byte((e.id+len(t.peers)-1)%len(t.peers) + 1); slices.ContainsFunc(s.Local(e.pe),
		func(v byte) bool { return v != from }) {
		t.Broken(lab.Content, "PE %d: its block of %d bytes does not hold what PE %d has put", e.id, s.Len(),
			from-1)
	}
	if two && common.IntN(2) == 0 {
		first, s = s, first
	}
	e.must("free", shmem.Free(t.ctx, e.pe, first))
	if two {
		e.must("free", shmem.Free(t.ctx, e.pe, s))
	}
	if after := e.pe.Stats(); after.HeapUsed != before.HeapUsed || after.HeapBlocks != before.HeapBlocks {
		t.Broken(ruleBalance, "PE %d has freed what it allocated, and counts %d bytes in %d blocks", e.id,
			after.HeapUsed, after.HeapBlocks)
	}
	e.mustFail("free of what was freed", shmem.Free(t.ctx, e.pe, first), verbs.ErrInvalid)
}

// refusedBlock asks for a block that no PE can have.
func (e *element) refusedBlock(common *rand.Rand) {
	want, n := shmem.ErrNoMemory, []int{heapSize / 2, heapSize, 2 * heapSize, -1}[common.IntN(4)]
	if n < 0 {
		want = verbs.ErrInvalid
	}
	e.mustFail(sprintf("alloc of %d", n), errorOf(shmem.Alloc[uint16](e.t.ctx, e.pe, n)), want)
}

// mismatch makes one PE ask for another size: the call must be refused on all PEs, which continue.
func (e *element) mismatch(common *rand.Rand) {
	n := 10
	if e.id == common.IntN(len(e.t.peers)) {
		n = 100
	}
	e.mustFail("alloc of different sizes", errorOf(shmem.Alloc[byte](e.t.ctx, e.pe, n)), shmem.ErrMismatch)
}

// misstep makes one PE's collective call differ from the others', or have wrong arguments. No PE
// may wait forever: all learn of it, in that call or in the next, and can still Close.
func (e *element) misstep(common *rand.Rand) {
	t, pes, ctx, pe := e.t, len(e.t.peers), e.t.ctx, e.pe
	odd, root := common.IntN(pes), common.IntN(pes)
	n := 1 + common.IntN(40)
	src, dst, floats := make([]byte, n*pes), make([]byte, n*pes), []float32{1}
	for _, o := range t.peers { // the end of this call would also end an earlier one
		for o.phase < e.phase && o.failed == nil {
			t.idle()
		}
	}
	gather := func(n int) error { return shmem.AllGather(ctx, pe, dst[:n*pes], src[:n]) }
	calls := []struct {
		call  func() error
		wrong bool // its arguments are wrong
	}{
		{func() error { return shmem.Broadcast(ctx, pe, src, pes) }, true},
		{func() error { return shmem.Broadcast(ctx, pe, src, (root+1)%pes) }, false},
		{func() error { return gather(n - 1) }, false},
		{func() error { return shmem.AllToAll(ctx, pe, dst, src) }, false},
		{func() error { return pe.Sync(ctx) }, false},
		{func() error { return shmem.AllGather(ctx, pe, dst[1:], src[:n]) }, true},
		{func() error { return shmem.AllToAll(ctx, pe, dst[1:], src) }, true},
		{func() error { return shmem.Reduce(ctx, pe, dst[1:], src, shmem.OpSum) }, true},
		{func() error { return shmem.ReduceFunc(ctx, pe, dst, src, nil) }, true},
		{func() error { return shmem.Reduce(ctx, pe, floats, floats, shmem.OpXor) }, true},
		{func() error { return shmem.Reduce(ctx, pe, dst, src, shmem.ReduceOp(99)) }, true},
	}
	way := common.IntN(len(calls))
	wrong, alone := false, way < 2 // the call needs nothing of some others
	t.patience = manyRounds        // PEs ask each other which call they are in
	var err error
	switch {
	case e.id == odd:
		err, wrong = calls[way].call(), calls[way].wrong
	case alone:
		err = shmem.Broadcast(ctx, pe, src, root)
	default:
		err = gather(n)
	}
	switch {
	case wrong:
		e.mustFail("a call with wrong arguments", err, verbs.ErrInvalid)
	case err != nil || !alone: // every PE needs the data of the odd one, or is the odd one
		e.mustFail("a call that others do not make", err, shmem.ErrMismatch)
	}
	for _, err := range []error{pe.Barrier(ctx), gather(n), shmem.AllToAll(ctx, pe, dst, src),
		shmem.Reduce(ctx, pe, dst, src, shmem.OpMax), errorOf(shmem.Alloc[byte](ctx, pe, n))} {
		e.mustFail("a call after calls that differ", err, shmem.ErrMismatch)
	}
}
