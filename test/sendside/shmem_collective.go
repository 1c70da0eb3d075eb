package sendside

import (
	"math/rand/v2"
	"slices"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// numbers is the input of a collective call: n numbers from each PE, which every PE can compute.
type numbers struct {
	*element
	n, key int
	mine   []int32
}

func (e *element) numbers(common *rand.Rand) *numbers {
	c := &numbers{element: e, n: 1 + common.IntN(300)}
	if common.IntN(4) == 0 {
		c.n *= 20 // many pieces
	}
	c.key = common.IntN(lab.Keys)
	c.mine = c.values(c.n, 0)
	return c
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
			c.t.Broken(lab.Content, "PE %d: %s of %d: element %d is %d, must be %d", c.id, what, c.n, i, v,
				want(i))
		}
	}
}

func (e *element) broadcast(common *rand.Rand) {
	c, root := e.numbers(common), common.IntN(len(e.t.peers))
	for round := range 1 + common.IntN(6) { // the root may get ahead of the others
		list := c.values(c.n, round)
		err := shmem.Broadcast(e.t.ctx, e.pe, list, root)
		c.gives("broadcast", err, list, func(i int) int32 { return c.val(root, i+round) })
	}
}

func (e *element) reduce(common *rand.Rand) {
	c := e.numbers(common)
	op := []shmem.ReduceOp{shmem.OpSum, shmem.OpMin, shmem.OpMax, shmem.OpXor, shmem.OpAnd, shmem.OpOr,
		shmem.OpProd}[common.IntN(7)]
	dst := make([]int32, c.n)
	if common.IntN(2) == 0 {
		dst = c.mine
	}
	var err error
	if op == shmem.OpSum && common.IntN(2) == 0 {
		err = shmem.ReduceFunc(e.t.ctx, e.pe, dst, c.mine, func(a, b int32) int32 { return a + b })
	} else {
		err = shmem.Reduce(e.t.ctx, e.pe, dst, c.mine, op)
	}
	c.gives(sprintf("reduce %v", op), err, dst, func(i int) int32 {
		return reduced(op, len(e.t.peers), func(pe int) int32 { return c.val(pe, i) })
	})
}

func (e *element) gather(common *rand.Rand) {
	c := e.numbers(common)
	dst := make([]int32, c.n*len(e.t.peers))
	err := shmem.AllGather(e.t.ctx, e.pe, dst, c.mine)
	c.gives("all-gather", err, dst, func(i int) int32 { return c.val(i/c.n, i%c.n) })
}

func (e *element) trade(common *rand.Rand) {
	c := e.numbers(common)
	src := c.values(c.n*len(e.t.peers), 0)
	dst := make([]int32, len(src))
	err := shmem.AllToAll(e.t.ctx, e.pe, dst, src)
	c.gives("all-to-all", err, dst, func(i int) int32 { return c.val(i/c.n, e.id*c.n+i%c.n) })
}

// reduced combines the values of all PEs in order.
func reduced(op shmem.ReduceOp, pes int, val func(pe int) int32) int32 {
	v := val(0)
	for pe := 1; pe < pes; pe++ {
		switch x := val(pe); op {
		case shmem.OpSum:
			v += x
		case shmem.OpMin:
			v = min(v, x)
		case shmem.OpMax:
			v = max(v, x)
		case shmem.OpAnd:
			v &= x
		case shmem.OpOr:
			v |= x
		case shmem.OpProd:
			v *= x
		default:
			v ^= x
		}
	}
	return v
}

// allocate allocates one or two blocks, uses them, and frees them; or it asks for blocks that are
// refused on all PEs.
func (e *element) allocate(common *rand.Rand) {
	t := e.t
	before := e.pe.Stats()
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
	to := (e.id + 1) % len(t.peers)
	e.must("barrier", e.pe.Barrier(t.ctx))
	e.quieted()
	e.must("put", shmem.Put(t.ctx, e.pe, s, bytesOf(byte(e.id+1), s.Len()), to))
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

func bytesOf(v byte, n int) []byte { return slices.Repeat([]byte{v}, n) }

// mismatch makes one PE ask for another size: the call must be refused on all PEs, which continue.
func (e *element) mismatch(common *rand.Rand) {
	odd := common.IntN(len(e.t.peers))
	n := 10
	if e.id == odd {
		n = 100
	}
	err := errorOf(shmem.Alloc[byte](e.t.ctx, e.pe, n))
	e.mustFail("alloc of different sizes", err, shmem.ErrMismatch)
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
