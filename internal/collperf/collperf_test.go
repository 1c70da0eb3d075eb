package collperf_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/collective"
	"ibverbx/internal/collperf"
	"ibverbx/shmem"
	"ibverbx/verbs/soft"
)

// world has n PEs over software NICs run a function.
func world(t *testing.T, n int, run func(ctx context.Context, pe *shmem.PE) error) error {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: n})
	if err != nil {
		t.Fatal(err)
	}
	var domains []*ibverbx.Domain
	for i := range n {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		if err != nil {
			t.Fatal(err)
		}
		domains = append(domains, dom)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := shmem.NewLocal(ctx, shmem.Config{HeapSize: 4096}, domains...)
	if err != nil {
		t.Fatal(err)
	}
	failed := w.Run(ctx, run)
	if failed == nil {
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	return failed
}

// Every operation gives the right result for all sizes, and has the bus bandwidth that nccl-tests
// defines. All PEs report the same.
func TestFigures(t *testing.T) {
	const pes = 4
	for op, bus := range map[collperf.Op]float64{
		"all-reduce": 1.5, "reduce-scatter": 0.75, "all-gather": 0.75, "all-to-all": 0.75, "broadcast": 1,
	} {
		t.Run(string(op), func(t *testing.T) {
			var mu sync.Mutex
			seen := map[collperf.Figure]int{}
			cfg := collperf.Config{Op: op, Sizes: []int{1, 4099, 100000}, Calls: 2}
			err := world(t, pes, func(ctx context.Context, pe *shmem.PE) error {
				return collperf.Run(ctx, pe, cfg, func(f collperf.Figure) error {
					mu.Lock()
					defer mu.Unlock()
					seen[f]++
					return nil
				})
			})
			if err != nil || len(seen) != len(cfg.Sizes) {
				t.Fatalf("%d figures, %v", len(seen), err)
			}
			for f, n := range seen {
				near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*b }
				if n != pes || f.Calls != 2 || f.Bytes%4 != 0 || !near(f.Bus, bus*f.Alg) ||
					!near(f.Alg*1e9*f.Seconds, float64(f.Bytes)) {
					t.Errorf("%d PEs report %+v", n, f)
				}
			}
		})
	}
}

// Without a number of calls the time decides it.
func TestDuration(t *testing.T) {
	cfg := collperf.Config{Op: "broadcast", Sizes: []int{8}, Duration: 5 * time.Millisecond}
	err := world(t, 2, func(ctx context.Context, pe *shmem.PE) error {
		return collperf.Run(ctx, pe, cfg, func(f collperf.Figure) error {
			if f.Calls < 2 {
				t.Errorf("%d calls in %v", f.Calls, cfg.Duration)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// An operation that there is not is refused with the names of those that there are.
func TestUnknownOperation(t *testing.T) {
	err := world(t, 1, func(ctx context.Context, pe *shmem.PE) error {
		return collperf.Run(ctx, pe, collperf.Config{Op: "sort", Sizes: []int{8}}, nil)
	})
	const want = `[all-reduce reduce-scatter all-gather all-to-all broadcast], not "sort"`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	if collperf.Op("sort").Known() || !collperf.Op("all-reduce").Known() {
		t.Error("what is known is wrong")
	}
}

// BenchmarkTCPRing is what shmem is compared with: ranks in a ring of TCP connections, each with a
// goroutine that sends while it receives, and nothing else.
func BenchmarkTCPRing(b *testing.B) {
	const ranks, size = 4, 64 << 20
	var up, down [ranks]net.Conn // to the next rank, and from the one before
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for i := range ranks {
		if up[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
			b.Fatal(err)
		}
		defer up[i].Close()
		if down[(i+1)%ranks], err = l.Accept(); err != nil {
			b.Fatal(err)
		}
		defer down[(i+1)%ranks].Close()
	}
	var vectors [ranks][]float32
	for i := range vectors {
		vectors[i] = make([]float32, size/4)
	}
	gather := func(rank int, block func(int) []float32, first int) error {
		for s := range ranks - 1 {
			if err := exchange(up[rank], down[rank], block(first-s), block(first-s-1)); err != nil {
				return err
			}
		}
		return nil
	}
	reduce := func(rank int, block func(int) []float32) error {
		in := make([]float32, size/4/ranks)
		for s := range ranks - 1 {
			if err := exchange(up[rank], down[rank], block(rank-s), in); err != nil {
				return err
			}
			sum := block(rank - s - 1)
			for i := range sum {
				sum[i] += in[i]
			}
		}
		return gather(rank, block, rank+1)
	}
	for name, call := range map[string]func(rank int, block func(int) []float32) error{
		"all-reduce": reduce,
		"all-gather": func(rank int, block func(int) []float32) error { return gather(rank, block, rank) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			var wg sync.WaitGroup
			for rank, v := range vectors {
				wg.Go(func() {
					block := func(i int) []float32 {
						return v[len(v)/ranks*((i+2*ranks)%ranks):][:len(v)/ranks]
					}
					for range b.N {
						if err := call(rank, block); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// exchange sends one block while it receives another.
func exchange(up, down net.Conn, out, in []float32) error {
	sent := make(chan error)
	go func() {
		_, err := up.Write(collective.Bytes(out))
		sent <- err
	}()
	_, err := io.ReadFull(down, collective.Bytes(in))
	return errors.Join(err, <-sent)
}
