// SHMEM: heat flows along a ring of 4,000 cells. Each of four PEs has a quarter of the cells.
//
// In each step every PE puts its first and last cell into its neighbours' symmetric heaps, with a
// signal; when a neighbour's signal has arrived, so has its cell. A PE waits only for its
// neighbours. At the end PE 0 gathers all cells and compares them with the result of one processor.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs/soft"
)

const (
	pes   = 4
	cells = 1000 // of each PE
	steps = 200
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	fabric, err := soft.New(soft.Config{Devices: pes}) // a NIC for each PE
	if err != nil {
		return err
	}
	var domains []*ibverbx.Domain
	for i := range pes {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		if err != nil {
			return err
		}
		domains = append(domains, dom)
	}
	// The PEs are goroutines of this process. PEs in several processes each call shmem.Join.
	world, err := shmem.NewLocal(ctx, shmem.Config{HeapSize: 1 << 20}, domains...)
	if err != nil {
		return err
	}
	if err := world.Run(ctx, diffuse); err != nil {
		return err
	}
	if err := world.Close(ctx); err != nil {
		return err
	}
	for _, dom := range domains {
		if err := dom.Close(); err != nil {
			return err
		}
	}
	return fabric.Close()
}

// diffuse is what every PE runs.
func diffuse(ctx context.Context, pe *shmem.PE) error {
	// The neighbours' cells arrive here. Odd and even steps use different places: a neighbour may
	// be one step ahead, but not two, because its next step needs a cell of this PE.
	halo, err := shmem.Alloc[float64](ctx, pe, 4)
	if err != nil {
		return err
	}
	signals, err := shmem.Alloc[uint64](ctx, pe, 2) // the last step whose cell has come, from each side
	if err != nil {
		return err
	}
	left, right := (pe.Rank()+pes-1)%pes, (pe.Rank()+1)%pes
	rod, next := make([]float64, cells+2), make([]float64, cells+2) // with a neighbour's cell at each end
	copy(rod[1:], initial()[pe.Rank()*cells:][:cells])

	for step := uint64(1); step <= steps; step++ {
		place := 2 * int(step%2)
		// This PE's first cell is the right-hand one of its left neighbour.
		if err := errors.Join(
			shmem.PutSignal(ctx, pe, halo.At(place+1), rod[1:2], signals.At(1), step, shmem.SignalSet, left),
			shmem.PutSignal(ctx, pe, halo.At(place), rod[cells:cells+1], signals.At(0), step,
				shmem.SignalSet, right),
		); err != nil {
			return err
		}
		if err := shmem.WaitUntilAll(ctx, pe, signals, shmem.GE, step); err != nil {
			return err
		}
		rod[0], rod[cells+1] = halo.Local(pe)[place], halo.Local(pe)[place+1]
		flow(next, rod)
		rod, next = next, rod
	}

	all := make([]float64, pes*cells)
	if err := shmem.AllGather(ctx, pe, all, rod[1:cells+1]); err != nil {
		return err
	}
	if pe.Rank() != 0 {
		return nil
	}
	if !slices.Equal(all, serial()) {
		return errors.New("the PEs and one processor disagree")
	}
	fmt.Printf("%d steps on %d PEs: all %d cells are as one processor computes them\n", steps, pes, len(all))
	return nil
}

// flow computes a step: every cell except the outermost takes heat from its neighbours.
func flow(dst, src []float64) {
	for i := 1; i < len(src)-1; i++ {
		dst[i] = src[i] + 0.25*(src[i-1]-2*src[i]+src[i+1])
	}
}

// initial is the ring before the first step: one hot stretch across the border of two PEs.
func initial() []float64 {
	ring := make([]float64, pes*cells)
	for i := cells - 50; i < cells+50; i++ {
		ring[i] = 100
	}
	return ring
}

// serial computes everything without PEs.
func serial() []float64 {
	n := pes * cells
	ring, next := make([]float64, n+2), make([]float64, n+2)
	copy(ring[1:], initial())
	for range steps {
		ring[0], ring[n+1] = ring[n], ring[1]
		flow(next, ring)
		ring, next = next, ring
	}
	return ring[1 : n+1]
}
