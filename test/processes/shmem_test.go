package processes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/shmem"
)

// Eight PEs count random keys with atomics, in bins that are spread over all PEs. The counts are
// those of a single loop.
func TestShmemHistogram(t *testing.T) {
	outerShapes(t, team{program: "histogram", members: 8, rounds: 300})
}

// The zero configuration works on any NICs, with a heap of another size.
func TestShmemHistogramByTheZeroConfiguration(t *testing.T) {
	team{program: "histogram", members: 8, rounds: 300, zero: true}.run(t)
}

// Eight PEs with a strip of a grid each smooth it step by step, and exchange the edges of the
// strips with signals. Every cell is that of a single loop.
func TestShmemHaloExchange(t *testing.T) {
	outerShapes(t, team{program: "halo", members: 8, rounds: 20})
}

// A PE that sees a signal sees all data that was put before it, over any number of rails, whether
// the signal is set or added to.
func TestShmemPutWithSignal(t *testing.T) {
	eachShape(t, team{program: "signal", members: 2, rounds: 30})
}

// After a barrier all PEs see what any PE has put before it.
func TestShmemBarrier(t *testing.T) {
	outerShapes(t, team{program: "barrier", members: 8, rounds: 6})
}

// shmemConfig is the configuration of a PE.
func (m *member) shmemConfig() shmem.Config {
	cfg := shmem.Config{
		Rank: m.Rank, Size: m.Of, HeapSize: 4 << 20,
		Exchange: m.gatherIdle,
	}
	cfg.Transport = m.transportConfig()
	if !m.Zero {
		cfg.Transport.QP.FragmentSize = 16 << 10
	}
	return cfg
}

// asPE makes a program of one for a PE: it joins before, and closes after.
func asPE(run func(ctx context.Context, m *member, pe *shmem.PE) error) program {
	return func(ctx context.Context, m *member) error {
		pe, err := shmem.Join(ctx, m.dom, m.shmemConfig())
		if err != nil {
			return err
		}
		err = run(ctx, m, pe)
		if err != nil || m.Hasty {
			// Others may be gone, so that Close returns an error.
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			ctx = short
		}
		if closed := pe.Close(ctx); !m.Hasty { // Close returns an error if one has died
			err = errors.Join(err, closed)
		}
		return err
	}
}

// key is the i-th key of a PE.
func key(pe, i, bins int) int { return int(patternWord(uint64(pe), i) >> 17 % uint64(bins)) }

func histogram(ctx context.Context, m *member, pe *shmem.PE) error {
	const bins = 100
	each := (bins + m.Of - 1) / m.Of
	mine, err := shmem.Alloc[uint64](ctx, pe, each)
	if err != nil {
		return err
	}
	want := make([]uint64, each*m.Of)
	for i := range m.Rounds {
		k := key(m.Rank, i, bins)
		if err := shmem.Inc(ctx, pe, mine.At(k%each), k/each); err != nil {
			return err
		}
		for rank := range m.Of {
			want[key(rank, i, bins)]++
		}
	}
	if err := pe.Barrier(ctx); err != nil {
		return err
	}
	got := make([]uint64, len(want))
	if err := shmem.AllGather(ctx, pe, got, mine.Local(pe)); err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("counts are %v, want %v", got, want)
	}
	total := []uint64{0}
	for _, n := range mine.Local(pe) {
		total[0] += n
	}
	if err := shmem.Reduce(ctx, pe, total, total, shmem.OpSum); err != nil {
		return err
	}
	if total[0] != uint64(m.Of*m.Rounds) {
		return fmt.Errorf("%d keys were counted of %d", total[0], m.Of*m.Rounds)
	}
	return shmem.Free(ctx, pe, mine)
}

const (
	haloCols = 257 // edges are too long for inline, and of an odd length
	haloRows = 5   // of each PE
)

// cell is a cell of the grid at the beginning.
func cell(row, col int) float64 { return float64((row*31 + col*17) % 101) }

// smooth makes a step on rows that have a row of each neighbour around them.
func smooth(to, from []float64, rows int) {
	for r := 1; r <= rows; r++ {
		for c := 1; c < haloCols-1; c++ {
			i := r*haloCols + c
			to[i] = (from[i-haloCols] + from[i+haloCols] + from[i-1] + from[i+1]) / 4
		}
	}
}

// halo smooths the strip of this PE, which has a row of each neighbour around it. There are two
// copies: when the edges of step n have come from a neighbour, it does not need those of step n-1
// any more, and those of step n+1 may overwrite them.
func halo(ctx context.Context, m *member, pe *shmem.PE) error {
	whole := make([]float64, (m.Of*haloRows+2)*haloCols)
	for i := range whole {
		whole[i] = cell(i/haloCols, i%haloCols)
	}
	var grids [2]shmem.Sym[float64]
	for i := range grids {
		var err error
		if grids[i], err = shmem.Alloc[float64](ctx, pe, (haloRows+2)*haloCols); err != nil {
			return err
		}
		copy(grids[i].Local(pe), whole[m.Rank*haloRows*haloCols:])
	}
	// the step of the edges that have come from above and from below
	come, err := shmem.Alloc[uint64](ctx, pe, 2)
	if err != nil {
		return err
	}
	row := func(s shmem.Sym[float64], r int) shmem.Sym[float64] { return s.Slice(r*haloCols, (r+1)*haloCols) }
	serial := [2][]float64{whole, slices.Clone(whole)}
	for step := 1; step <= m.Rounds; step++ {
		from, to := grids[(step-1)%2], grids[step%2]
		smooth(to.Local(pe), from.Local(pe), haloRows)
		smooth(serial[step%2], serial[(step-1)%2], m.Of*haloRows)
		if m.Rank > 0 {
			if err := shmem.PutSignal(ctx, pe, row(to, haloRows+1), row(to, 1).Local(pe), come.At(1),
				uint64(step), shmem.SignalSet, m.Rank-1); err != nil {
				return err
			}
		}
		if m.Rank < m.Of-1 {
			if err := shmem.PutSignal(ctx, pe, row(to, 0), row(to, haloRows).Local(pe), come.At(0),
				uint64(step), shmem.SignalSet, m.Rank+1); err != nil {
				return err
			}
		}
		if m.Rank > 0 {
			if err := shmem.WaitUntil(ctx, pe, come.At(0), shmem.GE, uint64(step)); err != nil {
				return err
			}
		}
		if m.Rank < m.Of-1 {
			if err := shmem.WaitUntil(ctx, pe, come.At(1), shmem.GE, uint64(step)); err != nil {
				return err
			}
		}
	}
	got, want := grids[m.Rounds%2].Local(pe), serial[m.Rounds%2][m.Rank*haloRows*haloCols:]
	for i, v := range got {
		if v != want[i] {
			return fmt.Errorf("row %d, column %d is %v, want %v", m.Rank*haloRows+i/haloCols, i%haloCols, v,
				want[i])
		}
	}
	return pe.Barrier(ctx)
}

// signal puts blocks to the other PE, which does the same, and checks the blocks that come.
func signal(ctx context.Context, m *member, pe *shmem.PE) error {
	const size = 120_001
	block, err := shmem.Alloc[byte](ctx, pe, size)
	if err != nil {
		return err
	}
	source, err := shmem.Alloc[byte](ctx, pe, size) // in the heap, so it is not copied
	if err != nil {
		return err
	}
	// a signal that is set, one that is added to, and what the other PE has checked
	words, err := shmem.Alloc[uint64](ctx, pe, 3)
	if err != nil {
		return err
	}
	peer := 1 - m.Rank
	for n := 1; n <= m.Rounds; n++ {
		src, sig, op, value, seen := source.Local(pe), words.At(0), shmem.SignalSet, uint64(n), uint64(n)
		if n%2 == 0 {
			src = make([]byte, size)
			sig, op, value, seen = words.At(1), shmem.SignalAdd, 3, uint64(n/2*3)
		}
		fill(src, seed(m.Rank, peer, n))
		if err := shmem.PutSignal(ctx, pe, block, src, sig, value, op, peer); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		if err := shmem.WaitUntil(ctx, pe, sig, shmem.EQ, seen); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		if err := verify(block.Local(pe), seed(peer, m.Rank, n)); err != nil {
			return fmt.Errorf("block %d: the signal came before the data: %w", n, err)
		}
		if err := shmem.P(ctx, pe, words.At(2), uint64(n), peer); err != nil {
			return err
		}
		if err := shmem.WaitUntil(ctx, pe, words.At(2), shmem.EQ, uint64(n)); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
	}
	return pe.Barrier(ctx)
}

// barrier has every PE put a block to every PE, itself included, check after the barrier what it
// has, and get a block of each PE.
func barrier(ctx context.Context, m *member, pe *shmem.PE) error {
	const size = 9001
	from, err := shmem.Alloc[byte](ctx, pe, size*m.Of) // by sender
	if err != nil {
		return err
	}
	part := func(rank int) shmem.Sym[byte] { return from.Slice(rank*size, (rank+1)*size) }
	for n := range m.Rounds {
		for to := range m.Of {
			if err := shmem.PutNBI(ctx, pe, part(m.Rank), filled(size, seed(m.Rank, to, n)), to); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		got := make([]byte, size)
		for rank := range m.Of {
			if err := verify(part(rank).Local(pe), seed(rank, m.Rank, n)); err != nil {
				return fmt.Errorf("round %d: from PE %d after the barrier: %w", n, rank, err)
			}
			if err := shmem.Get(ctx, pe, got, part(m.Rank), rank); err != nil {
				return err
			}
			if err := verify(got, seed(m.Rank, rank, n)); err != nil {
				return fmt.Errorf("round %d: back from PE %d: %w", n, rank, err)
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}
