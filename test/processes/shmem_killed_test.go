package processes_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/transport"
)

// A PE is killed while some others are in a barrier, one waits for a signal, and one puts to it.
// Every call returns an error that names the dead PE. Puts between live PEs still work.
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

// names checks that the error of a call names the dead PE.
func names(err error, rank int) error {
	var gone *shmem.PEError
	if !errors.As(err, &gone) || gone.PE != rank || !errors.Is(err, transport.ErrPeerFailed) ||
		!strings.Contains(err.Error(), fmt.Sprintf("PE %d", rank)) {
		return fmt.Errorf("got %w, want a PEError of PE %d that is ErrPeerFailed", err, rank)
	}
	return nil
}
