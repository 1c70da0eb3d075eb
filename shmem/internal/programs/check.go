// Package programs has small parallel programs whose result is known exactly. They show how to use
// package shmem, and test it with PEs that are goroutines or processes. Each has a serial
// counterpart.
package programs

import (
	"context"
	"fmt"
	"slices"

	"ibverbx/shmem"
)

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
