package ibverbx_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// benchBatch is how many requests the benchmarks post and poll at a time.
const benchBatch = 64

// nullPair is a connected virtual queue pair on null devices, where posts succeed and completions are immediate: what is
// measured is this package alone.
type nullPair struct {
	qp  *ibverbx.VirtualQP
	mr  *ibverbx.MR
	wrs []ibverbx.SendWR
	wcs []ibverbx.WC
}

func newNullPair(tb testing.TB, rails int, scheme ibverbx.Scheme, op verbs.Opcode, length uint64, fragment uint32) *nullPair {
	tb.Helper()
	p := verbstest.NewNull(1)
	qp, err := ibverbx.Open([]verbs.Device{p.Device(0)}, ibverbx.Config{
		Scheme: scheme, QPsPerDevice: rails, MaxMsgSize: fragment, MaxMsgCntPerQP: 1024, Credits: 1024,
	})
	if err != nil {
		tb.Fatal(err)
	}
	card, err := qp.Card()
	if err != nil {
		tb.Fatal(err)
	}
	card.RawImm = false
	if err := qp.Connect(card); err != nil {
		tb.Fatal(err)
	}
	mr, err := qp.Domain().Register(make([]byte, 1<<20), verbs.AccessAll)
	if err != nil {
		tb.Fatal(err)
	}
	n := &nullPair{qp: qp, mr: mr, wrs: make([]ibverbx.SendWR, benchBatch), wcs: make([]ibverbx.WC, benchBatch)}
	for i := range n.wrs {
		n.wrs[i] = ibverbx.SendWR{
			ID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Local: mr.Slice(0, length), Remote: mr.Remote().At(0),
		}
	}
	return n
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

// BenchmarkNull posts and polls in batches of 64 over the null provider; ns/op is for one request, posted and polled.
func BenchmarkNull(b *testing.B) {
	for _, c := range []struct {
		name   string
		rails  int
		scheme ibverbx.Scheme
		op     verbs.Opcode
		frags  uint64
	}{
		{"1qp", 1, ibverbx.DQPLB, verbs.OpRDMAWrite, 1},
		{"4qp/1fragment", 4, ibverbx.DQPLB, verbs.OpRDMAWrite, 1},
		{"4qp/16fragments", 4, ibverbx.DQPLB, verbs.OpRDMAWrite, 16},
		{"4qp/spray-imm", 4, ibverbx.Spray, verbs.OpRDMAWriteWithImm, 1},
		{"4qp/dqplb-imm", 4, ibverbx.DQPLB, verbs.OpRDMAWriteWithImm, 1},
		{"4qp/send", 4, ibverbx.Spray, verbs.OpSend, 1},
		{"4qp/fetch-add", 4, ibverbx.DQPLB, verbs.OpAtomicFetchAdd, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := newNullPair(b, c.rails, c.scheme, c.op, 8*c.frags, 8)
			n.round(b)
			b.ReportAllocs()
			for b.Loop() {
				n.round(b)
			}
			perRequest(b, c.frags)
		})
	}
}

// perRequest turns the time of a round into the time of a request, and of a fragment if there are several.
func perRequest(b *testing.B, frags uint64) {
	perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / benchBatch
	b.ReportMetric(perOp, "ns/request")
	if frags > 1 {
		b.ReportMetric(perOp/float64(frags), "ns/fragment")
	}
}

// BenchmarkNullRaw is the null provider itself, the floor under BenchmarkNull.
func BenchmarkNullRaw(b *testing.B) {
	dev := verbstest.NewNull(1).Device(0)
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(verbs.CQConfig{Depth: 1024})
	var qp verbs.QP
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		b.Fatal(err)
	}
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
		{verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096}, verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
		{verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic},
	} {
		if err := qp.Modify(&step.attr, step.mask); err != nil {
			b.Fatal(err)
		}
	}
	wrs, wcs := make([]verbs.SendWR, benchBatch), make([]verbs.WC, benchBatch)
	sge := make([]verbs.SGE, benchBatch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: sge[i : i+1]}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := qp.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		if n, err := cq.Poll(wcs); n != len(wcs) {
			b.Fatal(n, err)
		}
	}
	perRequest(b, 1)
}

// TestHotPathAllocatesNothing: post and poll are free of allocation in every mode once warm.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, rails := range []int{1, 4} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
				t.Run(fmt.Sprintf("%d/%v/%v", rails, scheme, op), func(t *testing.T) {
					n := newNullPair(t, rails, scheme, op, 8, 8)
					n.round(t)
					if allocs := testing.AllocsPerRun(100, func() { n.round(t) }); allocs != 0 {
						t.Errorf("%v allocations a round of %d requests", allocs, benchBatch)
					}
				})
			}
		}
	}
}
