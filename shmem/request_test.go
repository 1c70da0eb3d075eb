package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/shmem"
)

// starts begins a call of every kind on a team, and returns the requests with what each must have
// written.
func starts(on *shmem.Team, n int) (reqs []*shmem.Request, check func() error, err error) {
	me, size := on.Rank(), on.Size()
	var checks []func() error
	add := func(name string, dst []int32, want func(i int) int) func(*shmem.Request, error) {
		return func(r *shmem.Request, e error) {
			if e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
				return
			}
			reqs = append(reqs, r)
			checks = append(checks, func() error {
				for i, v := range dst {
					if v != int32(want(i)) {
						return wrong("%s: rank %d: element %d is %d, want %d", name, me, i, v, want(i))
					}
				}
				return nil
			})
		}
	}
	vector := func(n int) []int32 { return make([]int32, n) }
	src := vector(n)
	for i := range src {
		src[i] = int32(1000*me + i)
	}
	all := vector(n * size)
	for i := range all {
		all[i] = int32(1000*me + i)
	}
	sum := func(ranks, i int) int { return 1000*(ranks*(ranks-1)/2) + ranks*i }
	plus := func(a, b int32) int32 { return a + b }
	last := size - 1
	nothing := func(int) int { return 0 }

	buf := slices.Clone(src)
	add("broadcast", buf, func(i int) int { return 1000*last + i })(shmem.StartBroadcast(on, buf, last))
	dst := vector(n)
	add("reduce", dst, func(i int) int { return sum(size, i) })(shmem.StartReduce(on, dst, src, shmem.OpSum))
	dst = vector(n)
	add("reduce func", dst, func(i int) int { return sum(size, i) })(
		shmem.StartReduceFunc(on, dst, src, plus))
	dst = slices.Clone(src)
	add("scan", dst, func(i int) int { return sum(me+1, i) })(shmem.StartScan(on, dst, dst, shmem.OpSum))
	dst = vector(n)
	add("scan func", dst, func(i int) int { return sum(me+1, i) })(shmem.StartScanFunc(on, dst, src, plus))
	dst = vector(n)
	add("reduce-scatter", dst, func(i int) int { return sum(size, me*n+i) })(
		shmem.StartReduceScatter(on, dst, all, shmem.OpSum))
	dst = vector(n)
	add("reduce-scatter func", dst, func(i int) int { return sum(size, me*n+i) })(
		shmem.StartReduceScatterFunc(on, dst, all, plus))
	dst = vector(n * size)
	gathered := func(i int) int { return 1000*(i/n) + i%n }
	add("all-gather", dst, gathered)(shmem.StartAllGather(on, dst, src))
	if me != last {
		dst = nil
	}
	dst = slices.Clone(dst)
	add("gather", dst, gathered)(shmem.StartGather(on, dst, src, last))
	dst = vector(n)
	add("scatter", dst, func(i int) int { return me*n + i })(shmem.StartScatter(on, dst, all, 0))
	dst = vector(n * size)
	add("all-to-all", dst, func(i int) int { return 1000*(i/n) + me*n + i%n })(
		shmem.StartAllToAll(on, dst, all))
	add("sync", nil, nothing)(on.StartSync())

	counts, own := make([]int, size), make([]int, size)
	// Rank i has i%3*n elements, and sends as many to each.
	var places []int // of each element of all parts, 1000 times the rank, and the index
	for i := range counts {
		counts[i], own[i] = i%3*n, me%3*n
		for k := range counts[i] {
			places = append(places, 1000*i+k)
		}
	}
	long := make([]int32, 3*n)
	for i := range long {
		long[i] = int32(1000*me + i)
	}
	mine := long[:counts[me]]
	place := func(i int) int { return places[i] }
	dst = vector(len(places))
	add("all-gather v", dst, place)(shmem.StartAllGatherV(on, dst, counts, mine))
	dst, some := vector(len(places)), counts
	if me != 0 {
		dst, some = nil, nil
	}
	add("gather v", dst, place)(shmem.StartGatherV(on, dst, some, mine, 0))
	off := 0
	for _, k := range counts[:me] {
		off += k
	}
	dst = vector(len(mine))
	add("scatter v", dst, func(i int) int { return off + i })(shmem.StartScatterV(on, dst, all[:len(places)],
		counts, 0))
	dst = vector(len(places))
	each := make([]int32, size*counts[me])
	for i := range each {
		each[i] = int32(1000*me + i%max(counts[me], 1))
	}
	add("all-to-all v", dst, place)(shmem.StartAllToAllV(on, dst, counts, each, own))
	return reqs, func() (err error) {
		for _, c := range checks {
			err = errors.Join(err, c())
		}
		return err
	}, err
}

// Every call can be started, all of them at once, and their ends be waited for in any order.
func TestStartedCalls(t *testing.T) {
	for _, s := range []shape{{1, 1, 1}, {3, 2, 1}, {5, 1, 2}} {
		for _, n := range []int{1, 700, 80000} { // of 4 bytes: within one slot, and in several pieces
			t.Run(fmt.Sprintf("%v/n=%d", s, n), func(t *testing.T) {
				if n > 700 && testing.Short() {
					n = 20000
				}
				l := newTestbed(t, s, shmem.Config{})
				l.run(func(ctx context.Context, pe *shmem.PE) error {
					reqs, check, err := starts(pe.Team(), n)
					if err != nil {
						return err
					}
					v := []int64{int64(pe.Rank())} // a call that waits goes with those that were started
					err = shmem.Reduce(ctx, pe, v, v, shmem.OpMax)
					if err != nil || v[0] != int64(pe.Size()-1) {
						return wrong("maximum of the ranks: %v, %w", v, err)
					}
					for i := range reqs {
						if pe.Rank()%2 == 0 {
							i = len(reqs) - 1 - i
						}
						if err := reqs[i].Wait(ctx); err != nil || !reqs[i].Done() || reqs[i].Err() != nil {
							return wrong("request %d: %w", i, err)
						}
					}
					return check()
				})
			})
		}
	}
}

// A call that waits for a PE that is late does not hold up one that needs nothing of it, also if
// both are of the same PE. It names the PE, and goes on.
func TestStartedCallsEndInAnyOrder(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 2}, shmem.Config{})
	second := make(chan struct{}, 2) // of each PE that waits in vain
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		left, err := pe.Team().Split(ctx, min(pe.Rank(), 1), 0) // PE 0 alone, PEs 1 and 2
		if err != nil {
			return err
		}
		if pe.Rank() == 0 {
			for range 2 {
				select {
				case <-second:
				case <-ctx.Done():
				}
			}
			return pe.Team().Sync(ctx)
		}
		first, err := pe.Team().StartSync()
		if err != nil {
			return err
		}
		v := []int64{1}
		next, err := shmem.StartReduce(left, v, v, shmem.OpSum)
		if err != nil {
			return err
		}
		if err := next.Wait(ctx); err != nil || v[0] != 2 {
			return wrong("sum %v: %w", v, err)
		}
		if first.Done() {
			return wrong("a barrier is over that PE 0 has not entered")
		}
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		want := `PE 0 of 3 has not entered sync 2 of team "world"`
		if err := first.Wait(soon); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), want) {
			return wrong("%w, want %q", err, want)
		}
		second <- struct{}{}
		return first.Wait(ctx)
	})
}

// Started calls go on in PE.Progress, and with Config.Background without any call of the program.
func TestWhoDrivesStartedCalls(t *testing.T) {
	for _, background := range []bool{false, true} {
		t.Run(fmt.Sprint("background=", background), func(t *testing.T) {
			l := newTestbed(t, shape{2, 1, 2}, shmem.Config{Background: background})
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				v := make([]int32, 300000)
				for i := range v {
					v[i] = int32(i)
				}
				r, err := shmem.StartReduce(pe, v, v, shmem.OpSum)
				if err != nil {
					return err
				}
				for !r.Done() {
					if !background {
						pe.Progress()
					}
					if ctx.Err() != nil {
						return wrong("it does not end")
					}
					time.Sleep(time.Microsecond)
				}
				if v[299999] != 2*299999 {
					return wrong("sum %d", v[299999])
				}
				return r.Err()
			})
		})
	}
}

// The call after the 31st that is under way is refused and can be made later. Close ends those that
// are under way, and says so.
func TestStartedCallsHaveBounds(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	pe, v := l.world.PEs()[0], make([]int64, 1)
	var reqs []*shmem.Request
	for range 31 {
		r, err := shmem.StartReduce(pe, v, v, shmem.OpMax)
		if err != nil {
			t.Fatal(err)
		}
		reqs = append(reqs, r)
	}
	if _, err := shmem.StartReduce(pe, v, v, shmem.OpMax); !errors.Is(err, shmem.ErrBusy) {
		t.Errorf("call 32: %v", err)
	}
	l.mayFail = true // PE 1 has made none of the calls
	if err := l.world.Close(l.ctx); !errors.Is(err, shmem.ErrMismatch) {
		t.Errorf("close: %v", err)
	}
	l.world = nil
	for i, r := range reqs {
		if !r.Done() || !errors.Is(r.Err(), os.ErrClosed) {
			t.Fatalf("request %d: done %v, %v", i, r.Done(), r.Err())
		}
	}
}

// A mismatch ends all calls under way, those of other teams, too.
func TestAMismatchEndsStartedCalls(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.mayFail = true
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		all, err := pe.Team().Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		v := make([]int64, 2)
		r, err := shmem.StartReduce(pe, v[:1+pe.Rank()], v[:1+pe.Rank()], shmem.OpSum)
		if err != nil {
			return err
		}
		next, err := all.StartSync()
		if err != nil && !errors.Is(err, shmem.ErrMismatch) {
			return err
		}
		if err := r.Wait(ctx); !errors.Is(err, shmem.ErrMismatch) {
			return wrong("vectors of different lengths: %w", err)
		}
		if next != nil && !errors.Is(next.Wait(ctx), shmem.ErrMismatch) {
			return wrong("the call behind it: %w", next.Err())
		}
		return nil
	})
}

// Starting a call allocates nothing once its request is freed.
func TestStartedCallsDoNotAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		v := make([]int64, 100)
		n := testing.AllocsPerRun(100, func() {
			r, err := shmem.StartReduce(pe, v, v, shmem.OpMax)
			if err == nil {
				err = r.Wait(ctx)
			}
			if err != nil {
				t.Error(err)
			}
			r.Free()
		})
		if n >= 1 {
			return wrong("%v allocations", n)
		}
		return nil
	})
}

// What is wrong with the lengths of parts is refused, and what two PEs say of each other compared.
func TestUnequalLengths(t *testing.T) {
	type ctx = context.Context
	for name, c := range map[string]struct {
		says string
		call func(ctx ctx, pe *shmem.PE, v []int32) error
	}{
		"too few": {"counts has 1 lengths: each of 2 PEs", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.AllGatherV(ctx, pe, v[:4], []int{4}, v[8:])
		}},
		"negative": {"counts: part 1 has -1 elements", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.ScatterV(ctx, pe, v[:4], v[4:], []int{4, -1}, pe.Rank())
		}},
		"sum": {"counts has 5 elements in all, the slice 4", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.AllGatherV(ctx, pe, v[:4], []int{4, 1}, v[8:])
		}},
		"own": {"elements: its slice has 3", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.GatherV(ctx, pe, v[:8], []int{4, 4}, v[8:11], pe.Rank())
		}},
		"itself": {"sends itself", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.AllToAllV(ctx, pe, v[:3], []int{1, 2}, v[8:11], []int{2, 1})
		}},
		"overlap": {"dst and src overlap", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.AllToAllV(ctx, pe, v[:4], []int{2, 2}, v[3:7], []int{2, 2})
		}},
		"counts": {"called all-gather of unequal parts", func(ctx ctx, pe *shmem.PE, v []int32) error {
			return shmem.AllGatherV(ctx, pe, v[:8], []int{4 + pe.Rank(), 4 - pe.Rank()}, v[8:][:4-pe.Rank()])
		}},
		"length": {"called gather of unequal parts", func(ctx ctx, pe *shmem.PE, v []int32) error {
			if pe.Rank() == 1 {
				return errors.Join(shmem.GatherV(ctx, pe, nil, nil, v[:3], 0), pe.Sync(ctx))
			}
			return shmem.GatherV(ctx, pe, v[:8], []int{4, 4}, v[8:], 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
			l.mayFail = true
			err := l.world.Run(l.ctx, func(ctx ctx, pe *shmem.PE) error {
				return c.call(ctx, pe, make([]int32, 12))
			})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
