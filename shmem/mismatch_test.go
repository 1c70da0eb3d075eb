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
		{"element sizes", narrow, broadcast(0, 4), []string{"8 elements of int32", "not the same before"}},
		{"lengths", broadcast(0, 5), broadcast(0, 4),
			[]string{"5 elements of int64", "not the same before"}},
		{"lengths of parts", gather(11), gather(10), []string{"all-gather of 11 elements of int64"}},
		{"nothing and something", gather(0), gather(4), []string{"all-gather of 0 elements of int64"}},
		{"ops", reduce(shmem.OpMin), reduce(shmem.OpSum), []string{"of int64 by min"}},
		{"types of a reduce", callsOf[float32]("reduce"), callsOf[int32]("reduce"),
			[]string{"reduce of 8 elements of float32 by sum"}},
		{"signs of a reduce", callsOf[uint64]("reduce"), callsOf[int64]("reduce"),
			[]string{"reduce of 8 elements of uint64 by sum"}},
		{"halves of a reduce", callsOf[shmem.Float16]("reduce"), callsOf[shmem.BFloat16]("reduce"),
			[]string{"reduce of 8 elements of Float16 by sum"}},
		{"types of a broadcast", callsOf[float64]("broadcast"), callsOf[int64]("broadcast"),
			[]string{"broadcast of 8 elements of float64 from PE 0", "not the same before"}},
		{"types of an all-gather", callsOf[shmem.BFloat16]("all-gather"), callsOf[uint16]("all-gather"),
			[]string{"all-gather of 8 elements of BFloat16"}},
		{"types of an all-to-all", callsOf[int8]("all-to-all"), callsOf[byte]("all-to-all"),
			[]string{"elements of int8"}},
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

// callsOf is a collective call with eight elements of a type.
func callsOf[T shmem.Element](name string) func(context.Context, *shmem.PE) error {
	return func(ctx context.Context, pe *shmem.PE) error {
		v, all := make([]T, 8), make([]T, 8*pe.Size())
		switch name {
		case "reduce":
			return shmem.Reduce(ctx, pe, v, v, shmem.OpSum)
		case "broadcast":
			return shmem.Broadcast(ctx, pe, v, 0)
		case "all-gather":
			return shmem.AllGather(ctx, pe, all, v)
		}
		return shmem.AllToAll(ctx, pe, all, make([]T, len(all)))
	}
}

// Close is compared like a barrier: a PE that closes while the others make another call, or that
// has made other calls before, gets ErrMismatch, and so do they. Afterwards they can close.
func TestCloseDoesNotMatch(t *testing.T) {
	calls := collectives()
	calls["close"] = func(ctx context.Context, pe *shmem.PE) error { // after a call that needs nobody
		if err := shmem.Broadcast(ctx, pe, make([]int64, 0), pe.Rank()); err != nil {
			return err
		}
		return pe.Close(ctx)
	}
	for name, call := range calls {
		for _, pes := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s/pes=%d", name, pes), func(t *testing.T) {
				l := newTestbed(t, shape{pes, 1, 2}, shmem.Config{})
				l.mayFail = true
				ctx, cancel := context.WithTimeout(l.ctx, 10*time.Second)
				defer cancel()
				errs := make([]error, pes)
				l.run(func(_ context.Context, pe *shmem.PE) error {
					if pe.Rank() == 0 {
						errs[0] = pe.Close(ctx)
						return nil
					}
					err := call(ctx, pe)
					if err == nil {
						err = pe.Barrier(ctx)
					}
					errs[pe.Rank()] = err
					return nil
				})
				for i, err := range errs {
					if !errors.Is(err, shmem.ErrMismatch) {
						t.Errorf("PE %d: %v, want a mismatch", i, err)
					}
				}
				if said := fmt.Sprint(errs); !strings.Contains(said, "called close") {
					t.Errorf("no error says that a PE called close: %s", said)
				}
				l.run(func(_ context.Context, pe *shmem.PE) error {
					if err := pe.Close(ctx); err != nil && !errors.Is(err, shmem.ErrClosed) {
						return wrong("PE %d: close afterwards: %v", pe.Rank(), err)
					}
					return nil
				})
			})
		}
	}
}

// A PE whose program has not met a mismatch yet learns of it in Close, which waits for nobody.
func TestCloseSaysWhatNoCallHasSaid(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	l.mayFail = true // PE 0 has closed
	pes := l.world.PEs()
	if err := shmem.Broadcast(l.ctx, pes[1], make([]int64, 1), 3); !errors.Is(err, verbs.ErrInvalid) {
		t.Fatal(err)
	}
	want := "PE 1 called broadcast with wrong arguments"
	if err := pes[0].Close(l.ctx); !errors.Is(err, shmem.ErrMismatch) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("close: %v, want that %s", err, want)
	}
	if err := pes[1].Close(l.ctx); err != nil {
		t.Errorf("close of the PE that was refused: %v", err)
	}
	if err := pes[2].Barrier(l.ctx); !errors.Is(err, shmem.ErrMismatch) {
		t.Errorf("barrier: %v, want a mismatch", err)
	}
	if err := pes[2].Close(l.ctx); err != nil {
		t.Errorf("close after a mismatch: %v", err)
	}
}

// A program that ends because one PE returns an error, while the others wait for it, has no further
// error from Close.
func TestCloseAfterAProgramThatFailed(t *testing.T) {
	for name, call := range collectives() {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{4, 1, 1}, shmem.Config{})
			mine := errors.New("of the program")
			err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
				if pe.Rank() == 2 {
					time.Sleep(3 * time.Millisecond) // the others ask meanwhile in which call it is
					return mine
				}
				return call(ctx, pe)
			})
			if !errors.Is(err, mine) || errors.Is(err, shmem.ErrMismatch) {
				t.Error(err)
			}
		})
	}
}

// PEs whose calls of teams do not match get ErrMismatch like all others. So do those that wait for
// each other in calls of different teams, or in Close.
func TestTeamsDoNotMatch(t *testing.T) {
	type call = func(ctx context.Context, pe *shmem.PE, pairs [2]*shmem.Team) error
	sync := func(ctx context.Context, _ *shmem.PE, pairs [2]*shmem.Team) error { return pairs[0].Sync(ctx) }
	for _, c := range []struct {
		name       string
		odd, other call // of PE 1 and PE 0, which are a team
		says       []string
	}{
		{"calls", func(ctx context.Context, _ *shmem.PE, pairs [2]*shmem.Team) error {
			return shmem.AllGather(ctx, pairs[0], make([]int32, 4), make([]int32, 2))
		}, sync, []string{`barrier of team "world/0"`, `elements of int32 of team "world/0"`}},
		{"twins", func(ctx context.Context, _ *shmem.PE, pairs [2]*shmem.Team) error {
			return pairs[1].Sync(ctx)
		}, sync, []string{"called barrier, but in different teams, or not the same before it"}},
		{"team and all", func(ctx context.Context, pe *shmem.PE, _ [2]*shmem.Team) error {
			return pe.Sync(ctx)
		}, sync, []string{"called barrier, PE 0 barrier of team", `barrier of team "world/0", PE 1 barrier`,
			"but in different teams"}},
		{"close", func(ctx context.Context, pe *shmem.PE, _ [2]*shmem.Team) error { return pe.Close(ctx) },
			sync, []string{`PE 1 called close, PE 0 barrier of team "world/0"`}},
		{"strides", func(ctx context.Context, pe *shmem.PE, _ [2]*shmem.Team) error {
			return errorOf(pe.Team().SplitStrided(ctx, 0, 1, 2))
		}, func(ctx context.Context, pe *shmem.PE, _ [2]*shmem.Team) error {
			return errorOf(pe.Team().SplitStrided(ctx, 0, 2, 2))
		}, []string{"called split strided", "barrier"}},
		{"no such stride", func(ctx context.Context, pe *shmem.PE, _ [2]*shmem.Team) error {
			if err := errorOf(pe.Team().SplitStrided(ctx, 1, 2, 2)); !errors.Is(err, verbs.ErrInvalid) {
				return wrong("%v, want that it is refused", err)
			}
			return pe.Sync(ctx)
		}, sync, []string{"PE 1 called split with wrong arguments"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newTestbed(t, shape{3, 1, 2}, shmem.Config{})
			l.mayFail = true // PE 1 may have closed
			ctx, cancel := context.WithTimeout(l.ctx, 10*time.Second)
			defer cancel()
			var errs [3]error
			l.run(func(_ context.Context, pe *shmem.PE) error {
				var pairs [2]*shmem.Team
				for i := range pairs {
					var err error
					if pairs[i], err = pe.Team().Split(ctx, pe.Rank()/2, 0); err != nil {
						return err
					}
				}
				switch pe.Rank() {
				case 0:
					errs[0] = c.other(ctx, pe, pairs)
				case 1:
					errs[1] = c.odd(ctx, pe, pairs)
				default:
					if c.name == "close" {
						errs[2] = pe.Close(ctx)
						break
					}
					errs[2] = pe.Sync(ctx)
				}
				return nil
			})
			for i, err := range errs {
				if !errors.Is(err, shmem.ErrMismatch) {
					t.Errorf("PE %d: %v, want a mismatch", i, err)
				}
			}
			if said := fmt.Sprint(errs); !slices.ContainsFunc(c.says, func(s string) bool {
				return strings.Contains(said, s)
			}) {
				t.Errorf("%s: want one of %q", said, c.says)
			}
		})
	}
}

// Different arguments of SplitStrided are the difference that its error names, not earlier calls.
func TestStridesDoNotMatch(t *testing.T) {
	for name, c := range map[string]struct {
		odd  func(ctx context.Context, all *shmem.Team) error // of PE 1
		says []string                                         // one of them
	}{
		"stride": {func(ctx context.Context, all *shmem.Team) error {
			return errorOf(all.SplitStrided(ctx, 0, 1, 1))
		}, []string{"PE 1 called split strided, PE 0 split strided with other arguments",
			"PE 0 called split strided, PE 1 split strided with other arguments"}},
		"no stride": {func(ctx context.Context, all *shmem.Team) error {
			return errorOf(all.Split(ctx, 0, 0))
		}, []string{"PE 1 called split, PE 0 split strided\n", "PE 0 called split strided, PE 1 split\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
			var errs [2]error
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				if pe.Rank() == 1 {
					errs[1] = c.odd(ctx, pe.Team())
				} else {
					errs[0] = errorOf(pe.Team().SplitStrided(ctx, 0, 1, 2))
				}
				return nil
			})
			said := fmt.Sprintf("%v\n%v\n", errs[0], errs[1])
			if !slices.ContainsFunc(c.says, func(s string) bool { return strings.Contains(said, s) }) {
				t.Errorf("%swant one of %q", said, c.says)
			}
		})
	}
}

func errorOf[T any](_ T, err error) error { return err }

// oneGivesUp makes a world of three PEs, of which PE 1 has given up in a Sync that the others have
// not entered.
func oneGivesUp(t *testing.T) *testbed {
	l := newTestbed(t, shape{3, 1, 2}, shmem.Config{})
	ended, cancel := context.WithCancel(l.ctx)
	cancel()
	if err := l.world.PEs()[1].Sync(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("sync with a context that has ended: %v", err)
	}
	return l
}

// A PE that has given up in a collective call makes no other: it is refused at once, and the others
// do not wait for it. All can close.
func TestACallAfterOneThatGaveUp(t *testing.T) {
	for name, call := range collectives() {
		t.Run(name, func(t *testing.T) {
			l := oneGivesUp(t)
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				want := "PE 1 gave up in barrier: see its error"
				if pe.Rank() == 1 {
					want = "this PE gave up in an earlier one (shmem: sync: context canceled)"
				} else if err := pe.Sync(ctx); err != nil && !errors.Is(err, shmem.ErrMismatch) {
					return wrong("PE %d: sync: %v", pe.Rank(), err) // it may have got by
				}
				var err error
				for err == nil { // others get by if they need nothing of PE 1
					err = call(ctx, pe)
				}
				if !errors.Is(err, shmem.ErrMismatch) || !strings.Contains(err.Error(), want) {
					return wrong("PE %d: %v, want %q", pe.Rank(), err, want)
				}
				if errors.Is(err, context.Canceled) {
					return wrong("PE %d: %v: its context has not ended", pe.Rank(), err)
				}
				return nil
			})
		})
	}
}

// A Barrier whose context ends in its Quiet has not been entered: the PE may call it again.
func TestABarrierThatWasNotEntered(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 1)
	stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		put := shmem.P(ctx, pe, s, 1, 1)
		if err := pe.Barrier(ended); put != nil || !errors.Is(err, context.Canceled) {
			return wrong("%v, %v", put, err)
		}
		return nil
	})
	stall.Remove()
	l.run(func(ctx context.Context, pe *shmem.PE) error { return pe.Barrier(ctx) })
}

// A PE waits for its puts before a Barrier or Free, and another one, which was refused, closes. The
// first learns that the PEs are out of step, and not that the other has closed.
func TestQuietBeforeACallThatDoesNotMatch(t *testing.T) {
	for name, call := range map[string]func(context.Context, *shmem.PE, shmem.Sym[uint64]) error{
		"barrier": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return pe.Barrier(ctx)
		},
		"free": shmem.Free[uint64],
	} {
		l := newTestbed(t, shape{2, 1, 1}, shmem.Config{Transport: transport.Config{KeepAlive: -1}})
		l.mayFail = true // all have closed
		s := allocate[uint64](l, 3)
		pes := l.world.PEs()
		stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP,
			Match: func(wr *verbs.SendWR) bool { return wr.Bytes() == 24 }})
		quiet := make(chan struct{}, 1)
		l.fabric.Inject(soft.Fault{Kind: soft.Delay, Match: func(wr *verbs.SendWR) bool {
			if wr.Opcode == verbs.OpRDMARead && len(quiet) == 0 {
				quiet <- struct{}{}
			}
			return false
		}})
		for to := range pes {
			if err := shmem.Put(l.ctx, pes[0], s, make([]uint64, 1+2*to), to); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan error)
		go func() { got <- call(l.ctx, pes[0], s) }()
		select {
		case <-quiet: // it flushes its puts to itself, too
		case <-l.ctx.Done():
			t.Fatal("it does not wait for its puts")
		}
		if err := shmem.Broadcast(l.ctx, pes[1], []byte{1}, 2); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(l.ctx)
		cancel()
		if err := pes[1].Close(ended); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		stall.Remove()
		want := "PE 1 called broadcast with wrong arguments"
		if err := <-got; !errors.Is(err, shmem.ErrMismatch) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want that %s", name, err, want)
		}
	}
}

// When a PE gives up in a collective call and closes, the calls of the others end.
func TestCloseAfterACallThatGaveUp(t *testing.T) {
	for name, call := range collectives() {
		t.Run(name, func(t *testing.T) {
			l := oneGivesUp(t)
			l.mayFail = true // all have closed
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if pe.Rank() == 1 {
					return pe.Close(ctx)
				}
				err := pe.Sync(ctx)
				for err == nil { // it may have got by
					err = call(ctx, pe)
				}
				if !errors.Is(err, shmem.ErrMismatch) || !strings.Contains(err.Error(), "PE 1 gave up") {
					return wrong("PE %d: %v, want that PE 1 gave up", pe.Rank(), err)
				}
				return pe.Close(ctx)
			})
		})
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
	v := make([]int64, 1<<18)
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
		l.closesWith("PE 0: shmem: close: collective calls do not match: PE 1 found the mismatch: " +
			"see its error")
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
		"reduce-scatter": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.ReduceScatter(ctx, pe, make([]int64, 9), make([]int64, 9*pe.Size()), shmem.OpSum)
		},
		"broadcast": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Broadcast(ctx, pe, make([]int64, 9), pe.Size()-2)
		},
		"all-gather": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllGather(ctx, pe, make([]int64, 8*pe.Size()), make([]int64, 8))
		},
		"scatter": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.Scatter(ctx, pe, make([]int64, 8), make([]int64, 8*pe.Size()), pe.Size()-2)
		},
		"all-to-all": func(ctx context.Context, pe *shmem.PE) error {
			return shmem.AllToAll(ctx, pe, make([]int64, 8*pe.Size()), make([]int64, 8*pe.Size()))
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
				who := "PE 3 of 5 has not entered " + name
				if late < 3 {
					who = "PEs 2, 3 of 5 have not entered " + name
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
						want := "shmem: " + name + ": context deadline exceeded: " + who +
							` 3 of team "world"`
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
		l.world.PEs()[0].Sync(ctx): "sync: context deadline exceeded: PEs 1, 2 of 3 have not answered",
		l.world.PEs()[1].Close(ctx): `close: context deadline exceeded: PEs 0, 2 of 3 have not entered ` +
			`close 1 of team "world"`,
	} {
		if err == nil || err.Error() != "shmem: "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Nor has a PE entered a call that has gone to Close instead. These PEs look too rarely to compare.
func TestAPEInCloseIsNamed(t *testing.T) {
	t.Parallel() // most of the time it waits
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{Step: time.Hour})
	l.mayFail = true
	ctx, cancel := context.WithCancel(l.ctx)
	closed := make(chan error)
	go func() { closed <- l.world.PEs()[1].Close(ctx) }()
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	err := l.world.PEs()[0].Sync(soon)
	want := `shmem: sync: context deadline exceeded: PE 1 of 2 has not entered sync 1 of team "world"`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	cancel()
	if err := <-closed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Those that have not entered a call of a team are named with the team, by their own numbers.
func TestStragglersOfATeamAreNamed(t *testing.T) {
	t.Parallel() // most of the time it waits
	patiently(t, func(wait time.Duration) error {
		l := newTestbed(t, shape{5, 1, 1}, shmem.Config{})
		l.mayFail = true
		return l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
			defer cancel()
			odd, err := pe.Team().Split(ctx, pe.Rank()%2-1, -pe.Rank())
			if odd == nil || err != nil {
				return err
			}
			if err := odd.Sync(ctx); err != nil {
				return err
			}
			if pe.Rank() == 3 {
				<-ctx.Done()
				return nil
			}
			err = odd.Sync(ctx)
			want := "shmem: sync: context deadline exceeded: PE 3 of 5 has not entered sync 2 of " +
				`team "world/0"`
			if err == nil || err.Error() != want {
				return fmt.Errorf("%w, want %s", err, want)
			}
			return nil
		})
	})
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
