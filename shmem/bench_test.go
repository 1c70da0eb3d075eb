package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// lone makes two PEs for a benchmark, which drives the first: the operations are one-sided.
func lone(b *testing.B, nics, qps int) (*shmem.PE, *shmem.World) {
	b.Helper()
	f, err := soft.New(soft.Config{Devices: 2 * nics})
	if err != nil {
		b.Fatal(err)
	}
	var doms []*ibverbx.Domain
	for i := range 2 {
		var devs []verbs.Device
		for j := range nics {
			devs = append(devs, f.Device(i*nics+j))
		}
		d, err := ibverbx.NewDomain(devs...)
		if err != nil {
			b.Fatal(err)
		}
		doms = append(doms, d)
	}
	cfg := shmem.Config{HeapSize: 64 << 20}
	cfg.Transport.QP.QPsPerDevice = qps
	w, err := shmem.NewLocal(context.Background(), cfg, doms...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
		for _, d := range doms {
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		}
		if err := f.Close(); err != nil {
			b.Error(err)
		}
	})
	return w.PEs()[0], w
}

// alloc makes a block on all PEs of a benchmark.
func alloc[T shmem.Element](b *testing.B, w *shmem.World, n int) shmem.Sym[T] {
	b.Helper()
	var s [2]shmem.Sym[T]
	err := w.Run(context.Background(), func(ctx context.Context, pe *shmem.PE) (err error) {
		s[pe.Rank()], err = shmem.Alloc[T](ctx, pe, n)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return s[0]
}

var rails = []struct{ nics, qps int }{{1, 1}, {1, 4}, {2, 2}}

func BenchmarkOps(b *testing.B) {
	ctx := context.Background()
	for _, r := range rails {
		b.Run(fmt.Sprintf("nics=%d/qps=%d", r.nics, r.qps), func(b *testing.B) {
			pe, w := lone(b, r.nics, r.qps)
			s := alloc[uint64](b, w, 1024)
			sig := alloc[uint64](b, w, 1)
			data := make([]uint64, 1)
			ops := []struct {
				name string
				op   func() error
			}{
				{"put8", func() error { return shmem.Put(ctx, pe, s, data, 1) }},
				{"putnbi8", func() error { return shmem.PutNBI(ctx, pe, s, data, 1) }},
				{"p", func() error { return shmem.P(ctx, pe, s, 7, 1) }},
				{"get8", func() error { return shmem.Get(ctx, pe, data, s, 1) }},
				{"getnbi8", func() error { return shmem.GetNBI(ctx, pe, data, s, 1) }},
				{"g", func() error { _, err := shmem.G(ctx, pe, s, 1); return err }},
				{"add", func() error { return shmem.Add(ctx, pe, s, 1, 1) }},
				{"fetchadd", func() error { _, err := shmem.FetchAdd(ctx, pe, s, 1, 1); return err }},
				{"cas", func() error { _, err := shmem.CompareSwap(ctx, pe, s, 1, 1, 1); return err }},
				{"swap", func() error { _, err := shmem.Swap(ctx, pe, s, 1, 1); return err }},
				{"putsignal8", func() error {
					return shmem.PutSignal(ctx, pe, s, data, sig, 1,
						shmem.SignalAdd, 1)
				}},
				{"waituntil-satisfied", func() error { return shmem.WaitUntil(ctx, pe, s, shmem.GE, 0) }},
				{"put8+quiet", func() error {
					if err := shmem.Put(ctx, pe, s, data, 1); err != nil {
						return err
					}
					return pe.Quiet(ctx)
				}},
			}
			for _, o := range ops {
				b.Run(o.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if err := o.op(); err != nil {
							b.Fatal(err)
						}
					}
					if err := pe.Quiet(ctx); err != nil {
						b.Fatal(err)
					}
				})
			}
		})
	}
}

// BenchmarkPutLarge finds the length from which registering for the call beats copying.
func BenchmarkPutLarge(b *testing.B) {
	ctx := context.Background()
	for _, size := range []int{8 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20} {
		for _, how := range []string{"copied", "registered", "heap"} {
			b.Run(fmt.Sprintf("%s/%d", how, size), func(b *testing.B) {
				pe, w := lone(b, 1, 4)
				benchLarge(ctx, b, pe, w, how, size)
			})
		}
	}
}

func benchLarge(ctx context.Context, b *testing.B, pe *shmem.PE, w *shmem.World, how string, size int) {
	s := alloc[byte](b, w, size)
	src := make([]byte, size)
	switch how {
	case "copied":
		shmem.SetRegisterFrom(pe, -1)
	case "registered":
		shmem.SetRegisterFrom(pe, 1)
	case "heap":
		src = s.Local(pe)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := shmem.Put(ctx, pe, s, src, 1); err != nil {
			b.Fatal(err)
		}
	}
	if err := pe.Quiet(ctx); err != nil {
		b.Fatal(err)
	}
}

// collectiveBench makes a world of n PEs in this process for a benchmark.
func collectiveBench(b *testing.B, provider string, n int) *shmem.World {
	b.Helper()
	var device func(i int) verbs.Device
	var closeNICs func() error
	switch provider {
	case "soft":
		f, err := soft.New(soft.Config{Devices: n})
		if err != nil {
			b.Fatal(err)
		}
		device, closeNICs = func(i int) verbs.Device { return f.Device(i) }, f.Close
	case "shm":
		f, err := shm.Open(shm.Config{Devices: n})
		if err != nil {
			b.Fatal(err)
		}
		device, closeNICs = func(i int) verbs.Device { return f.Device(i) }, f.Close
	}
	doms := make([]*ibverbx.Domain, n)
	for i := range doms {
		var err error
		if doms[i], err = ibverbx.NewDomain(device(i)); err != nil {
			b.Fatal(err)
		}
	}
	w, err := shmem.NewLocal(context.Background(), shmem.Config{HeapSize: 1 << 16}, doms...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		errs := []error{w.Close(context.Background())}
		for _, d := range doms {
			errs = append(errs, d.Close())
		}
		if err := errors.Join(append(errs, closeNICs())...); err != nil {
			b.Error(err)
		}
	})
	return w
}

func BenchmarkCollectives(b *testing.B) {
	type call func(ctx context.Context, pe *shmem.PE, v, all []int64) error
	calls := []struct {
		name string
		call call
		n    int // elements
	}{
		{"barrier", func(ctx context.Context, pe *shmem.PE, _, _ []int64) error {
			return pe.Barrier(ctx)
		}, 0},
	}
	for _, n := range []int{1, 512, 1 << 17} {
		bytes := fmt.Sprint(8 * n)
		calls = append(calls, []struct {
			name string
			call call
			n    int
		}{
			{"broadcast" + bytes, func(ctx context.Context, pe *shmem.PE, v, _ []int64) error {
				return shmem.Broadcast(ctx, pe, v, 0)
			}, n},
			{"reduce" + bytes, func(ctx context.Context, pe *shmem.PE, v, _ []int64) error {
				return shmem.Reduce(ctx, pe, v, v, shmem.OpMax)
			}, n},
			{"allgather" + bytes, func(ctx context.Context, pe *shmem.PE, v, all []int64) error {
				return shmem.AllGather(ctx, pe, all, v)
			}, n},
			{"alltoall" + bytes, func(ctx context.Context, pe *shmem.PE, v, all []int64) error {
				return shmem.AllToAll(ctx, pe, all, v)
			}, n},
		}...)
	}
	for _, provider := range []string{"soft", "shm"} {
		for _, n := range []int{2, 4, 8} {
			for _, c := range calls {
				b.Run(fmt.Sprintf("%s/pes=%d/%s", provider, n, c.name), func(b *testing.B) {
					w := collectiveBench(b, provider, n)
					b.ReportAllocs()
					b.SetBytes(int64(8 * c.n))
					b.ResetTimer()
					err := w.Run(context.Background(), func(ctx context.Context, pe *shmem.PE) error {
						v, all := make([]int64, c.n), make([]int64, c.n*n)
						if strings.HasPrefix(c.name, "alltoall") {
							v = make([]int64, c.n*n)
						}
						for range b.N {
							if err := c.call(ctx, pe, v, all); err != nil {
								return err
							}
						}
						return nil
					})
					b.StopTimer()
					if err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}
