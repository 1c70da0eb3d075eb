package sendside

import (
	"math/rand/v2"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
)

// count adds to a shared counter: no addition may be lost, and no two may find the same value.
func (e *element) count(common *rand.Rand) {
	t, home, word := e.t, common.IntN(len(e.t.peers)), common.IntN(counters)
	dst := e.words.At(word)
	e.barrier()
	before := dst.Local(t.peers[home].pe)[0]
	clear(t.found)
	e.must("sync", e.pe.Sync(t.ctx))
	mine := 1 + e.rng.IntN(6)
	for range mine {
		if e.rng.IntN(2) == 0 {
			e.must("add", shmem.Add(t.ctx, e.pe, dst, step, home))
			continue
		}
		old, err := shmem.FetchAdd(t.ctx, e.pe, dst, step, home)
		e.must("fetch add", err)
		if t.found[old] || (old-before)%step != 0 {
			t.Broken(ruleAtomic, "PE %d: an addition finds %#x, as another has, or no sum at all",
				e.id, old)
		}
		t.found[old] = true
	}
	t.sums[word] += uint64(mine)
	e.barrier()
	if got := dst.Local(t.peers[home].pe)[0]; got != before+t.sums[word]*step {
		t.Broken(ruleAtomic, "counter %d on PE %d is %#x after %d additions to %#x", word, home, got,
			t.sums[word], before)
	}
	e.barrier()
	t.sums[word] = 0
	e.must("sync", e.pe.Sync(t.ctx))
}

// toggle changes the PE's own bits of shared words. No change of another PE may be lost.
func (e *element) toggle(*rand.Rand) {
	t, home, small, large := e.t, 0, e.halves.At(1), e.words.At(6)
	e.barrier()
	other := e.halves.At(0).Local(t.peers[home].pe)[0] // shares eight bytes with the small one
	for range 1 + e.rng.IntN(5) {
		var err error
		bit := uint(8*e.id + e.rng.IntN(6))
		was, found := e.bits, e.bits
		switch e.rng.IntN(7) {
		case 0:
			e.bits |= 1 << bit
			err = shmem.Or(t.ctx, e.pe, large, 1<<bit, home)
		case 1:
			e.bits &^= 1 << bit
			err = shmem.And(t.ctx, e.pe, large, ^uint64(1<<bit), home)
		case 2:
			e.bits ^= 1 << bit
			found, err = shmem.FetchXor(t.ctx, e.pe, large, 1<<bit, home)
		case 3:
			e.bits |= 1 << bit
			found, err = shmem.FetchOr(t.ctx, e.pe, large, 1<<bit, home)
		case 4:
			e.bits &^= 1 << bit
			found, err = shmem.FetchAnd(t.ctx, e.pe, large, ^uint64(1<<bit), home)
		case 5:
			e.increment(e.words.At(7), e.rng.Uint64())
		default:
			first := shmem.Xor[uint32]
			if e.rng.IntN(2) == 0 {
				first = shmem.Add[uint32] // it finds the bit clear, without a carry
			}
			e.must("bits", first(t.ctx, e.pe, small, 1<<uint(e.id), home))
			err = shmem.Xor(t.ctx, e.pe, small, 1<<uint(e.id), home)
		}
		e.must("bits", err)
		if mask := uint64(0xff) << (8 * e.id); found&mask != was&mask {
			t.Broken(ruleAtomic, "PE %d finds its bits %#x, and left %#x", e.id, found&mask, was&mask)
		}
	}
	e.barrier()
	want := uint64(0)
	for _, o := range t.peers {
		want |= o.bits
	}
	if got := e.halves.At(0).Local(t.peers[home].pe)[0]; got != other {
		t.Broken(ruleAtomic, "the half beside a word of four bytes was %#x, and is %#x", other, got)
	}
	at := t.peers[home].pe
	if got, half := shmem.Load(at, large), shmem.Load(at, small); got != want || half != 0 {
		t.Broken(ruleAtomic, "the bits are %#x and %#x, and should be %#x and 0", got, half, want)
	}
	e.barrier()
}

// increment sets a word of the PE's own heap and adds 1 twice.
func (e *element) increment(own shmem.Sym[uint64], v uint64) {
	e.must("set", shmem.Set(e.t.ctx, e.pe, own, v, e.id))
	e.must("inc", shmem.Inc(e.t.ctx, e.pe, own, e.id))
	found, err := shmem.FetchInc(e.t.ctx, e.pe, own, e.id)
	e.must("fetch inc", err)
	if found != v+1 && found != v { // an Inc may still be on its way
		e.t.Broken(ruleAtomic, "PE %d has set a word to %#x and added 1, and finds %#x", e.id, v, found)
	}
	e.quiet()
	if found = shmem.Load(e.pe, own); found != v+2 {
		e.t.Broken(ruleAtomic, "PE %d has set a word to %#x and added 1 twice: %#x", e.id, v, found)
	}
	e.compare(own, v+2)
}

// compare tests a word of the PE's heap that holds v by every comparison.
func (e *element) compare(s shmem.Sym[uint64], v uint64) {
	for cmp, want := range [...][3]bool{
		shmem.EQ: {false, true, false}, shmem.NE: {true, false, true}, shmem.GT: {true, false, false},
		shmem.GE: {true, true, false}, shmem.LT: {false, false, true}, shmem.LE: {false, true, true},
	} {
		for i, holds := range want {
			with := v - 1 + uint64(i)
			got, err := shmem.Test(e.pe, s, shmem.Cmp(cmp), with)
			e.must("test", err)
			if got != holds {
				e.t.Broken(lab.Content, "PE %d: %#x %v %#x is %v", e.id, v, shmem.Cmp(cmp), with, got)
			}
		}
	}
}

// swap swaps tokens into a word. Each may be swapped out once.
func (e *element) swap(common *rand.Rand) {
	t, home, dst := e.t, common.IntN(len(e.t.peers)), e.halves.At(0)
	e.barrier()
	clear(t.found)
	e.must("sync", e.pe.Sync(t.ctx))
	for i := range 1 + e.rng.IntN(4) {
		token := uint32(e.t.At)<<16 | uint32(e.id)<<8 | uint32(i+1)
		old, err := shmem.Swap(t.ctx, e.pe, dst, token, home)
		e.must("swap", err)
		if t.found[uint64(old)] {
			t.Broken(ruleAtomic, "PE %d swaps %#x out, as another has before", e.id, old)
		}
		t.found[uint64(old)] = true
		old, err = shmem.CompareSwap(t.ctx, e.pe, dst, token, token|1<<31, home)
		e.must("compare swap", err)
		if now, err := shmem.Fetch(t.ctx, e.pe, dst, home); err == nil && old == token && now == token {
			t.Broken(ruleAtomic, "PE %d has swapped %#x for another value, and finds it still", e.id, token)
		}
	}
	e.barrier()
}
