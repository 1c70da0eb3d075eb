package shmem_test

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
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// together makes a call on every PE and returns the errors. Where the call ends well, because it
// needs nothing of the others, a barrier must fail.
func together(t *testing.T, pes int, call func(ctx context.Context, pe *shmem.PE) error) []error {
	t.Helper()
	l := newTestbed(t, shape{pes, 1, 2}, shmem.Config{})
	ctx, cancel := context.WithTimeout(l.ctx, 10*time.Second)
	defer cancel()
	errs := make([]error, pes)
	l.run(func(_ context.Context, pe *shmem.PE) error {
		err := call(ctx, pe)
		if err == nil {
			err = pe.Barrier(ctx)
		}
		errs[pe.Rank()] = err
		return nil
	})
	return errs
}

// PEs whose calls do not match all get ErrMismatch, whatever differs, and whichever waits for the
// other. One error says which PE called what.
func TestCallsThatDoNotMatch(t *testing.T) {
	reduce := func(op shmem.ReduceOp) func(context.Context, *shmem.PE) error {
		return func(ctx context.Context, pe *shmem.PE) error {
			v := make([]int64, 3)
			return shmem.Reduce(ctx, pe, v, v, op)
		}
	}
	const last = -1
	broadcast := func(root, n int) func(context.Context, *shmem.PE) error {
		return func(ctx context.Context, pe *shmem.PE) error {
			if root == last {
				return shmem.Broadcast(ctx, pe, make([]int64, n), pe.Size()-1)
			}
			return shmem.Broadcast(ctx, pe, make([]int64, n), root)
		}
	}
	narrow := func(ctx context.Context, pe *shmem.PE) error {
		return shmem.Broadcast(ctx, pe, make([]int32, 8), 0)
	}
	byFunc := func(ctx context.Context, pe *shmem.PE) error {
		v := make([]int64, 3)
		return shmem.ReduceFunc(ctx, pe, v, v, func(a, b int64) int64 { return a + b })
	}
	alloc := func(ctx context.Context, pe *shmem.PE) error {
		_, err := shmem.Alloc[byte](ctx, pe, 10)
		return err
	}
	gather := func(n int) func(context.Context, *shmem.PE) error {
		return func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllGather(ctx, pe, make([]int64, n*pe.Size()), make([]int64, n))
		}
	}
	barrier := func(ctx context.Context, pe *shmem.PE) error { return pe.Barrier(ctx) }
	nothing := func(context.Context, *shmem.PE) error { return nil }
	for _, c := range []struct {
		name   string
		odd    func(ctx context.Context, pe *shmem.PE) error // of the last PE
		others func(ctx context.Context, pe *shmem.PE) error
		says   []string // any of them; finders differ
	}{
		{"roots, each itself", broadcast(last, 4), broadcast(0, 4),
			[]string{"from PE", "not the same before"}},
		{"roots, each another", broadcast(0, 4), broadcast(last, 4),
			[]string{"from PE", "not the same before"}},
		{"element sizes", narrow, broadcast(0, 4), []string{"8 elements of 4 bytes", "not the same before"}},
		{"lengths", broadcast(0, 5), broadcast(0, 4),
			[]string{"5 elements of 8 bytes", "not the same before"}},
		{"lengths of parts", gather(11), gather(10), []string{"all-gather of 11 elements of 8 bytes"}},
		{"nothing and something", gather(0), gather(4), []string{"all-gather of 0 elements of 8 bytes"}},
		{"ops", reduce(shmem.OpMin), reduce(shmem.OpSum), []string{"of 8 bytes by min"}},
		{"op and function", byFunc, reduce(shmem.OpSum), []string{"by a function"}},
		{"barrier and reduce", barrier, reduce(shmem.OpSum), []string{"barrier"}},
		{"reduce and barrier", reduce(shmem.OpSum), barrier, []string{"barrier"}},
		{"alloc and barrier", alloc, barrier, []string{"alloc"}},
		{"barrier and alloc", barrier, alloc, []string{"alloc"}},
		{"one call less", nothing, broadcast(0, 4), []string{"barrier", "not the same before"}},
	} {
		for _, pes := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s/pes=%d", c.name, pes), func(t *testing.T) {
				errs := together(t, pes, func(ctx context.Context, pe *shmem.PE) error {
					call := c.others
					if pe.Rank() == pes-1 {
						call = c.odd
					}
					return call(ctx, pe)
				})
				said := false
				for i, err := range errs {
					if !errors.Is(err, shmem.ErrMismatch) {
						t.Errorf("PE %d: %v, want a mismatch", i, err)
						continue
					}
					for _, s := range c.says {
						said = said || strings.Contains(err.Error(), s)
					}
				}
				if !said {
					t.Errorf("no error says what differs: %v", errs)
				}
			})
		}
	}
}

// The PE that finds a mismatch keeps its own error, also if it finds it on its way to sleep, after
// which its worker asks once more whether to go on waiting.
func TestTheFinderSaysWhatDiffers(t *testing.T) {
	for range 20 {
		l := newTestbed(t, shape{2, 1, 2}, shmem.Config{Step: time.Microsecond,
			Transport: transport.Config{Spin: -1}})
		var errs [2]error
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			shmem.SetSleepStep(time.Microsecond, pe)
			if pe.Rank() == 1 {
				time.Sleep(time.Millisecond) // PE 0 is by then on its way to sleep, or asleep
				errs[1] = pe.Barrier(ctx)
				return nil
			}
			v := make([]int64, 3)
			errs[0] = shmem.Reduce(ctx, pe, v, v, shmem.OpSum)
			return nil
		})
		said := fmt.Sprint(errs)
		if !strings.Contains(said, "called barrier") && !strings.Contains(said, "1 barrier") {
			t.Fatalf("no error says what differs: %v", errs)
		}
	}
}

// Also a PE that waits for room, because it has sent more than the other takes, finds what differs,
// and its own error says so.
func TestWhoWaitsForRoomFindsWhatDiffers(t *testing.T) {
	v := make([]int64, 1<<16)
	for name, call := range map[string]func(ctx context.Context, pe *shmem.PE) error{
		"reduce": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Reduce(ctx, pe, v, v, shmem.OpSum)
		},
		"broadcast": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Broadcast(ctx, pe, v, 1)
		},
		"all-gather": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllGather(ctx, pe, make([]int64, 2*len(v)), v)
		},
	} {
		l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
		pes := l.world.PEs()
		if err := shmem.AskInBarrier(l.ctx, pes[0], 1); err != nil {
			t.Fatal(err)
		}
		want := "PE 0 called barrier, PE 1 " + name
		if err := call(l.ctx, pes[1]); !errors.Is(err, shmem.ErrMismatch) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// When one PE's call is refused for its arguments, the call ends on all: the errors of the others
// say which PE it was, and in which call.
func TestARefusalEndsTheCallOfAll(t *testing.T) {
	v := make([]int64, 24)
	calls := map[string]struct {
		good, bad func(ctx context.Context, pe *shmem.PE) error
	}{
		"all-to-all": {
			func(ctx context.Context, pe *shmem.PE) error {
				return shmem.AllToAll(ctx, pe, make([]int64, 6), make([]int64, 6))
			},
			func(ctx context.Context, pe *shmem.PE) error { return shmem.AllToAll(ctx, pe, v[:4], v[:4]) },
		},
		"all-gather": {
			func(ctx context.Context, pe *shmem.PE) error {
				return shmem.AllGather(ctx, pe, make([]int64, 6), make([]int64, 2))
			},
			func(ctx context.Context, pe *shmem.PE) error { return shmem.AllGather(ctx, pe, v[:5], v[:2]) },
		},
		"broadcast": {
			func(ctx context.Context, pe *shmem.PE) error {
				return shmem.Broadcast(ctx, pe, make([]int64, 6), 2)
			},
			func(ctx context.Context, pe *shmem.PE) error { return shmem.Broadcast(ctx, pe, v, 3) },
		},
		"reduce": {
			func(ctx context.Context, pe *shmem.PE) error {
				return shmem.Reduce(ctx, pe, make([]int64, 6), make([]int64, 6), shmem.OpSum)
			},
			func(ctx context.Context, pe *shmem.PE) error { return shmem.ReduceFunc(ctx, pe, v, v, nil) },
		},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{3, 1, 2}, shmem.Config{})
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if pe.Rank() == 2 {
					if err := c.bad(ctx, pe); !errors.Is(err, verbs.ErrInvalid) ||
						!strings.Contains(err.Error(), name) {
						return wrong("the refused call: %v", err)
					}
				} else if err := c.good(ctx, pe); !errors.Is(err, shmem.ErrMismatch) ||
					!strings.Contains(err.Error(), "PE 2 called "+name+" with wrong arguments") {
					return wrong("PE %d: %v, want that PE 2 was refused", pe.Rank(), err)
				}
				if err := pe.Barrier(ctx); !errors.Is(err, shmem.ErrMismatch) {
					return wrong("PE %d: barrier afterwards: %v", pe.Rank(), err)
				}
				return nil
			})
		})
	}
}

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
	t.Parallel() // most of the time it waits
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
	t.Parallel() // most of the time it waits
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
