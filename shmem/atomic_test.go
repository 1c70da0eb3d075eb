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
