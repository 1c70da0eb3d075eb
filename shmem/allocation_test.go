package shmem_test

import (
	"context"
	"testing"

	"ibverbx/internal/guard"
	"ibverbx/shmem"
)

// Once warm, operations do not allocate.
func TestOperationsDoNotAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s, sig := allocate[uint64](l, 4096), allocate[uint64](l, 1)
		narrow := allocate[int32](l, 2)
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			small, large := make([]uint64, 1), make([]uint64, 4096)
			var err error
			note := func(e error) {
				if e != nil && err == nil {
					err = e
				}
			}
			for name, op := range map[string]func(){
				"put":        func() { note(shmem.Put(ctx, pe, s, small, 1)) },
				"put 32 KiB": func() { note(shmem.Put(ctx, pe, s, large, 1)) },
				"put heap":   func() { note(shmem.Put(ctx, pe, s, s.Local(pe), 1)) },
				"put nbi":    func() { note(shmem.PutNBI(ctx, pe, s, s.Local(pe), 1)) },
				"p":          func() { note(shmem.P(ctx, pe, s, 1, 1)) },
				"get":        func() { note(shmem.Get(ctx, pe, small, s, 1)) },
				"get 32 KiB": func() { note(shmem.Get(ctx, pe, large, s, 1)) },
				"get nbi":    func() { note(shmem.GetNBI(ctx, pe, small, s, 1)) },
				"g":          func() { _, e := shmem.G(ctx, pe, s, 1); note(e) },
				"add":        func() { note(shmem.Add(ctx, pe, s, 1, 1)) },
				"fetch add":  func() { _, e := shmem.FetchAdd(ctx, pe, s, 1, 1); note(e) },
				"swap":       func() { _, e := shmem.Swap(ctx, pe, narrow, 1, 1); note(e) },
				"fence":      pe.Fence,
				"quiet":      func() { note(pe.Quiet(ctx)) },
				"put signal": func() { note(shmem.PutSignal(ctx, pe, s, small, sig, 1, shmem.SignalAdd, 1)) },
				"wait until": func() { note(shmem.WaitUntil(ctx, pe, sig, shmem.EQ, 0)) },
			} {
				for range 200 {
					op()
				}
				if got := testing.AllocsPerRun(200, op); got >= 1 {
					t.Errorf("%s: %v allocations", name, got)
				}
			}
			return err
		})
	})
}
