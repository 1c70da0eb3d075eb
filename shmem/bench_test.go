package shmem_test

import (
	"context"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs"
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

func BenchmarkCollectives(b *testing.B) {
	calls := []struct {
		name string
		call func(ctx context.Context, pe *shmem.PE, v []int64, all []int64) error
	}{
		{"barrier", func(ctx context.Context, pe *shmem.PE, _, _ []int64) error { return pe.Barrier(ctx) }},
		{"sync", func(ctx context.Context, pe *shmem.PE, _, _ []int64) error { return pe.Sync(ctx) }},
		{"broadcast8", func(ctx context.Context, pe *shmem.PE, v, _ []int64) error {
			return shmem.Broadcast(ctx, pe, v[:1], 0)
		}},
		{"reduce8", func(ctx context.Context, pe *shmem.PE, v, _ []int64) error {
			return shmem.Reduce(ctx, pe, v[:1], v[:1], shmem.OpMax)
		}},
		{"reduce1M", func(ctx context.Context, pe *shmem.PE, v, _ []int64) error {
			return shmem.Reduce(ctx, pe, v, v, shmem.OpMax)
		}},
		{"allgather8", func(ctx context.Context, pe *shmem.PE, v, all []int64) error {
			return shmem.AllGather(ctx, pe, all, v[:1])
		}},
	}
	for _, n := range []int{2, 8} {
		for _, c := range calls {
			b.Run(fmt.Sprintf("pes=%d/%s", n, c.name), func(b *testing.B) {
				l := newTestbed(b, shape{n, 1, 1}, shmem.Config{HeapSize: 1 << 16})
				b.ReportAllocs()
				b.ResetTimer()
				l.run(func(ctx context.Context, pe *shmem.PE) error {
					v, all := make([]int64, 1<<17), make([]int64, n)
					for range b.N {
						if err := c.call(ctx, pe, v, all); err != nil {
							return err
						}
					}
					return nil
				})
				b.StopTimer()
			})
		}
	}
}
