package shmem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ibverbx/shmem"
)

// When one PE's program fails, Run ends the waits of the others, and returns only that error.
func TestRunEndsTheOthers(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	mine := errors.New("out of ideas")
	err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 1 {
			return mine
		}
		return pe.Barrier(ctx)
	})
	if err == nil || err.Error() != "PE 1: out of ideas" || !errors.Is(err, mine) {
		t.Fatal(err)
	}
}

// Run sends what a program has begun when it returns: other PEs may wait for it.
func TestWhatAProgramHasBegunLeaves(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *testbed) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			s, err := shmem.Alloc[uint64](ctx, pe, 4096)
			if err != nil {
				return err
			}
			sig, err := shmem.Alloc[uint64](ctx, pe, 1)
			if err != nil {
				return err
			}
			if pe.Rank() == 0 {
				return shmem.PutSignal(ctx, pe, s, make([]uint64, 4096), sig, 1, shmem.SignalSet, 1)
			}
			return shmem.WaitUntil(ctx, pe, sig, shmem.EQ, 1)
		})
	})
}

// PEs may share a domain, and so the NICs.
func TestPEsShareADomain(t *testing.T) {
	l := newTestbed(t, shape{1, 2, 2}, shmem.Config{})
	world, err := shmem.NewLocal(l.ctx, shmem.Config{HeapSize: 1 << 16}, l.doms[0], l.doms[0], l.doms[0])
	if err != nil {
		t.Fatal(err)
	}
	err = world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		s, err := shmem.Alloc[int64](ctx, pe, 1)
		if err != nil {
			return err
		}
		for to := range 3 {
			if err := shmem.Add(ctx, pe, s, int64(pe.Rank()+1), to); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		if v := shmem.Load(pe, s); v != 6 {
			t.Errorf("PE %d has %d, want 6", pe.Rank(), v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := world.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
}

// TestNoCauseIsLost: an error that has a cause of its own is kept, although it says as well that
// the context has ended; so is that of the PE which failed first, whatever it is.
func TestNoCauseIsLost(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	mine, other := errors.New("out of ideas"), errors.New("out of paper")
	afterwards := func(ctx context.Context, err error) error {
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}
	for name, c := range map[string]struct {
		program func(ctx context.Context, pe *shmem.PE) error
		want    string
	}{
		"a cause beside the context's end": {func(ctx context.Context, pe *shmem.PE) error {
			switch pe.Rank() {
			case 0:
				return other
			case 1:
				return afterwards(ctx, mine)
			}
			return afterwards(ctx, nil)
		}, "PE 0: out of paper\nPE 1: out of ideas\ncontext canceled"},
		"a context of its own": {func(ctx context.Context, pe *shmem.PE) error {
			switch pe.Rank() {
			case 0:
				return afterwards(ctx, mine)
			case 1:
				own, cancel := context.WithCancel(ctx)
				cancel()
				return own.Err()
			}
			return pe.Sync(ctx)
		}, "PE 0: out of ideas\ncontext canceled\nPE 1: context canceled"},
		"all by the context": {func(ctx context.Context, pe *shmem.PE) error {
			if pe.Rank() == 0 {
				return context.Canceled
			}
			return afterwards(ctx, nil)
		}, "PE 0: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := l.world.Run(l.ctx, c.program); err == nil || err.Error() != c.want {
				t.Errorf("%v: want %s", err, c.want)
			}
		})
	}
}

// TestRefusedCardIsNotLost: a PE that cannot connect reports why, although the others, which have
// noticed the same, end its exchange.
func TestRefusedCardIsNotLost(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	ctx, cancel := context.WithCancel(l.ctx)
	calls := 0
	exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
		if calls++; calls == 1 {
			return [][]byte{mine, []byte(`{"version":9}`)}, nil
		}
		cancel()
		return nil, ctx.Err()
	}
	_, err := shmem.Join(ctx, l.doms[0], shmem.Config{Size: 2, HeapSize: 8192, Exchange: exchange})
	if err == nil || !strings.Contains(err.Error(), "version 9") || shmem.OnlyCanceled(err) {
		t.Error(err)
	}
}
