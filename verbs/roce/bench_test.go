package roce_test

import (
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/verbstest"
)

// BenchmarkWrite posts writes, a few at a time, and polls for their completions, between two NICs
// of this process over the loopback interface.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{8, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := open(b, roce.Config{}, "127.0.0.1", "127.0.0.2")
			pair := newPair(b, p.Device(0), p.Device(1), size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			const depth = 4
			wr := []verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{{Addr: pair.mr[0].Addr(), Length: uint32(size),
					LKey: pair.mr[0].LKey()}},
				RemoteAddr: pair.mr[1].Addr(), RKey: pair.mr[1].RKey()}}
			var wcs [depth]verbs.WC
			posted, done := 0, 0
			for done < b.N {
				for posted < b.N && posted-done < depth {
					if _, err := pair.qp[0].PostSend(wr); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				n, err := pair.cq[0].Poll(wcs[:])
				if err != nil {
					b.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					if wc.Status != verbs.StatusSuccess {
						b.Fatal(wc.Status)
					}
				}
				done += n
			}
			b.StopTimer()
			c := p.Device(0).Counters()
			b.ReportMetric(float64(c.Resent)/float64(max(c.Sent, 1)), "resent/packet")
		})
	}
}

// BenchmarkTurns sends eight bytes there and back between two NICs that one goroutine polls in
// turn: what the code and the kernel take for both ways, without waiting.
func BenchmarkTurns(b *testing.B) {
	p := open(b, roce.Config{}, "127.0.0.1", "127.0.0.2")
	pair := newPair(b, p.Device(0), p.Device(1), 16)
	wrs, recvs := [2][]verbs.SendWR{}, [2][]verbs.RecvWR{}
	for i, mr := range pair.mr {
		wrs[i] = []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()}}}}
		recvs[i] = []verbs.RecvWR{{SGL: []verbs.SGE{{Addr: mr.Addr() + 8, Length: 8, LKey: mr.LKey()}}}}
		_, err := pair.qp[i].PostRecv(recvs[i])
		check(b, err)
	}
	arrived := func(cq verbs.CQ) bool {
		var wcs [4]verbs.WC
		n, err := cq.Poll(wcs[:])
		check(b, err)
		return slices.ContainsFunc(wcs[:n], func(wc verbs.WC) bool { return wc.Opcode == verbs.WCRecv })
	}
	b.ReportAllocs()
	for b.Loop() {
		for from, to := range [2]int{1, 0} {
			_, err := pair.qp[from].PostSend(wrs[from])
			check(b, err)
			for !arrived(pair.cq[to]) {
			}
			_, err = pair.qp[to].PostRecv(recvs[to])
			check(b, err)
		}
	}
}

type qpPair struct {
	qp [2]verbs.QP
	cq [2]verbs.CQ
	mr [2]verbs.MR
}

func newPair(t testing.TB, a, b verbs.Device, size int) (p qpPair) {
	for i, d := range []verbs.Device{a, b} {
		pd, err := d.AllocPD()
		check(t, err)
		p.mr[i], err = pd.RegisterMR(make([]byte, size), verbs.AccessAll)
		check(t, err)
		p.cq[i], err = d.CreateCQ(verbs.CQConfig{})
		check(t, err)
		p.qp[i], err = pd.CreateQP(verbs.QPConfig{SendCQ: p.cq[i], RecvCQ: p.cq[i]})
		check(t, err)
		t.Cleanup(func() {
			check(t, p.qp[i].Close())
			check(t, p.cq[i].Close())
			check(t, p.mr[i].Close())
			check(t, pd.Close())
		})
	}
	check(t, verbstest.Connect(p.qp[0], p.qp[1], verbstest.ConnectConfig{Port: 1}))
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
