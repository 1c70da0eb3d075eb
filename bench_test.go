package ibverbx_test

import (
	"fmt"
	"math/bits"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// benchBatch is how many requests the benchmarks post and poll at a time.
const benchBatch = 64

// benchDepth holds a batch of 16 fragments each on 4 queue pairs, and not more: the rings then stay
// in the cache, like those of a program that keeps no more outstanding than it needs.
const benchDepth = 256

// nullPair is a connected virtual queue pair on null devices, where posts succeed and completions
// are immediate, so that only this package is measured.
type nullPair struct {
	qp  *ibverbx.VirtualQP
	mr  *ibverbx.MR
	wrs []ibverbx.SendWR
	wcs []ibverbx.WC
}

func newNullPair(tb testing.TB, rails int, scheme ibverbx.Scheme, op verbs.Opcode, length uint64,
	fragment uint32) *nullPair {
	tb.Helper()
	return newNullPairOf(tb, ibverbx.Config{
		Scheme: scheme, QPsPerDevice: rails, FragmentSize: fragment, MaxMsgCntPerQP: benchDepth,
		Credits: benchDepth,
	}, op, length)
}

func newNullPairOf(tb testing.TB, cfg ibverbx.Config, op verbs.Opcode, length uint64) *nullPair {
	tb.Helper()
	p := verbstest.NewNull(1)
	qp, err := ibverbx.Open([]verbs.Device{p.Device(0)}, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	card, err := qp.Card()
	if err != nil {
		tb.Fatal(err)
	}
	card.RawImm = false
	if err := qp.Connect(vqptest.Elsewhere(card)); err != nil {
		tb.Fatal(err)
	}
	mr, err := qp.Domain().Register(make([]byte, 1<<20), verbs.AccessAll)
	if err != nil {
		tb.Fatal(err)
	}
	n := &nullPair{qp: qp, mr: mr, wrs: make([]ibverbx.SendWR, benchBatch),
		wcs: make([]ibverbx.WC, benchBatch)}
	for i := range n.wrs {
		n.wrs[i] = ibverbx.SendWR{
			ID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Local: mr.Slice(0, length),
			Remote: mr.Remote().At(0),
		}
	}
	return n
}

// relax makes the requests relaxed SENDs, or not.
func (n *nullPair) relax(yes bool) {
	for i := range n.wrs {
		n.wrs[i].Relaxed = yes
	}
}

// round posts and polls one batch.
func (n *nullPair) round(tb testing.TB) {
	if _, err := n.qp.PostSend(n.wrs...); err != nil {
		tb.Fatal(err)
	}
	for got := 0; got < len(n.wrs); {
		k, err := n.qp.CQ().Poll(n.wcs)
		if err != nil {
			tb.Fatal(err)
		}
		got += k
	}
}

// BenchmarkNull posts and polls in batches of 64 over the null provider; ns/op is for one request,
// posted and polled.
func BenchmarkNull(b *testing.B) {
	for _, c := range []struct {
		name   string
		rails  int
		scheme ibverbx.Scheme
		op     verbs.Opcode
		frags  uint64
		relax  bool
	}{
		{"1qp", 1, ibverbx.DQPLB, verbs.OpRDMAWrite, 1, false},
		{"4qp/1fragment", 4, ibverbx.DQPLB, verbs.OpRDMAWrite, 1, false},
		{"4qp/16fragments", 4, ibverbx.DQPLB, verbs.OpRDMAWrite, 16, false},
		{"4qp/spray-imm", 4, ibverbx.Spray, verbs.OpRDMAWriteWithImm, 1, false},
		{"4qp/dqplb-imm", 4, ibverbx.DQPLB, verbs.OpRDMAWriteWithImm, 1, false},
		{"4qp/send", 4, ibverbx.Spray, verbs.OpSend, 1, false},
		{"4qp/send-relaxed", 4, ibverbx.Spray, verbs.OpSend, 1, true},
		{"4qp/dqplb-send", 4, ibverbx.DQPLB, verbs.OpSend, 1, false},
		{"4qp/dqplb-send-relaxed", 4, ibverbx.DQPLB, verbs.OpSend, 1, true},
		{"4qp/fetch-add", 4, ibverbx.DQPLB, verbs.OpAtomicFetchAdd, 1, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := newNullPair(b, c.rails, c.scheme, c.op, 8*c.frags, 8)
			n.relax(c.relax)
			n.round(b)
			b.ReportAllocs()
			for b.Loop() {
				n.round(b)
			}
			perRequest(b, c.frags)
		})
	}
}

// BenchmarkNullDepth1 posts one request and polls it: nothing is shared by a batch.
func BenchmarkNullDepth1(b *testing.B) {
	for _, c := range []struct {
		name   string
		rails  int
		scheme ibverbx.Scheme
		op     verbs.Opcode
	}{
		{"1qp", 1, ibverbx.DQPLB, verbs.OpRDMAWrite},
		{"4qp", 4, ibverbx.DQPLB, verbs.OpRDMAWrite},
		{"spray-imm", 4, ibverbx.Spray, verbs.OpRDMAWriteWithImm},
		{"dqplb-imm", 4, ibverbx.DQPLB, verbs.OpRDMAWriteWithImm},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := newNullPair(b, c.rails, c.scheme, c.op, 8, 8)
			n.wrs, n.wcs = n.wrs[:1], n.wcs[:1]
			n.round(b)
			b.ReportAllocs()
			for b.Loop() {
				n.round(b)
			}
		})
	}
}

// BenchmarkNullEmptyPoll polls a virtual CQ over one physical CQ, or several, that hold nothing.
func BenchmarkNullEmptyPoll(b *testing.B) {
	for _, cqs := range []int{1, 4, 8} {
		b.Run(fmt.Sprintf("%dcq", cqs), func(b *testing.B) {
			p := verbstest.NewNull(cqs)
			var devs []verbs.Device
			for i := range cqs {
				devs = append(devs, p.Device(i))
			}
			qp, err := ibverbx.Open(devs, ibverbx.Config{QPsPerDevice: 2})
			if err != nil {
				b.Fatal(err)
			}
			wcs := make([]ibverbx.WC, benchBatch)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := qp.CQ().Poll(wcs); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// perRequest turns the time of a round into the time of a request, and of a fragment if there are
// several.
func perRequest(b *testing.B, frags uint64) {
	perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / benchBatch
	b.ReportMetric(perOp, "ns/request")
	if frags > 1 {
		b.ReportMetric(perOp/float64(frags), "ns/fragment")
	}
}

// newNullRaw is a queue pair of the null provider in RTS, its completion queue, and a batch.
func newNullRaw(tb testing.TB) (verbs.QP, verbs.CQ, []verbs.SendWR) {
	tb.Helper()
	dev := verbstest.NewNull(1).Device(0)
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(verbs.CQConfig{Depth: 1024})
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		tb.Fatal(err)
	}
	if err := verbstest.ToRTS(qp, verbs.QPAttr{Port: 1, PathMTU: verbs.MTU4096}); err != nil {
		tb.Fatal(err)
	}
	wrs := make([]verbs.SendWR, benchBatch)
	sge := make([]verbs.SGE, benchBatch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: sge[i : i+1]}
	}
	return qp, cq, wrs
}

// BenchmarkNullRaw is the null provider itself, the floor under BenchmarkNull: 64 requests in one
// call, or in a call each.
func BenchmarkNullRaw(b *testing.B) {
	for _, posted := range []int{benchBatch, 1} {
		b.Run(fmt.Sprintf("posted%d", posted), func(b *testing.B) {
			qp, cq, wrs := newNullRaw(b)
			wcs := make([]verbs.WC, benchBatch)
			b.ReportAllocs()
			for b.Loop() {
				for i := 0; i < len(wrs); i += posted {
					if _, err := qp.PostSend(wrs[i : i+posted]); err != nil {
						b.Fatal(err)
					}
				}
				if n, err := cq.Poll(wcs); n != len(wcs) {
					b.Fatal(n, err)
				}
			}
			perRequest(b, 1)
		})
	}
}

// TestHotPathAllocatesNothing: post and poll are free of allocation in every mode once warm.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, rails := range []int{1, 4} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead,
				verbs.OpSend, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
				t.Run(fmt.Sprintf("%d/%v/%v", rails, scheme, op), func(t *testing.T) {
					n := newNullPair(t, rails, scheme, op, 8, 8)
					for _, relaxed := range []bool{false, op.IsSend()} {
						n.relax(relaxed)
						n.round(t)
						if allocs := testing.AllocsPerRun(100, func() { n.round(t) }); allocs != 0 {
							t.Errorf("%v allocations a round of %d requests, relaxed %v", allocs, benchBatch,
								relaxed)
						}
					}
				})
			}
		}
	}
}

// nullReceiver is a virtual queue pair on null queue pairs. The benchmark completes its receives.
type nullReceiver struct {
	qp    *ibverbx.VirtualQP
	rails []verbs.QP // the notify QP last
	seq   uint32
	recvs []ibverbx.RecvWR
	wcs   []ibverbx.WC
}

func newNullReceiver(tb testing.TB, scheme ibverbx.Scheme) *nullReceiver {
	tb.Helper()
	dev := verbstest.NewNull(1).Device(0)
	pd, err := dev.AllocPD()
	if err != nil {
		tb.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 1 << 16})
	if err != nil {
		tb.Fatal(err)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		tb.Fatal(err)
	}
	r := &nullReceiver{recvs: make([]ibverbx.RecvWR, benchBatch), wcs: make([]ibverbx.WC, benchBatch)}
	var qps []verbs.QP
	for range 5 {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256}})
		if err != nil {
			tb.Fatal(err)
		}
		qps, r.rails = append(qps, qp), append(r.rails, qp)
	}
	if r.qp, err = ibverbx.NewVirtualQP(vcq, qps[:4], qps[4], ibverbx.Config{Scheme: scheme}); err != nil {
		tb.Fatal(err)
	}
	card, err := r.qp.Card()
	if err != nil {
		tb.Fatal(err)
	}
	card.RawImm = false
	if err := r.qp.Connect(vqptest.Elsewhere(card)); err != nil {
		tb.Fatal(err)
	}
	return r
}

// round posts a batch of receives, lets a message arrive for each, and polls.
func (r *nullReceiver) round(tb testing.TB) {
	if _, err := r.qp.PostRecv(r.recvs...); err != nil {
		tb.Fatal(err)
	}
	for i := range r.recvs {
		rail, imm := r.rails[4], uint32(7)
		if r.qp.Scheme() == ibverbx.DQPLB {
			rail, imm = r.rails[i%4], bits.ReverseBytes32(r.seq|1<<31)
			r.seq = (r.seq + 1) % (1<<24 - 1)
		}
		if !verbstest.CompleteRecv(rail, imm, 8, verbs.WCRecvRDMAWithImm) {
			tb.Fatal("no receive posted")
		}
	}
	for got := 0; got < len(r.recvs); {
		n, err := r.qp.CQ().Poll(r.wcs)
		if err != nil || n == 0 {
			tb.Fatal(n, err, r.qp.Err())
		}
		got += n
	}
}

// BenchmarkNullReceive is the receiver's side of a notification: it posts the receive, handles the
// message, and polls the completion.
func BenchmarkNullReceive(b *testing.B) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.Spray, ibverbx.DQPLB} {
		b.Run("4qp/"+scheme.String(), func(b *testing.B) {
			r := newNullReceiver(b, scheme)
			r.round(b)
			b.ReportAllocs()
			for b.Loop() {
				r.round(b)
			}
			perRequest(b, 1)
		})
	}
}

func TestReceivingAllocatesNothing(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.Spray, ibverbx.DQPLB} {
		r := newNullReceiver(t, scheme)
		r.round(t)
		r.round(t)
		if allocs := testing.AllocsPerRun(100, func() { r.round(t) }); allocs != 0 {
			t.Errorf("%v: %v allocations a round of %d receives", scheme, allocs, benchBatch)
		}
	}
}

// BenchmarkSoft writes over software NICs, 4 queue pairs on each of two, beside copy() of the same
// length.
func BenchmarkSoft(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("copy/%d", size), func(b *testing.B) {
			src, dst := make([]byte, size), make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(dst, src)
			}
		})
		for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
			b.Run(fmt.Sprintf("%v/%d", scheme, size), func(b *testing.B) {
				l := vqptest.NewLink(b, vqptest.LinkConfig{NICs: 2, Buffer: max(size, 4096),
					QP: ibverbx.Config{Scheme: scheme, QPsPerDevice: 4}})
				wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, uint64(size))
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.A.PostSend(wr); err != nil {
						b.Fatal(err)
					}
					for {
						if _, ok, err := l.A.CQ().PollOne(); err != nil {
							b.Fatal(err)
						} else if ok {
							break
						}
					}
				}
			})
		}
	}
}
