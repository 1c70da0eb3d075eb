//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// BenchmarkPostPoll is what a request costs to post and its completion to poll, over a library that
// does next to nothing: the crossing into C, twice a batch, and the translation.
func BenchmarkPostPoll(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		for _, kind := range []string{"write", "inline"} {
			b.Run(fmt.Sprintf("%s/batch=%d", kind, batch), func(b *testing.B) {
				r := newRig(b, openStandin(b, standinConfig{}), rigConfig{})
				wrs := make([]verbs.SendWR, batch)
				for i := range wrs {
					wrs[i] = r.send(uint64(i), 8)
					wrs[i].Opcode = verbs.OpRDMAWrite
					if kind == "inline" {
						wrs[i].Flags |= verbs.SendInline
						wrs[i].SGL, wrs[i].Inline = nil, r.buf[:32]
					}
				}
				wcs := make([]verbs.WC, batch)
				b.ReportAllocs()
				for b.Loop() {
					n, err := r.qp.PostSend(wrs)
					m, err2 := r.cq.Poll(wcs)
					if n != batch || m != batch {
						b.Fatalf("posted %d, polled %d of %d: %v %v", n, m, batch, err, err2)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/request")
			})
		}
	}
}

// BenchmarkFromC is the same done by a program in C, to see what the crossing costs: PostPoll/write
// in units of it.
func BenchmarkFromC(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("write/batch=%d", batch), func(b *testing.B) {
			r := newRig(b, openStandin(b, standinConfig{}), rigConfig{})
			b.ResetTimer()
			if n := r.postPoll(0, r.qp.Num(), r.mr.Addr(), r.mr.LKey(), int32(batch), b.N); n != b.N {
				b.Fatalf("%d rounds of %d", n, b.N)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/request")
		})
	}
}

// BenchmarkVirtual is a request of a virtual queue pair, posted and polled: what BenchmarkNull of
// package ibverbx measures, and the crossings into C with it.
func BenchmarkVirtual(b *testing.B) {
	for _, c := range []struct {
		name   string
		qps    int
		scheme ibverbx.Scheme
		op     verbs.Opcode
	}{
		{"1qp", 1, ibverbx.DQPLB, verbs.OpRDMAWrite},
		{"4qp", 4, ibverbx.DQPLB, verbs.OpRDMAWrite},
		{"spray-imm", 4, ibverbx.Spray, verbs.OpRDMAWriteWithImm},
		{"dqplb-imm", 4, ibverbx.DQPLB, verbs.OpRDMAWriteWithImm},
	} {
		for _, batch := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/batch=%d", c.name, batch), func(b *testing.B) {
				cfg := ibverbx.Config{Scheme: c.scheme, QPsPerDevice: c.qps, MaxMsgCntPerQP: 256}
				benchVirtual(b, cfg, c.op, batch)
			})
		}
	}
}

func benchVirtual(b *testing.B, cfg ibverbx.Config, op verbs.Opcode, batch int) {
	qp, err := ibverbx.Open([]verbs.Device{openStandin(b, standinConfig{}).device(b)}, cfg)
	ok(b, err)
	closeLater(b, qp)
	card, err := qp.Card()
	ok(b, err)
	ok(b, qp.Connect(vqptest.Elsewhere(card)))
	mr, err := qp.Domain().Register(make([]byte, 4096), verbs.AccessAll)
	ok(b, err)
	closeLater(b, mr)
	wrs, wcs := make([]ibverbx.SendWR, batch), make([]ibverbx.WC, batch)
	for i := range wrs {
		wrs[i] = ibverbx.SendWR{ID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Local: mr.Slice(0, 8),
			Remote: mr.Remote().At(0)}
	}
	round := func() {
		if _, err := qp.PostSend(wrs...); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < batch; {
			n, err := qp.CQ().Poll(wcs)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
	round()
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/request")
}

// BenchmarkEmptyPoll is what it costs to find nothing.
func BenchmarkEmptyPoll(b *testing.B) {
	r := newRig(b, openStandin(b, standinConfig{}), rigConfig{})
	wcs := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.cq.Poll(wcs); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkArm is what it costs to ask for an event.
func BenchmarkArm(b *testing.B) {
	r := newRig(b, openStandin(b, standinConfig{}), rigConfig{channel: verbs.NewCompChannel()})
	b.ReportAllocs()
	for b.Loop() {
		if err := r.cq.Arm(false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEvent is the way of a completion through the channel: arm, post, sleep, poll.
func BenchmarkEvent(b *testing.B) {
	c := verbs.NewCompChannel()
	r := newRig(b, openStandin(b, standinConfig{}), rigConfig{channel: c})
	wrs, wcs := []verbs.SendWR{r.send(1, 8)}, make([]verbs.WC, 4)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.cq.Arm(false)
		_, _ = r.qp.PostSend(wrs)
		<-c.Events()
		if n, err := r.cq.Poll(wcs); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}
