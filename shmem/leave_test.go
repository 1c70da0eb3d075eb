package shmem_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// Free takes whole blocks, however small.
func TestFreeOfAPartIsRefused(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *lab) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			s, err := shmem.Alloc[int64](ctx, pe, 8)
			if err != nil {
				return err
			}
			if err := shmem.Free(ctx, pe, s.Slice(0, 3)); !errors.Is(err, verbs.ErrInvalid) {
				return wrong("a part: %v", err)
			}
			return shmem.Free(ctx, pe, s)
		})
	})
}

// What a program has begun when it returns from Run still leaves: others may wait for it.
func TestWhatAProgramHasBegunLeaves(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *lab) {
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
