package soft

import (
	"fmt"
	"testing"

	"ibverbx/verbs"
)

func BenchmarkPostPollWrite8(b *testing.B) {
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			_, x, y := pair(b, Config{}, endConfig{})
			wrs := make([]verbs.SendWR, batch)
			for i := range wrs {
				wrs[i] = x.write(y, uint64(i), 8*i, 8)
			}
			wcs := make([]verbs.WC, batch)
			b.ReportAllocs()
			for i := 0; i < b.N; i += batch {
				if n, err := x.qp.PostSend(wrs); n != batch {
					b.Fatal(n, err)
				}
				for got := 0; got < batch; {
					n, _ := x.cq.Poll(wcs)
					got += n
				}
			}
		})
	}
}

func BenchmarkSendRecv8(b *testing.B) {
	const batch = 64
	_, x, y := pair(b, Config{}, endConfig{})
	wrs := make([]verbs.SendWR, batch)
	rwrs := make([]verbs.RecvWR, batch)
	for i := range wrs {
		wrs[i] = x.send(uint64(i), 8*i, 8)
		rwrs[i] = verbs.RecvWR{ID: uint64(i), SGL: y.sge(8*i, 8)}
	}
	wcs := make([]verbs.WC, batch)
	b.ReportAllocs()
	for i := 0; i < b.N; i += batch {
		y.qp.PostRecv(rwrs)
		x.qp.PostSend(wrs)
		for got := 0; got < 2*batch; {
			n, _ := x.cq.Poll(wcs)
			m, _ := y.rcq.Poll(wcs)
			got += n + m
		}
	}
}

func BenchmarkEmptyPoll(b *testing.B) {
	_, x, _ := pair(b, Config{}, endConfig{})
	wcs := make([]verbs.WC, 16)
	for b.Loop() {
		x.cq.Poll(wcs)
	}
}

func BenchmarkWriteLarge(b *testing.B) {
	for _, size := range []int{64 << 10, 512 << 10, 1 << 20} {
		const depth = 16
		b.Run(fmt.Sprintf("copy/%dKiB", size>>10), func(b *testing.B) {
			src, dst := make([]byte, depth*size), make([]byte, depth*size)
			touch(src)
			touch(dst)
			b.SetBytes(int64(size))
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				off := i % depth * size
				copy(dst[off:off+size], src[off:off+size])
			}
		})
		b.Run(fmt.Sprintf("write/%dKiB", size>>10), func(b *testing.B) {
			_, x, y := pair(b, Config{}, endConfig{buf: depth * size})
			touch(x.buf)
			touch(y.buf)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			wcs := make([]verbs.WC, depth)
			wrs := make([]verbs.SendWR, depth)
			for i := range wrs {
				wrs[i] = x.write(y, uint64(i), i*size, size)
			}
			b.ResetTimer()
			inFlight := 0
			for i := 0; i < b.N; i++ {
				for inFlight == depth {
					n, _ := x.cq.Poll(wcs)
					inFlight -= n
				}
				x.qp.PostSend(wrs[i%depth : i%depth+1])
				inFlight++
			}
			for inFlight > 0 {
				n, _ := x.cq.Poll(wcs)
				inFlight -= n
			}
		})
	}
}

// touch makes pages real: the kernel maps those never written to one page of zeros, which is always
// in the cache.
func touch(b []byte) {
	for i := range b {
		b[i] = byte(i)
	}
}

func BenchmarkStep(b *testing.B) {
	f, x, y := pair(b, Config{Stepped: true}, endConfig{})
	wr := []verbs.SendWR{x.write(y, 1, 0, 8)}
	wcs := make([]verbs.WC, 4)
	b.ReportAllocs()
	for i := 0; i < b.N; i += 3 {
		x.qp.PostSend(wr)
		f.Run(3)
		x.cq.Poll(wcs)
	}
}
