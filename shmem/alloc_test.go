package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// When one PE asks for another size all get an error that says which PE asked for what; they go on
// afterwards.
func TestAllocOfDifferentSizes(t *testing.T) {
	l := newTestbed(t, shape{4, 1, 2}, shmem.Config{})
	texts := make([]string, 4)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		n := 200
		if pe.Rank() == 3 {
			n = 100
		}
		_, err := shmem.Alloc[int64](ctx, pe, n)
		if !errors.Is(err, shmem.ErrMismatch) {
			return wrong("%v, want a mismatch", err)
		}
		texts[pe.Rank()] = err.Error()
		_, err = shmem.Alloc[int64](ctx, pe, 50)
		return err
	})
	want := "shmem: alloc: collective calls do not match: PE 0, 1, 2 asked for 200 elements of 8 bytes; PE " +
		"3 asked for 100 elements of 8 bytes"
	for i, got := range texts {
		if got != want {
			t.Errorf("PE %d:\n%s, want\n%s", i, got, want)
		}
	}
}

// All PEs get the same error for a full heap and for a wrong argument.
func TestAllocRefusals(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{HeapSize: 1 << 12})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		s, err := shmem.Alloc[byte](ctx, pe, 4000)
		if err != nil {
			return err
		}
		for _, n := range []int{100, 1 << 40, 1<<63 - 1} {
			if _, err := shmem.Alloc[int64](ctx, pe, n); !errors.Is(err, shmem.ErrNoMemory) ||
				!strings.Contains(err.Error(), fmt.Sprint(n)) && n != 100 {
				return wrong("alloc of %d: %v", n, err)
			}
		}
		if _, err := shmem.Alloc[int64](ctx, pe, -1); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), "n -1") {
			return wrong("alloc of -1: %v", err)
		}
		for _, part := range []shmem.Sym[byte]{s.Slice(0, 100), s.Slice(64, 4000), {}} {
			if err := shmem.Free(ctx, pe, part); !errors.Is(err, verbs.ErrInvalid) ||
				!strings.Contains(err.Error(), "no such block") {
				return wrong("free of %d bytes at %d: %v", part.Len(), part.Offset(), err)
			}
		}
		if err := shmem.Free(ctx, pe, s); err != nil {
			return err
		}
		if err := shmem.Free(ctx, pe, s); !errors.Is(err, verbs.ErrInvalid) {
			return wrong("second free: %v", err)
		}
		return nil
	})
}

// PEs that free different blocks all get ErrMismatch.
func TestFreeOfDifferentBlocks(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		var s [2]shmem.Sym[byte]
		for i := range s {
			var err error
			if s[i], err = shmem.Alloc[byte](ctx, pe, 10); err != nil {
				return err
			}
		}
		if err := shmem.Free(ctx, pe, s[pe.Rank()]); !errors.Is(err, shmem.ErrMismatch) {
			return wrong("free: %v", err)
		}
		return shmem.Free(ctx, pe, s[0])
	})
}
