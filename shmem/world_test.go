package shmem_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx/shmem"
)

// When one PE's program fails, Run ends the waits of the others, and returns only that error.
func TestRunEndsTheOthers(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	mine := errors.New("out of ideas")
	err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.ID() == 1 {
			return mine
		}
		return pe.Barrier(ctx)
	})
	if err == nil || err.Error() != "PE 1: out of ideas" || !errors.Is(err, mine) {
		t.Fatal(err)
	}
}

// Run sends what a program has begun when it returns: other PEs may wait for it.
func TestWhatAProgramHasBegunLeaves(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *testbed) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			s, err := shmem.Alloc[uint64](ctx, pe, 4096)
			if err != nil {
				return err
			}
			sig, err := shmem.Alloc[uint64](ctx, pe, 1)
			if err != nil {
				return err
			}
			if pe.ID() == 0 {
				return shmem.PutSignal(ctx, pe, s, make([]uint64, 4096), sig, 1, shmem.SignalSet, 1)
			}
			return shmem.WaitUntil(ctx, pe, sig, shmem.EQ, 1)
		})
	})
}

// PEs may share a domain, and so the NICs.
func TestPEsShareADomain(t *testing.T) {
	l := newTestbed(t, shape{1, 2, 2}, shmem.Config{})
	world, err := shmem.NewLocal(l.ctx, shmem.Config{HeapSize: 1 << 16}, l.doms[0], l.doms[0], l.doms[0])
	if err != nil {
		t.Fatal(err)
	}
	err = world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		s, err := shmem.Alloc[int64](ctx, pe, 1)
		if err != nil {
			return err
		}
		for to := range 3 {
			if err := shmem.Add(ctx, pe, s, int64(pe.ID()+1), to); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		if v := shmem.Load(pe, s); v != 6 {
			t.Errorf("PE %d has %d, want 6", pe.ID(), v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := world.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
}
