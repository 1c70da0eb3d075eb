package roce

import (
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// BenchmarkWrite posts writes, a few at a time, and polls for their completions, between two NICs
// of this process over the loopback interface.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{8, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchmarkWrites(b, size, 0) })
	}
}

// BenchmarkLoss does the same with 1 MiB at a time, over a network that loses a share of the
// packets in both directions.
func BenchmarkLoss(b *testing.B) {
	for _, rate := range []float64{0, 0.0001, 0.001, 0.01} {
		b.Run(fmt.Sprintf("%g%%", rate*100), func(b *testing.B) { benchmarkWrites(b, 1<<20, rate) })
	}
}

func benchmarkWrites(b *testing.B, size int, loss float64) {
	p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(b, p.Device(0), p.Device(1), size)
	if loss != 0 {
		lossy(pair[0].dev, loss, 1)
		lossy(pair[1].dev, loss, 1)
	}
	from := pair[0]
	wr := []verbs.SendWR{from.write(pair[1], 1, size)}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	const depth = 4
	var wcs [depth]verbs.WC
	for posted, done := 0, 0; done < b.N; {
		for ; posted < b.N && posted-done < depth; posted++ {
			_, err := from.qp.PostSend(wr)
			must(b, err)
		}
		n, err := from.cq.Poll(wcs[:])
		must(b, err)
		for _, wc := range wcs[:n] {
			must(b, wc.Status.Err())
		}
		done += n
	}
	b.StopTimer()
	c := from.dev.Counters()
	b.ReportMetric(float64(c.Resent)/float64(max(c.Sent, 1)), "resent/packet")
	b.ReportMetric(float64(c.Timeouts), "timeouts")
}

// BenchmarkTurns sends eight bytes there and back between two NICs that one goroutine polls in
// turn: what the code and the kernel take for both ways, without waiting.
func BenchmarkTurns(b *testing.B) {
	p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(b, p.Device(0), p.Device(1), 16)
	wrs, recvs := [2][]verbs.SendWR{}, [2][]verbs.RecvWR{}
	for i, n := range pair {
		mr := n.mr
		wrs[i] = []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()}}}}
		recvs[i] = []verbs.RecvWR{{SGL: []verbs.SGE{{Addr: mr.Addr() + 8, Length: 8, LKey: mr.LKey()}}}}
		_, err := n.qp.PostRecv(recvs[i])
		must(b, err)
	}
	arrived := func(cq verbs.CQ) bool {
		var wcs [4]verbs.WC
		n, err := cq.Poll(wcs[:])
		must(b, err)
		return slices.ContainsFunc(wcs[:n], func(wc verbs.WC) bool { return wc.Opcode == verbs.WCRecv })
	}
	b.ReportAllocs()
	for b.Loop() {
		for from, to := range [2]int{1, 0} {
			_, err := pair[from].qp.PostSend(wrs[from])
			must(b, err)
			for !arrived(pair[to].cq) {
			}
			_, err = pair[to].qp.PostRecv(recvs[to])
			must(b, err)
		}
	}
}
