// Package programs has small parallel programs whose result is known exactly. They show how to use
// package shmem, and test it with PEs that are goroutines or processes. Each has a serial
// counterpart.
package programs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx/shmem"
)

// Keys returns the n keys that PE pe counts. They are less than bins, and a few are frequent.
func Keys(pe, n, bins int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(pe), 1))
	keys := make([]uint32, n)
	for i := range keys {
		keys[i] = uint32(min(r.IntN(bins), r.IntN(bins)))
	}
	return keys
}

// Histogram counts the keys of all PEs and returns the counts on every PE. Bin b is counted on PE b
// modulo their number, by atomics.
func Histogram(ctx context.Context, pe *shmem.PE, keys []uint32, bins int) (counts []uint64, err error) {
	pes := pe.Size()
	each := (bins + pes - 1) / pes
	mine, err := shmem.Alloc[uint64](ctx, pe, each)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if err := shmem.Inc(ctx, pe, mine.At(int(k)/pes), int(k)%pes); err != nil {
			return nil, err
		}
	}
	if err := pe.Barrier(ctx); err != nil {
		return nil, err
	}
	all := make([]uint64, each*pes)
	if err := shmem.AllGather(ctx, pe, all, mine.Local(pe)); err != nil {
		return nil, err
	}
	counts = make([]uint64, bins)
	for b := range counts {
		counts[b] = all[b%pes*each+b/pes]
	}
	return counts, shmem.Free(ctx, pe, mine)
}

// SerialHistogram returns what Histogram returns when each of pes PEs counts its n Keys.
func SerialHistogram(pes, n, bins int) []uint64 {
	counts := make([]uint64, bins)
	for pe := range pes {
		for _, k := range Keys(pe, n, bins) {
			counts[k]++
		}
	}
	return counts
}

// Check runs every program on pe, with all other PEs, and compares the results with the serial
// ones. It returns an error that says what differs.
func Check(ctx context.Context, pe *shmem.PE) error {
	const keys, bins = 5000, 100
	counts, err := Histogram(ctx, pe, Keys(pe.Rank(), keys, bins), bins)
	if err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	if want := SerialHistogram(pe.Size(), keys, bins); !slices.Equal(counts, want) {
		return fmt.Errorf("histogram: PE %d has %v, want %v", pe.Rank(), counts, want)
	}
	g := Grid{Rows: 61, Cols: 83, Steps: 100}
	plate, err := Jacobi(ctx, pe, g)
	if err != nil {
		return fmt.Errorf("jacobi: %w", err)
	}
	for i, want := range SerialJacobi(g) {
		if plate[i] != want {
			return fmt.Errorf("jacobi: PE %d has %v at row %d, column %d, want %v", pe.Rank(), plate[i],
				i/g.Cols, i%g.Cols, want)
		}
	}
	return nil
}
