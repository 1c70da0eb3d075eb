package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// collectives are the collective calls, by name.
func collectives() map[string]func(context.Context, *shmem.PE) error {
	return map[string]func(context.Context, *shmem.PE) error{
		"barrier": func(ctx context.Context, pe *shmem.PE) error { return pe.Barrier(ctx) },
		"sync":    func(ctx context.Context, pe *shmem.PE) error { return pe.Sync(ctx) },
		"reduce": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Reduce(ctx, pe, make([]int64, 9), make([]int64, 9), shmem.OpSum)
		},
		"broadcast": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Broadcast(ctx, pe, make([]int64, 9), 3)
		},
		"all-gather": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllGather(ctx, pe, make([]int64, 40), make([]int64, 8))
		},
		"all-to-all": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllToAll(ctx, pe, make([]int64, 40), make([]int64, 40))
		},
		"alloc": func(ctx context.Context, pe *shmem.PE) error {
			_, err := shmem.Alloc[byte](ctx, pe, 10)
			return err
		},
	}
}

// patiently calls a function with some time, and with more where it returns an error: on a busy
// machine PEs may not have entered a call in the first. The last error fails the test.
func patiently(t *testing.T, try func(time.Duration) error) {
	t.Helper()
	var err error
	for wait := 20 * time.Millisecond; wait < 10*time.Second; wait *= 5 {
		if err = try(wait); err == nil {
			return
		}
	}
	t.Error(err)
}

// A collective call whose deadline passes names the PEs that have not entered it, on every PE that
// waits, also where it waits for one that waits itself.
func TestStragglersAreNamed(t *testing.T) {
	for name, call := range collectives() {
		for _, late := range []int{2, 3} { // from this PE to PE 3
			t.Run(fmt.Sprint(name, late), func(t *testing.T) {
				t.Parallel()
				who := "PE 3 of 5 has not entered it"
				if late < 3 {
					who = "PEs 2, 3 of 5 have not entered it"
				}
				patiently(t, func(wait time.Duration) error {
					l := newTestbed(t, shape{5, 1, 2}, shmem.Config{})
					l.mayFail = true
					allocate[uint64](l, 1)
					err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
						ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
						defer cancel()
						if late <= pe.Rank() && pe.Rank() <= 3 {
							<-ctx.Done()
							return nil
						}
						err := call(ctx, pe)
						want := "shmem: " + name + ": context deadline exceeded: " + who
						if !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
							return fmt.Errorf("%w, want %s", err, want)
						}
						var named interface{ Late() ([]int, int) }
						if !errors.As(err, &named) {
							return fmt.Errorf("%w does not say which PEs are late", err)
						}
						if pes, size := named.Late(); !slices.Equal(pes, []int{2, 3}[late-2:]) || size != 5 {
							return fmt.Errorf("PEs %v of %d are late, and the error is %w", pes, size, err)
						}
						return nil
					})
					return err
				})
			})
		}
	}
}

// So does Close, and a PE that does not answer is told from one that has not entered the call.
func TestASilentPEIsNamed(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	l.mayFail = true
	ctx, cancel := context.WithTimeout(l.ctx, 50*time.Millisecond)
	defer cancel()
	stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: l.fabric.Device(0), Count: -1})
	defer stall.Remove()
	for err, want := range map[error]string{
		l.world.PEs()[0].Sync(ctx):  "sync: context deadline exceeded: PEs 1, 2 of 3 have not answered",
		l.world.PEs()[1].Close(ctx): "close: context deadline exceeded: PEs 0, 2 of 3 have not entered it",
	} {
		if err == nil || err.Error() != "shmem: "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A PE whose deadline passes after another has given up, and ended, does not name that one.
func TestWhoGaveUpIsNotNamed(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	l.mayFail = true
	wait := func(pe int) string {
		ctx, cancel := context.WithTimeout(l.ctx, 20*time.Millisecond)
		defer cancel()
		return fmt.Sprint(l.world.PEs()[pe].Sync(ctx))
	}
	_ = wait(0)
	stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: l.fabric.Device(1), Count: -1,
		Match: func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpRDMARead }})
	defer stall.Remove()
	if err := wait(1); err != "shmem: sync: context deadline exceeded: PE 2 of 3 has not answered" {
		t.Error(err)
	}
}
