package shmem_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs/soft"
)

// BenchmarkJoin makes worlds of n PEs in this process: n² endpoints.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{8, 16, 32, 48, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f, err := soft.New(soft.Config{Devices: n})
			if err != nil {
				b.Fatal(err)
			}
			var doms []*ibverbx.Domain
			for i := range n {
				dom, err := ibverbx.NewDomain(f.Device(i))
				if err != nil {
					b.Fatal(err)
				}
				doms = append(doms, dom)
			}
			ctx := context.Background()
			used := time.Duration(0)
			for b.Loop() {
				start := cpuTime()
				w, err := shmem.NewLocal(ctx, shmem.Config{HeapSize: 4096}, doms...)
				if err != nil {
					b.Fatal(err)
				}
				used += cpuTime() - start
				b.StopTimer()
				if err := w.Close(ctx); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "cpu-ms/op")
			for _, dom := range doms {
				if err := dom.Close(); err != nil {
					b.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// cpuTime is how much processor time the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
