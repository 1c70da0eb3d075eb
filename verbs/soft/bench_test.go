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

// BenchmarkWriteLarge is large writes beside copy() of as much memory: on one queue pair, and 16
// MiB spread over four, as a virtual queue pair does it.
func BenchmarkWriteLarge(b *testing.B) {
	for _, c := range []struct{ qps, size, depth int }{
		{1, 64 << 10, 16}, {1, 512 << 10, 16}, {1, 1 << 20, 1}, {1, 1 << 20, 16}, {1, 16 << 20, 2},
		{4, 512 << 10, 32}, {4, 4 << 20, 4},
	} {
		if c.qps == 1 {
			b.Run(fmt.Sprintf("copy/%dKiB/depth=%d", c.size>>10, c.depth), func(b *testing.B) {
				src, dst := make([]byte, c.depth*c.size), make([]byte, c.depth*c.size)
				touch(src)
				touch(dst)
				b.SetBytes(int64(c.size))
				b.ResetTimer()
				for i := 0; i < b.N; i++ {
					off := i % c.depth * c.size
					copy(dst[off:off+c.size], src[off:off+c.size])
				}
			})
		}
		b.Run(fmt.Sprintf("write/%dKiB/depth=%d/qps=%d", c.size>>10, c.depth, c.qps), func(b *testing.B) {
			benchmarkWrites(b, c.qps, c.size, c.depth)
		})
	}
}

// benchmarkWrites writes messages of a size, depth of them at a time, on queue pairs in turn.
func benchmarkWrites(b *testing.B, qps, size, depth int) {
	f := newFabric(b, Config{})
	var ends [][2]*end
	for range qps {
		x, y := newEnd(b, f.Device(0), endConfig{buf: depth / qps * size}), newEnd(b, f.Device(1),
			endConfig{buf: depth / qps * size})
		connect(b, x, y)
		touch(x.buf)
		touch(y.buf)
		ends = append(ends, [2]*end{x, y})
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var wcs [1]verbs.WC
	wait := func(i int) {
		for x := ends[i%qps][0]; ; {
			if n, _ := x.cq.Poll(wcs[:]); n != 0 {
				return
			}
		}
	}
	var wr [1]verbs.SendWR
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		if i >= depth {
			wait(i)
		}
		x, y := ends[i%qps][0], ends[i%qps][1]
		wr[0] = x.write(y, uint64(i), i%depth/qps*size, size)
		x.qp.PostSend(wr[:])
	}
	for i := range min(depth, b.N) {
		wait(b.N - min(depth, b.N) + i)
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

func TestNoAllocations(t *testing.T) {
	const batch = 32
	for _, stepped := range []bool{false, true} {
		f, a, b := pair(t, Config{Stepped: stepped}, endConfig{buf: 1 << 20})
		add := a.write(b, 0, 0, 8)
		add.Opcode = verbs.OpAtomicFetchAdd
		read := a.write(b, 0, 0, 4096)
		read.Opcode = verbs.OpRDMARead
		inline := a.write(b, 0, 0, 0)
		inline.Flags |= verbs.SendInline
		inline.SGL, inline.Inline = nil, make([]byte, 32)
		kinds := map[string]verbs.SendWR{
			"write":       a.write(b, 0, 0, 8),
			"large write": a.write(b, 0, 0, 1<<20),
			"send":        a.send(0, 0, 64),
			"inline":      inline,
			"atomic":      add,
		}
		if !stepped {
			kinds["read"] = read
		}
		for name, wr := range kinds {
			wrs := make([]verbs.SendWR, batch)
			recvs := make([]verbs.RecvWR, batch)
			for i := range wrs {
				wrs[i] = wr
				recvs[i].SGL = b.sge(64*i, 64)
			}
			wcs := make([]verbs.WC, 2*batch)
			round := func() {
				want := batch
				if wr.Opcode.IsSend() {
					b.qp.PostRecv(recvs)
					want *= 2
				}
				a.qp.PostSend(wrs)
				for got := 0; got < want; {
					f.Run(10)
					n, _ := a.cq.Poll(wcs)
					m, _ := b.rcq.Poll(wcs)
					got += n + m
				}
			}
			round()
			round()
			if n := testing.AllocsPerRun(10, round); n != 0 {
				t.Errorf("%s, stepped %v: %v allocations a round", name, stepped, n)
			}
		}
	}
}
