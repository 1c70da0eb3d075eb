package transport_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/internal/vqptest"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// benchBatch is how many operations are started before a round of progress.
const benchBatch = 32

// benchSetup is one queue pair, or four rails, with the default limits.
func benchSetup(rails int) setup {
	s := setup{memory: 1 << 20}
	s.cfg.QP.QPsPerDevice = rails
	return s
}

// BenchmarkPaths measures each path at each of its sizes. The metric x-raw is its cost over that of
// a bare ibverbx.VirtualQP that posts and polls work requests of the same shape, measured in the
// same run.
func BenchmarkPaths(b *testing.B) {
	for _, rails := range []int{1, 4} {
		names := paths(b, newLink(b, benchSetup(rails)))
		for i, named := range names {
			sizes := []uint64{8, 4096, 1 << 20}
			if !named.size {
				sizes = sizes[:1]
			}
			for _, n := range sizes {
				if n > named.most && n != 4096 || n > max(named.most, 1) {
					continue
				}
				b.Run(fmt.Sprintf("%dqp/%s/%d", rails, named.name, n), func(b *testing.B) {
					l := newLink(b, benchSetup(rails))
					p := paths(b, l)[i]
					raw := rawCost(b, l, p.name, n)
					for range 200 {
						p.run(b, l, n)
					}
					b.ReportAllocs()
					b.SetBytes(int64(n))
					for b.Loop() {
						p.run(b, l, n)
					}
					if raw > 0 {
						b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/raw, "x-raw")
					}
				})
			}
		}
	}
}

// rawCost is how many ns a bare virtual queue pair of the same NICs takes to post and poll one work
// request of a path's shape; 0 for paths that are not one work request.
func rawCost(b *testing.B, l *link, name string, n uint64) float64 {
	cfg := l.a.w.Config().QP
	wr := ibverbx.SendWR{Flags: verbs.SendSignaled, Remote: l.a.peer.At(0), Local: l.a.mr.Slice(0, n)}
	switch name {
	case "AMShort", "AMBcopy", "AMZcopy":
		wr.Opcode, wr.Relaxed = verbs.OpSend, true
	case "PutShort", "PutBcopy", "PutZcopy":
		wr.Opcode = verbs.OpRDMAWrite
	case "GetBcopy", "GetZcopy":
		wr.Opcode = verbs.OpRDMARead
	case "FetchAdd", "CompareSwap":
		wr.Opcode, wr.CompareAdd = verbs.OpAtomicFetchAdd, 1
	default:
		return 0
	}
	if name == "AMShort" || name == "PutShort" {
		wr.Flags |= verbs.SendInline
		wr.Inline, wr.Local = make([]byte, n), ibverbx.Segment{}
	}
	var qps [2]*ibverbx.VirtualQP
	for i, e := range []*end{l.a, l.b} {
		qp, err := e.w.Domain().NewQP(nil, cfg)
		must(b, err)
		qps[i] = qp
		defer func() { _ = qp.CQ().Close() }() // closes the queue pair
	}
	for i := range qps {
		c, err := qps[1-i].Card()
		must(b, err)
		must(b, qps[i].Connect(c))
	}
	recv := ibverbx.RecvWR{Local: l.b.mr.Slice(0, max(n, 64))}
	var wcs [64]ibverbx.WC
	const batch = benchBatch
	round := func() {
		if wr.Opcode == verbs.OpSend {
			for range batch {
				if _, err := qps[1].PostRecv(recv); err != nil {
					b.Fatal(err)
				}
			}
		}
		for range batch {
			if _, err := qps[0].PostSend(wr); err != nil {
				b.Fatal(err)
			}
		}
		for i, want := range []int{batch, batch} {
			if i == 1 && wr.Opcode != verbs.OpSend {
				break
			}
			for want > 0 {
				got, err := qps[i].CQ().Poll(wcs[:])
				if err != nil {
					b.Fatal(err)
				}
				want -= got
			}
		}
	}
	round()
	rounds := 0
	start := time.Now()
	for ; rounds < 4 || time.Since(start) < 20*time.Millisecond; rounds++ {
		round()
	}
	return float64(time.Since(start).Nanoseconds()) / float64(rounds*batch)
}

// BenchmarkEndpoints sends 8 bytes on one endpoint, and on 128 in turn: what a message costs must
// not grow with how many there are.
func BenchmarkEndpoints(b *testing.B) {
	for _, kind := range []string{"put", "am"} {
		for _, endpoints := range []int{1, 128} {
			b.Run(fmt.Sprintf("%s/%d", kind, endpoints), func(b *testing.B) {
				l := newLink(b, benchSetup(4))
				ends := []*end{l.a}
				for len(ends) < endpoints {
					x, _ := l.another(transport.EndpointConfig{})
					ends = append(ends, x)
				}
				send := func(e *end) error { return e.PutShort(oneByte[:], e.peer.At(0)) }
				if kind == "am" {
					send = func(e *end) error { return e.AMShort(1, nil, oneByte[:]) }
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					for send(ends[i%endpoints]) != nil {
						l.a.w.Progress()
						l.b.w.Progress()
					}
					if i++; i%benchBatch == 0 {
						l.a.w.Progress()
						l.b.w.Progress()
					}
				}
			})
		}
	}
}

// nullEndpoints are endpoints over a NIC that completes everything at once: what is measured is
// this package and the virtual queue pairs under it.
func nullEndpoints(tb testing.TB, n int) (*transport.Worker, []*transport.Endpoint, ibverbx.RemoteSegment) {
	tb.Helper()
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	must(tb, err)
	w, err := transport.NewWorker(dom, transport.Config{MaxEndpoints: n})
	must(tb, err)
	mr, err := dom.Register(make([]byte, 4096), verbs.AccessAll)
	must(tb, err)
	tb.Cleanup(func() { _, _, _ = w.Close(), mr.Close(), dom.Close() })
	var eps []*transport.Endpoint
	for range n {
		ep := newEndpoint(tb, w, transport.EndpointConfig{})
		peer := card(tb, ep) // of no end that there is
		for i := range peer.QP.Rails {
			peer.QP.Rails[i].GID[0] ^= 1
		}
		must(tb, ep.Connect(peer))
		eps = append(eps, ep)
	}
	return w, eps, mr.Remote().At(0)
}

// putRound puts 8 bytes on each of so many endpoints, the next in turn from i on, and then makes
// progress.
func putRound(w *transport.Worker, eps []*transport.Endpoint, remote ibverbx.RemoteSegment, i int) {
	for j := range benchBatch {
		for eps[(i+j)%len(eps)].PutShort(oneByte[:], remote) != nil {
			w.Progress()
		}
	}
	w.Progress()
}

// BenchmarkNullEndpoints is BenchmarkEndpoints without the NIC's own cost; ns/msg is for one
// message.
func BenchmarkNullEndpoints(b *testing.B) {
	for _, n := range []int{1, 128} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, eps, remote := nullEndpoints(b, n)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				putRound(w, eps, remote, i)
				i += benchBatch
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchBatch, "ns/msg")
		})
	}
}

// The cost of a message with 128 endpoints in turn over that with one is logged, since it depends
// on the caches and the load of the machine. It must stay far below the cost of a search over all
// endpoints.
func TestManyEndpointsCostWhatOneDoes(t *testing.T) {
	if testing.Short() || guard.Race {
		t.Skip("measures")
	}
	const limit = 2
	var workers [2]*transport.Worker
	var endpoints [2][]*transport.Endpoint
	var remotes [2]ibverbx.RemoteSegment
	best := [2]time.Duration{time.Hour, time.Hour}
	for i, n := range []int{1, 128} {
		workers[i], endpoints[i], remotes[i] = nullEndpoints(t, n)
	}
	ratio := math.Inf(1)
	for try := 0; try < 200 && (try < 20 || ratio > limit); try++ { // the machine may be busy
		for i := range best {
			const rounds = 400
			start := time.Now()
			for round := range rounds {
				putRound(workers[i], endpoints[i], remotes[i], round*benchBatch)
			}
			best[i] = min(best[i], time.Since(start)/(rounds*benchBatch))
		}
		ratio = float64(best[1]) / float64(best[0])
	}
	t.Logf("one endpoint %v a message, 128 endpoints %v: %.2f times", best[0], best[1], ratio)
	if ratio > limit {
		t.Errorf("a message costs %.1f times as much with 128 endpoints", ratio)
	}
}

// BenchmarkMessageKeepRelease is a round of an active message that is kept and released.
func BenchmarkMessageKeepRelease(b *testing.B) {
	var kept *transport.Message
	s := benchSetup(4)
	s.handle = func(m *transport.Message) { m.Keep(); kept = m }
	l := newLink(b, s)
	b.ReportAllocs()
	for b.Loop() {
		for l.a.AMShort(1, nil, oneByte[:]) != nil {
			l.a.w.Progress()
		}
		for kept == nil {
			l.b.w.Progress()
		}
		kept.Release()
		kept = nil
	}
}

// BenchmarkPendingRoundTrip fills an endpoint and sends one more through its queue.
func BenchmarkPendingRoundTrip(b *testing.B) {
	l := newLink(b, benchSetup(4))
	served := false
	var p transport.Pending
	p.Func = func(_ *transport.Pending, head *transport.Endpoint) transport.Outcome {
		if head.PutShort(oneByte[:], l.a.peer.At(0)) != nil {
			return transport.PendingNoResource
		}
		served = true
		return transport.PendingDone
	}
	b.ReportAllocs()
	for b.Loop() {
		for l.a.PutShort(oneByte[:], l.a.peer.At(0)) == nil {
		}
		if err := l.a.Pending(&p); err != nil {
			b.Fatal(err)
		}
		for served = false; !served; {
			l.a.w.Progress()
		}
	}
}

// Small steps of each operation are inlined, as in the packages below.
func TestHotPathInlines(t *testing.T) {
	vqptest.MustInline(t, "ibverbx/transport.(*Endpoint).post",
		"ibverbx/transport.(*Endpoint).usable",
		"ibverbx/transport.(*Endpoint).ordinary",
		"ibverbx/transport.(*peerState).sendID",
		"ibverbx/transport.(*peerState).hasBuffer",
		"ibverbx/transport.(*peerState).countPut",
		"ibverbx/transport.(*peerState).fillHeader",
		"ibverbx/transport.(*sending).full",
		"ibverbx/transport.(*sending).idle",
		"ibverbx/transport.(*pendingQueue).any",
		"ibverbx/transport.(*fence).posted",
		"ibverbx/transport.(*chores).due",
		"ibverbx/transport.wridEndpoint",
	)
}
