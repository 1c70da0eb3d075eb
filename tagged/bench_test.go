package tagged_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"ibverbx/tagged"
)

// BenchmarkLatency8 sends eight bytes back and forth; the figure is one way.
func BenchmarkLatency8(b *testing.B) {
	r, x, y := pair(b, 1, tagged.Config{})
	ends := [2]*tagged.Endpoint{x, y}
	buf, in := make([]byte, 8), make([]byte, 8)
	_ = r
	i := 0
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		from, to := ends[i&1], ends[1-i&1]
		i++
		req, _ := to.Worker().Recv(1, tagged.Exact, in)
		if s, err := from.Send(1, buf); err != nil || s != nil {
			b.Fatal(s, err)
		}
		for !req.Done() {
			to.Worker().Progress()
		}
		req.Free()
	}
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// BenchmarkRate8 measures the rate of eight-byte messages of one sender.
func BenchmarkRate8(b *testing.B) {
	_, x, y := pair(b, 1, tagged.Config{})
	buf := make([]byte, 8)
	const depth = 256
	var recvs, sends [depth]*tagged.Request
	var bufs [depth][8]byte
	wx, wy := x.Worker(), y.Worker()
	b.ReportAllocs()
	start := cpuTime()
	for n := 0; b.Loop(); n++ {
		i := n % depth
		if i == 0 && n != 0 {
			finishAll(wx, wy, recvs[:])
			finishAll(wx, wy, sends[:])
		}
		recvs[i], _ = wy.Recv(1, tagged.Exact, bufs[i][:])
		var err error
		if sends[i], err = x.Send(1, buf); err != nil {
			b.Fatal(err)
		}
	}
	used := cpuTime() - start
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
	// says more than time on a machine that is shared
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/float64(wx.Transport().Stats().AMSent), "msg/am")
}

// finishAll waits for requests and frees them.
func finishAll(a, b *tagged.Worker, reqs []*tagged.Request) {
	for _, r := range reqs {
		if r == nil {
			continue
		}
		for !r.Done() {
			a.Progress()
			b.Progress()
		}
		r.Free()
	}
}

// BenchmarkLength sends messages of every length from and into registered memory.
func BenchmarkLength(b *testing.B) {
	for _, limit := range []int{1 << 20, -1} {
		for _, n := range []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20,
			4 << 20} {
			if limit > 0 && n > 256<<10 || limit < 0 && n < 4<<10 {
				continue
			}
			name := "eager"
			if limit < 0 {
				name = "rendezvous"
			}
			b.Run(fmt.Sprintf("%s/%d", name, n),
				func(b *testing.B) { benchmarkLength(b, n, tagged.Config{EagerLimit: limit}) })
		}
	}
}

func BenchmarkChunk(b *testing.B) {
	for _, chunk := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
		for _, window := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("%d KiB, %d at a time", chunk>>10, window), func(b *testing.B) {
				benchmarkLength(b, 1<<20, tagged.Config{Chunk: chunk, Window: window})
			})
		}
	}
}

// exchange makes a function that sends n bytes from registered memory into registered memory.
func exchange(b *testing.B, n int, cfg tagged.Config) (once func(), src, dst []byte) {
	_, x, y := pair(b, 1, cfg)
	src, dst = pattern(n, 1), pattern(n, 2)
	wx, wy := x.Worker(), y.Worker()
	for w, mem := range map[*tagged.Worker][]byte{wx: src, wy: dst} {
		if _, err := w.Register(mem); err != nil {
			b.Fatal(err)
		}
	}
	reqs := make([]*tagged.Request, 2)
	once = func() {
		reqs[0], _ = wy.Recv(1, tagged.Exact, dst)
		reqs[1], _ = x.Send(1, src)
		finishAll(wx, wy, reqs)
	}
	for range 300 {
		once()
	}
	return once, src, dst
}

func benchmarkLength(b *testing.B, n int, cfg tagged.Config) {
	once, _, _ := exchange(b, n, cfg)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		once()
	}
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// BenchmarkAgainstCopy sends 1 MiB and copies 1 MiB in turn, so that both run under the same load.
func BenchmarkAgainstCopy(b *testing.B) {
	const n = 1 << 20
	once, src, dst := exchange(b, n, tagged.Config{})
	var sending, copying time.Duration
	for b.Loop() {
		start := time.Now()
		once()
		middle := time.Now()
		copy(dst, src)
		sending, copying = sending+middle.Sub(start), copying+time.Since(middle)
	}
	b.ReportMetric(n*float64(b.N)/sending.Seconds()/1e9, "GB/s")
	b.ReportMetric(copying.Seconds()/sending.Seconds(), "of-copy")
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
