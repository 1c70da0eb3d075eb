package shmem_test

import (
	"context"
	"fmt"
	"testing"

	"ibverbx/shmem"
)

// Each atomic makes its change, and returns the value before.
func TestAtomics(t *testing.T) {
	t.Run("int32", func(t *testing.T) { atomics[int32](t) })
	t.Run("uint32", func(t *testing.T) { atomics[uint32](t) })
	t.Run("int64", func(t *testing.T) { atomics[int64](t) })
	t.Run("uint64", func(t *testing.T) { atomics[uint64](t) })
}

// atomics calls all atomics on a word between neighbours, on another PE and on the PE itself.
func atomics[T shmem.Word](t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	s := allocate[T](l, 4)
	minus := T(0)
	minus--
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		for to := range 2 {
			for i := range 4 {
				if err := shmem.Set(ctx, pe, s.At(i), T(100+i), to); err != nil {
					return err
				}
			}
			for i := range 4 {
				if err := atomicSteps(ctx, pe, s.At(i), T(100+i), minus, to); err != nil {
					return fmt.Errorf("PE %d, word %d: %w", to, i, err)
				}
			}
		}
		return nil
	})
}

func atomicSteps[T shmem.Word](ctx context.Context, pe *shmem.PE, w shmem.Sym[T], start, minus T,
	to int) error {
	step := func(name string, wantOld, wantNew T) func(T, error) error {
		return func(old T, err error) error {
			if err != nil {
				return err
			}
			if err := pe.Quiet(ctx); err != nil {
				return err
			}
			now, err := shmem.Fetch(ctx, pe, w, to)
			if err != nil || old != wantOld || now != wantNew {
				return wrong("%s: old %v, now %v, %v; want %v and %v", name, old, now, err, wantOld, wantNew)
			}
			return nil
		}
	}
	quietly := func(old T, err error) (T, error) { return old, err }
	v := start
	for _, err := range []error{
		step("fetch add", v, v+5)(shmem.FetchAdd(ctx, pe, w, 5, to)),
		// minus one: wraps where there is no sign
		step("add", v+5, v+4)(quietly(v+5, shmem.Add(ctx, pe, w, minus, to))),
		step("fetch inc", v+4, v+5)(shmem.FetchInc(ctx, pe, w, to)),
		step("inc", v+5, v+6)(quietly(v+5, shmem.Inc(ctx, pe, w, to))),
		step("swap", v+6, minus)(shmem.Swap(ctx, pe, w, minus, to)),
		step("fetch inc over the end", minus, 0)(shmem.FetchInc(ctx, pe, w, to)),
		step("compare swap, not equal", 0, 0)(shmem.CompareSwap(ctx, pe, w, 1, 9, to)),
		step("compare swap", 0, minus)(shmem.CompareSwap(ctx, pe, w, 0, minus, to)),
		step("compare swap of all ones", minus, 12)(shmem.CompareSwap(ctx, pe, w, minus, 12, to)),
		step("fetch and", 12, 8)(shmem.FetchAnd(ctx, pe, w, 9, to)),
		step("and", 8, 8)(quietly(8, shmem.And(ctx, pe, w, 15, to))),
		step("fetch or", 8, 11)(shmem.FetchOr(ctx, pe, w, 3, to)),
		step("or", 11, 15)(quietly(11, shmem.Or(ctx, pe, w, 4, to))),
		step("fetch xor", 15, 10)(shmem.FetchXor(ctx, pe, w, 5, to)),
		step("xor", 10, 0)(quietly(10, shmem.Xor(ctx, pe, w, 10, to))),
		step("set", 0, start)(quietly(0, shmem.Set(ctx, pe, w, start, to))),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Atomics are atomic among themselves, from all PEs and on the PE itself, native ones and those
// made of compare-and-swap.
func TestAtomicsAmongThemselves(t *testing.T) {
	eachShape(t, 4, func(t *testing.T, l *testbed) {
		n := uint64(2 * rounds())
		wide := allocate[uint64](l, 1)
		narrow := allocate[uint32](l, 2)
		bits := allocate[uint64](l, 1)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for i := range n {
				if err := shmem.Add(ctx, pe, wide, 1, 2); err != nil {
					return err
				}
				if _, err := shmem.FetchInc(ctx, pe, narrow.At(int(i%2)), 2); err != nil {
					return err
				}
				// Each PE inverts a bit of its own, with an operation that NICs do not have, while
				// others add above.
				if err := shmem.Xor(ctx, pe, bits, 1<<pe.Rank(), 2); err != nil {
					return err
				}
				if err := shmem.Add(ctx, pe, bits, 1<<16, 2); err != nil {
					return err
				}
			}
			if err := pe.Barrier(ctx); err != nil {
				return err
			}
			w, err := shmem.Fetch(ctx, pe, wide, 2)
			if err != nil || w != 4*n {
				return wrong("add: %d, %v; want %d", w, err, 4*n)
			}
			for i := range 2 {
				if v, err := shmem.Fetch(ctx, pe, narrow.At(i), 2); err != nil || uint64(v) != 2*n {
					return wrong("narrow %d: %d, %v; want %d", i, v, err, 2*n)
				}
			}
			if v, err := shmem.Fetch(ctx, pe, bits, 2); err != nil || v != 4*n<<16 {
				return wrong("xor and add: %#x, %v; want %#x", v, err, 4*n<<16)
			}
			return nil
		})
	})
}

// A lock made of compare-and-swap keeps all other PEs out.
func TestLockOfCompareSwap(t *testing.T) {
	l := newTestbed(t, shape{4, 1, 2}, shmem.Config{})
	lock := allocate[uint64](l, 1)
	count := allocate[int32](l, 1)
	n := rounds()
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for range n {
			for {
				old, err := shmem.CompareSwap(ctx, pe, lock, 0, uint64(pe.Rank()+1), 3)
				if err != nil {
					return err
				}
				if old == 0 {
					break
				}
			}
			v, err := shmem.G(ctx, pe, count, 1) // not atomic: only the lock protects it
			if err != nil {
				return err
			}
			if err := shmem.P(ctx, pe, count, v+1, 1); err != nil {
				return err
			}
			if err := pe.Quiet(ctx); err != nil {
				return err
			}
			if err := shmem.Set(ctx, pe, lock, 0, 3); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		if v, err := shmem.G(ctx, pe, count, 1); err != nil || int(v) != 4*n {
			return wrong("count %d, %v; want %d", v, err, 4*n)
		}
		return nil
	})
}
