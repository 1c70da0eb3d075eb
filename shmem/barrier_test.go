package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"ibverbx/shmem"
)

// No PE leaves a barrier before all have entered, for any number of PEs, back to back.
func TestBarrierAnyNumberOfPEs(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l := newTestbed(t, shape{n, 1, 1}, shmem.Config{HeapSize: 1 << 12})
			var entered atomic.Int64
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				for round := range int64(2 * rounds()) {
					entered.Add(1)
					if err := pe.Sync(ctx); err != nil {
						return err
					}
					if got := entered.Load(); got < (round+1)*int64(n) {
						return wrong("PE %d left round %d when %d of %d had entered", pe.Rank(), round, got,
							(round+1)*int64(n))
					}
				}
				return nil
			})
		})
	}
}

// After a barrier every PE sees what any PE put before it.
func TestBarrierCompletesPuts(t *testing.T) {
	eachShape(t, 4, func(t *testing.T, l *testbed) {
		s := allocate[uint32](l, 4)
		l.lag(7, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for round := range uint32(rounds()) {
				for to := range 4 {
					if err := shmem.P(ctx, pe, s.At(pe.Rank()), round*10+uint32(pe.Rank()), to); err != nil {
						return err
					}
				}
				if err := pe.Barrier(ctx); err != nil {
					return err
				}
				for from, v := range s.Local(pe) {
					if v != round*10+uint32(from) {
						return wrong("round %d: PE %d has %d of PE %d", round, pe.Rank(), v, from)
					}
				}
				if err := pe.Barrier(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Collective calls are made by one goroutine at a time: the second is refused without effect.
func TestOneCollectiveCallAtATime(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 1)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- pe.Barrier(ctx) }() // one of them stays: PE 1 does not come
		}
		if err := <-done; !errors.Is(err, shmem.ErrBusy) {
			return wrong("second call: %v, want busy", err)
		}
		v := make([]uint64, 2)
		_, alloc := shmem.Alloc[uint64](ctx, pe, 1)
		for name, err := range map[string]error{
			"alloc": alloc, "free": shmem.Free(ctx, pe, s), "close": pe.Close(ctx),
			"broadcast":  shmem.Broadcast(ctx, pe, v, 0),
			"reduce":     shmem.Reduce(ctx, pe, v, v, shmem.OpSum),
			"all-gather": shmem.AllGather(ctx, pe, v, v[:1]), "all-to-all": shmem.AllToAll(ctx, pe, v, v),
		} {
			if !errors.Is(err, shmem.ErrBusy) {
				return wrong("%s meanwhile: %v, want busy", name, err)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return wrong("first call: %v, want canceled", err)
		}
		return nil
	})
}
