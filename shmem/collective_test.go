package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/shmem"
)

// lengths of vectors, in elements: none, one, some, and more than the scratch memory holds.
func lengths() []int { return []int{0, 1, 5, 1000, 100000} }

// worlds are numbers of PEs, powers of two and others.
func worlds() []int { return []int{1, 2, 3, 5, 8} }

func eachWorld(t *testing.T, test func(t *testing.T, l *testbed, pes int)) {
	for _, n := range worlds() {
		t.Run(fmt.Sprint(n), func(t *testing.T) { test(t, newTestbed(t, shape{n, 1, 2}, shmem.Config{}), n) })
	}
}

func value(pe, i, round int) int64 { return int64(pe*1000003 + i*7 + round*31) }

// After Broadcast every PE has the root's data, from every root, back to back.
func TestBroadcast(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for _, n := range lengths() {
				buf := make([]int64, n)
				for root := range pes {
					for i := range buf {
						buf[i] = value(pe.Rank(), i, root)
					}
					if err := shmem.Broadcast(ctx, pe, buf, root); err != nil {
						return err
					}
					for i, v := range buf {
						if v != value(root, i, root) {
							return wrong("root %d: PE %d has %d at %d of %d", root, pe.Rank(), v, i, n)
						}
					}
				}
			}
			return nil
		})
	})
}

// Reduce combines with every operation, and every PE has the result.
func TestReduce(t *testing.T) {
	ops := map[shmem.ReduceOp]func(a, b int64) int64{
		shmem.OpSum:  func(a, b int64) int64 { return a + b },
		shmem.OpProd: func(a, b int64) int64 { return a * b },
		shmem.OpMin:  func(a, b int64) int64 { return min(a, b) },
		shmem.OpMax:  func(a, b int64) int64 { return max(a, b) },
		shmem.OpAnd:  func(a, b int64) int64 { return a & b },
		shmem.OpOr:   func(a, b int64) int64 { return a | b },
		shmem.OpXor:  func(a, b int64) int64 { return a ^ b },
	}
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for _, n := range lengths() {
				src, dst := make([]int64, n), make([]int64, n)
				for i := range src {
					src[i] = value(pe.Rank(), i, 0)
				}
				for op := shmem.OpSum; op <= shmem.OpXor; op++ {
					if n > 1000 && op != shmem.OpSum && op != shmem.OpXor {
						continue
					}
					if err := shmem.Reduce(ctx, pe, dst, src, op); err != nil {
						return err
					}
					for i, v := range dst {
						want := value(0, i, 0)
						for p := 1; p < pes; p++ {
							want = ops[op](want, value(p, i, 0))
						}
						if v != want {
							return wrong("%v: PE %d has %d at %d of %d, want %d", op, pe.Rank(), v, i, n,
								want)
						}
					}
				}
			}
			return nil
		})
	})
}

// Sums of floats have the same bits on every PE, and ReduceFunc takes any function.
func TestReduceFloatsAndFunc(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		results := make([][]float64, pes)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			v := make([]float64, 30)
			for i := range v {
				v[i] = 1 / float64(pe.Rank()*30+i+3)
			}
			results[pe.Rank()] = make([]float64, 30)
			if err := shmem.Reduce(ctx, pe, results[pe.Rank()], v, shmem.OpSum); err != nil {
				return err
			}
			// Composition of functions x -> m*x + c is associative, and the order matters.
			fn := []int64{int64(pe.Rank()%3+2)<<32 | int64(pe.Rank()+1)}
			compose := func(f, g int64) int64 {
				m, c := f>>32, f&0xffffffff
				return (m * (g >> 32) % 9973 << 32) | (c*(g>>32)+g&0xffffffff)%9973
			}
			want := int64(2<<32 | 1)
			for p := 1; p < pes; p++ {
				want = compose(want, int64(p%3+2)<<32|int64(p+1))
			}
			if err := shmem.ReduceFunc(ctx, pe, fn, fn, compose); err != nil || fn[0] != want {
				return wrong("func: %#x, %v; want %#x", fn[0], err, want)
			}
			return nil
		})
		for i := range results {
			if !slices.Equal(results[i], results[0]) {
				t.Fatalf("PE %d and PE 0 have different bits", i)
			}
		}
	})
}

// After AllGather every PE has the data of all, after AllToAll a part of each.
func TestAllGatherAndAllToAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for round, n := range lengths() {
				src, dst := make([]int64, n), make([]int64, n*pes)
				for i := range src {
					src[i] = value(pe.Rank(), i, round)
				}
				if err := shmem.AllGather(ctx, pe, dst, src); err != nil {
					return err
				}
				for i, v := range dst {
					if v != value(i/n, i%n, round) {
						return wrong("all-gather: PE %d has %d at %d of %d", pe.Rank(), v, i, n)
					}
				}
				all := make([]int64, n*pes)
				for i := range all {
					all[i] = value(pe.Rank(), i, round)
				}
				if err := shmem.AllToAll(ctx, pe, dst, all); err != nil {
					return err
				}
				for i, v := range dst {
					if v != value(i/n, pe.Rank()*n+i%n, round) {
						return wrong("all-to-all: PE %d has %d at %d of %d", pe.Rank(), v, i, n)
					}
				}
			}
			return nil
		})
	})
}

// Calls of different kinds follow each other without anything between them, while some PEs are
// slower than others.
func TestCollectivesBackToBack(t *testing.T) {
	t.Run("patient", func(t *testing.T) { collectivesBackToBack(t, shmem.Config{}) })
	// PEs that ask almost at once whether they are in the same call find that they are.
	t.Run("asking", func(t *testing.T) { collectivesBackToBack(t, shmem.Config{Step: time.Nanosecond}) })
}

func collectivesBackToBack(t *testing.T, cfg shmem.Config) {
	l := newTestbed(t, shape{5, 1, 2}, cfg)
	l.lag(5, isWrite)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for round := range 2 * rounds() {
			one, five := []int64{value(pe.Rank(), 0, round)}, make([]int64, 5)
			if err := shmem.AllGather(ctx, pe, five, one); err != nil {
				return err
			}
			if err := shmem.Broadcast(ctx, pe, one, round%5); err != nil {
				return err
			}
			if one[0] != five[round%5] {
				return wrong("round %d: broadcast %d, gathered %v", round, one[0], five)
			}
			sum := []int64{five[pe.Rank()]}
			if err := shmem.Reduce(ctx, pe, sum, sum, shmem.OpSum); err != nil {
				return err
			}
			if want := five[0] + five[1] + five[2] + five[3] + five[4]; sum[0] != want {
				return wrong("round %d: sum %d, want %d", round, sum[0], want)
			}
			s, err := shmem.Alloc[byte](ctx, pe, 1)
			if err != nil {
				return err
			}
			if err := shmem.Free(ctx, pe, s); err != nil {
				return err
			}
		}
		return nil
	})
	if asked := shmem.Asked(l.world.PEs()...); cfg.Step != 0 && asked == 0 {
		t.Error("no PE has asked")
	}
}

// No PE leaves a barrier before all have entered, for any number of PEs, back to back.
func TestBarrierAnyNumberOfPEs(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l := newTestbed(t, shape{n, 1, 1}, shmem.Config{HeapSize: 1 << 12})
			var entered atomic.Int64
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				for round := range int64(2 * rounds()) {
					entered.Add(1)
					if err := pe.Sync(ctx); err != nil {
						return err
					}
					if got := entered.Load(); got < (round+1)*int64(n) {
						return wrong("PE %d left round %d when %d of %d had entered", pe.Rank(), round, got,
							(round+1)*int64(n))
					}
				}
				return nil
			})
		})
	}
}

// After a barrier every PE sees what any PE put before it.
func TestBarrierCompletesPuts(t *testing.T) {
	eachShape(t, 4, func(t *testing.T, l *testbed) {
		s := allocate[uint32](l, 4)
		l.lag(7, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			for round := range uint32(rounds()) {
				for to := range 4 {
					if err := shmem.P(ctx, pe, s.At(pe.Rank()), round*10+uint32(pe.Rank()), to); err != nil {
						return err
					}
				}
				if err := pe.Barrier(ctx); err != nil {
					return err
				}
				for from, v := range s.Local(pe) {
					if v != round*10+uint32(from) {
						return wrong("round %d: PE %d has %d of PE %d", round, pe.Rank(), v, from)
					}
				}
				if err := pe.Barrier(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Collective calls are made by one goroutine at a time: the second is refused without effect.
func TestOneCollectiveCallAtATime(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 1)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- pe.Barrier(ctx) }() // one of them stays: PE 1 does not come
		}
		if err := <-done; !errors.Is(err, shmem.ErrBusy) {
			return wrong("second call: %v, want busy", err)
		}
		v := make([]uint64, 2)
		_, alloc := shmem.Alloc[uint64](ctx, pe, 1)
		for name, err := range map[string]error{
			"alloc": alloc, "free": shmem.Free(ctx, pe, s), "close": pe.Close(ctx),
			"broadcast":  shmem.Broadcast(ctx, pe, v, 0),
			"reduce":     shmem.Reduce(ctx, pe, v, v, shmem.OpSum),
			"all-gather": shmem.AllGather(ctx, pe, v, v[:1]), "all-to-all": shmem.AllToAll(ctx, pe, v, v),
		} {
			if !errors.Is(err, shmem.ErrBusy) {
				return wrong("%s meanwhile: %v, want busy", name, err)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return wrong("first call: %v, want canceled", err)
		}
		return nil
	})
}
