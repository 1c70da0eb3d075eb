package processes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/transport"
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

// A PE that sees a signal sees all data that was put before it, over any number of rails, whether
// the signal is set or added to.
func TestShmemPutWithSignal(t *testing.T) {
	eachShape(t, team{program: "signal", members: 2, rounds: 30})
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

// A PE is killed while some others are in a barrier, one waits for a signal, and one puts to it.
// Every call returns an error that names the dead PE. Live PEs still put to each other, and they
// make a smaller team.
func TestShmemPEKilled(t *testing.T) {
	t.Parallel() // as its shapes do
	eachShape(t, team{program: "shmem killed", members: 4, victim: true})
}

func shmemKilled(ctx context.Context, m *member, pe *shmem.PE) error {
	words, err := shmem.Alloc[uint64](ctx, pe, 8)
	if err != nil {
		return err
	}
	if m.Rank == victim {
		// One that is behind may still be in Alloc.
		if err := shmem.WaitUntil(ctx, pe, words.At(6), shmem.EQ, uint64(pe.Size()-1)); err != nil {
			return err
		}
		m.die()
		for { // until it is killed
			if err := shmem.Inc(ctx, pe, words.At(7), 0); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	_ = shmem.Inc(ctx, pe, words.At(6), victim) // which may be killed before it has answered
	switch m.Rank {
	case 0:
		err = pe.Barrier(ctx)
	case 1:
		err = shmem.WaitUntil(ctx, pe, words.At(0), shmem.NE, 0)
	default:
		for err == nil {
			if err = shmem.P(ctx, pe, words.At(1), 1, victim); err == nil {
				err = pe.Quiet(ctx)
			}
		}
	}
	if err := names(err, victim); err != nil {
		return fmt.Errorf("after %v: %w", time.Since(began), err)
	}
	if err := names(pe.Barrier(ctx), victim); err != nil {
		return fmt.Errorf("a barrier afterwards: %w", err)
	}
	if err := goOn(ctx, pe); err != nil {
		return fmt.Errorf("without PE %d: %w", victim, err)
	}
	// Live PEs go on.
	next := map[int]int{0: 1, 1: 3, 3: 0}[m.Rank]
	if err := shmem.P(ctx, pe, words.At(2), uint64(m.Rank+1), next); err != nil {
		return fmt.Errorf("to PE %d, which lives: %w", next, err)
	}
	pe.Fence() // over two NICs the fetch may overtake the put
	got, err := shmem.Fetch(ctx, pe, words.At(2), next)
	if err != nil || got != uint64(m.Rank+1) {
		return fmt.Errorf("back from PE %d, which lives: %d, %w", next, got, err)
	}
	_, err = m.gatherIdle(ctx, nil)
	return err
}

// goOn computes in the team of those that are left.
func goOn(ctx context.Context, pe *shmem.PE) error {
	left, err := pe.Team().Shrink(ctx)
	if err != nil {
		return err
	}
	v := make([]uint64, 1<<17)
	for i := range v {
		v[i] = uint64(pe.Rank() + i)
	}
	if err := shmem.Reduce(ctx, left, v, v, shmem.OpSum); err != nil {
		return err
	}
	n := pe.Size()
	for i, sum := range v {
		if want := uint64(n*(n-1)/2 - victim + (n-1)*i); sum != want {
			return fmt.Errorf("sum %d of %v is %d, want %d", i, left, sum, want)
		}
	}
	return nil
}

// names checks that the error of a call names the dead PE.
func names(err error, rank int) error {
	var gone *shmem.PEError
	if !errors.As(err, &gone) || gone.PE != rank || !errors.Is(err, transport.ErrPeerFailed) ||
		!strings.Contains(err.Error(), fmt.Sprintf("PE %d", rank)) {
		return fmt.Errorf("got %w, want a PEError of PE %d that is ErrPeerFailed", err, rank)
	}
	return nil
}
