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

// Alloc returns the same place on all PEs, zeroed and aligned, and uses what was freed again.
func TestAllocIsTheSameEverywhere(t *testing.T) {
	eachShape(t, 3, func(t *testing.T, l *testbed) {
		offsets := make([][]uint64, 3)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			note := func(off uint64) { offsets[pe.Rank()] = append(offsets[pe.Rank()], off) }
			var live []shmem.Sym[uint16]
			for i := range 40 {
				s, err := shmem.Alloc[uint16](ctx, pe, i*37)
				if err != nil {
					return err
				}
				note(s.Offset())
				if s.Offset()%64 != 0 || s.Len() != i*37 {
					return wrong("block %d: offset %d, length %d", i, s.Offset(), s.Len())
				}
				for k, v := range s.Local(pe) {
					if v != 0 {
						return wrong("block %d: element %d is %d", i, k, v)
					}
					s.Local(pe)[k] = 0xffff
				}
				if live = append(live, s); i%3 == 2 {
					if err := shmem.Free(ctx, pe, live[1]); err != nil {
						return err
					}
					live = append(live[:1], live[2:]...)
				}
			}
			for _, s := range live {
				if err := shmem.Free(ctx, pe, s); err != nil {
					return err
				}
			}
			if used := pe.Stats().HeapUsed; used != 0 {
				return wrong("%d bytes are used though all was freed", used)
			}
			return nil
		})
		for i := range offsets {
			if fmt.Sprint(offsets[i]) != fmt.Sprint(offsets[0]) {
				t.Fatalf("PE %d: %v, PE 0: %v", i, offsets[i], offsets[0])
			}
		}
	})
}

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

// Free frees whole blocks only.
func TestFreeOfAPartIsRefused(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *testbed) {
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
