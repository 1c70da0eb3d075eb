package roce

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
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

// BenchmarkLongTurns writes 1 MiB at a time between two NICs that one goroutine polls in turn:
// CPU-ms/GiB is what both ends take of one processor.
func BenchmarkLongTurns(b *testing.B) {
	for _, mtu := range []verbs.MTU{verbs.MTU1024, verbs.MTU4096} {
		b.Run(fmt.Sprint(mtu.Bytes()), func(b *testing.B) {
			const size, depth = 1 << 20, 4
			p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
			from, to := newNode(b, p.Device(0), size), newNode(b, p.Device(1), size)
			must(b, verbstest.Connect(from.qp, to.qp, verbstest.ConnectConfig{Port: 1,
				Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.PathMTU = mtu }}))
			wr := []verbs.SendWR{from.write(to, 1, size)}
			b.SetBytes(size)
			b.ResetTimer()
			before := processorTime(b)
			var wcs [depth]verbs.WC
			for posted, done := 0, 0; done < b.N; {
				var err error
				for ; posted < b.N && posted-done < depth && err == nil; posted++ {
					_, err = from.qp.PostSend(wr)
				}
				_, err1 := to.cq.Poll(wcs[:])
				n, err2 := from.cq.Poll(wcs[:])
				if err = cmp.Or(err, err1, err2); err != nil { // must would cost as much as a poll
					b.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					must(b, wc.Status.Err())
				}
				done += n
			}
			b.StopTimer()
			used := processorTime(b) - before
			b.ReportMetric(used.Seconds()*1e3*1024/float64(b.N), "CPU-ms/GiB")
		})
	}
}

// processorTime is the time of processors that this process has used.
func processorTime(t testing.TB) time.Duration {
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkQueuePairs has many queue pairs write 64 KiB, two at a time each, to one NIC.
func BenchmarkQueuePairs(b *testing.B) {
	for _, count := range []int{1, 16, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
			const size = 1 << 16
			from, to := newNode(b, p.Device(0), size), newNode(b, p.Device(1), size)
			cq, err := from.dev.CreateCQ(verbs.CQConfig{Depth: 1 << 16})
			must(b, err)
			qps := make([]verbs.QP, count)
			for i := range qps {
				qps[i], err = from.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
				must(b, err)
				peer := to.newQP(b)
				must(b, verbstest.Connect(qps[i], peer, verbstest.ConnectConfig{Port: 1}))
				b.Cleanup(func() { must(b, peer.Close()) })
			}
			defer cq.Close()
			b.SetBytes(size)
			b.ResetTimer()
			depth := max(2, 64/count)
			var wcs [64]verbs.WC
			wr := []verbs.SendWR{from.write(to, 0, size)}
			posted, done := 0, 0
			post := func(i int) {
				if posted < b.N {
					wr[0].ID = uint64(i)
					_, err := qps[i].PostSend(wr)
					must(b, err)
					posted++
				}
			}
			for range depth {
				for i := range qps {
					post(i)
				}
			}
			for done < b.N {
				n, err := cq.Poll(wcs[:])
				must(b, err)
				for _, wc := range wcs[:n] {
					must(b, wc.Status.Err())
					post(int(wc.ID))
				}
				done += n
			}
			b.StopTimer()
			c, theirs := from.dev.Counters(), to.dev.Counters()
			b.ReportMetric(float64(c.Resent)*100/float64(max(c.Sent, 1)), "%resent")
			b.ReportMetric(float64(theirs.Overflowed), "overflowed")
			for _, qp := range qps {
				must(b, qp.Close())
			}
		})
	}
}

// Once warm, nothing that posts, sends, receives or polls allocates, at either end.
func TestNoAllocations(t *testing.T) {
	const batch = 16
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<18)
	a, b := pair[0], pair[1]
	kinds := map[string]func(*verbs.SendWR){
		"write":       func(wr *verbs.SendWR) {},
		"large write": func(wr *verbs.SendWR) { wr.SGL[0].Length = 1 << 18 },
		"read":        func(wr *verbs.SendWR) { wr.Opcode, wr.SGL[0].Length = verbs.OpRDMARead, 1<<16 },
		"atomic":      func(wr *verbs.SendWR) { wr.Opcode = verbs.OpAtomicFetchAdd },
		"send":        func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSend },
		"inline": func(wr *verbs.SendWR) {
			wr.Flags, wr.SGL, wr.Inline = wr.Flags|verbs.SendInline, nil, make([]byte, 32)
		},
	}
	for name, change := range kinds {
		wrs, recvs := make([]verbs.SendWR, batch), make([]verbs.RecvWR, batch)
		for i := range wrs {
			wrs[i] = a.write(b, uint64(i), 8)
			change(&wrs[i])
			recvs[i].SGL = []verbs.SGE{{Addr: b.mr.Addr(), Length: 8, LKey: b.mr.LKey()}}
		}
		wcs := make([]verbs.WC, batch)
		round := func() {
			want := batch
			if wrs[0].Opcode.IsSend() {
				_, _ = b.qp.PostRecv(recvs)
				want *= 2
			}
			_, _ = a.qp.PostSend(wrs)
			for got := 0; got < want; {
				n, _ := a.cq.Poll(wcs)
				m, _ := b.cq.Poll(wcs)
				got += n + m
				for _, wc := range wcs[:max(n, m)] {
					if wc.Status != verbs.StatusSuccess {
						t.Fatalf("%s: %v", name, wc.Status)
					}
				}
			}
		}
		for range 4 {
			round()
		}
		// What repairs a loss may allocate, and a receiver that is not run for long loses
		// packets. What posts and polls allocate, they allocate every time.
		least := testing.AllocsPerRun(20, round)
		for tries := 1; least >= 1 && tries < 10; tries++ {
			least = min(least, testing.AllocsPerRun(20, round))
		}
		if least >= 1 {
			t.Errorf("%s: at least %v allocations a round of %d", name, least, batch)
		}
	}
}
