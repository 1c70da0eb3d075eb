package tagged_test

import (
	"fmt"
	"runtime"
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

// BenchmarkRate8 is how many eight-byte messages one sender gets through.
func BenchmarkRate8(b *testing.B) {
	_, x, y := pair(b, 1, tagged.Config{})
	buf := make([]byte, 8)
	const depth = 256
	var recvs [depth]*tagged.Request
	var bufs [depth][8]byte
	wx, wy := x.Worker(), y.Worker()
	b.ReportAllocs()
	start := cpuTime()
	head, tail := 0, 0
	sends := make([]*tagged.Request, 0, depth)
	for b.Loop() {
		if tail-head == depth {
			for !recvs[head%depth].Done() {
				wx.Progress()
				wy.Progress()
			}
			for head < tail && recvs[head%depth].Done() {
				recvs[head%depth].Free()
				head++
			}
			for _, s := range sends {
				for !s.Done() {
					wx.Progress()
					wy.Progress()
				}
				s.Free()
			}
			sends = sends[:0]
		}
		recvs[tail%depth], _ = wy.Recv(1, tagged.Exact, bufs[tail%depth][:])
		tail++
		s, err := x.Send(1, buf)
		if err != nil {
			b.Fatal(err)
		}
		if s != nil {
			sends = append(sends, s)
		}
	}
	used := cpuTime() - start
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op") // tells more than time on a machine that is shared
	b.ReportMetric(float64(b.N)/float64(wx.Transport().Stats().AMSent), "msg/am")
}

// BenchmarkLength sends messages of every length from and into registered memory. The figure against copy is measured in the same run.
func BenchmarkLength(b *testing.B) {
	for _, limit := range []int{1 << 20, -1} {
		for _, n := range []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
			if limit > 0 && n > 256<<10 || limit < 0 && n < 4<<10 {
				continue
			}
			name := "eager"
			if limit < 0 {
				name = "rendezvous"
			}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) { benchmarkLength(b, n, tagged.Config{EagerLimit: limit}) })
		}
	}
}

func BenchmarkChunk(b *testing.B) {
	for _, chunk := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
		b.Run(fmt.Sprint(chunk), func(b *testing.B) { benchmarkLength(b, 1<<20, tagged.Config{Chunk: chunk}) })
	}
}

func benchmarkLength(b *testing.B, n int, cfg tagged.Config) {
	r, x, y := pair(b, 1, cfg)
	src, dst := pattern(n, 1), pattern(n, 2)
	if _, err := x.Worker().Register(src); err != nil {
		b.Fatal(err)
	}
	if _, err := y.Worker().Register(dst); err != nil {
		b.Fatal(err)
	}
	wx, wy := x.Worker(), y.Worker()
	once := func() {
		d, _ := wy.Recv(1, tagged.Exact, dst)
		s, err := x.Send(1, src)
		if err != nil {
			r.t.Fatal(err)
		}
		for !d.Done() {
			if wy.Progress()+wx.Progress() == 0 {
				runtime.Gosched() // the software NIC may need the core
			}
		}
		d.Free()
		if s != nil {
			for !s.Done() {
				wx.Progress()
				wy.Progress()
			}
			s.Free()
		}
	}
	for range 32 {
		once()
	}
	copied := copyTime(src, dst)
	start := cpuTime()
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
	used := cpuTime() - start
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
	copied = (copied + copyTime(src, dst)) / 2
	b.ReportMetric(copied*float64(b.N)/used.Seconds(), "of-copy") // processor time against processor time
}

// cpuTime is the time that this process has had a processor.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// copyTime is how long a copy takes, in seconds of a processor.
func copyTime(src, dst []byte) float64 {
	rounds := max(8, (64<<20)/len(src))
	copy(dst, src)
	start := cpuTime()
	for range rounds {
		copy(dst, src)
	}
	return (cpuTime() - start).Seconds() / float64(rounds)
}
