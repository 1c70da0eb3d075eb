package ibverbx_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// BenchmarkNullSingly posts 64 requests in a call each, and polls them in one call or in a call
// each; post-ns and poll-ns are the two halves for one request.
func BenchmarkNullSingly(b *testing.B) {
	for _, rails := range []int{1, 4} {
		for _, polled := range []int{1, benchBatch} {
			b.Run(fmt.Sprintf("%dqp/polled%d", rails, polled), func(b *testing.B) {
				n := newNullPair(b, rails, ibverbx.DQPLB, verbs.OpRDMAWrite, 8, 8)
				n.round(b)
				b.ReportAllocs()
				var posting, polling time.Duration
				for b.Loop() {
					start := time.Now()
					for i := range n.wrs {
						if _, err := n.qp.PostSend(n.wrs[i : i+1]...); err != nil {
							b.Fatal(err)
						}
					}
					posted := time.Now()
					for got := 0; got < len(n.wrs); got += polled {
						if k, err := n.qp.CQ().Poll(n.wcs[:polled]); k != polled {
							b.Fatal(k, err)
						}
					}
					posting, polling = posting+posted.Sub(start), polling+time.Since(posted)
				}
				perRequest(b, 1)
				b.ReportMetric(float64(posting.Nanoseconds())/float64(b.N)/benchBatch, "post-ns")
				b.ReportMetric(float64(polling.Nanoseconds())/float64(b.N)/benchBatch, "poll-ns")
			})
		}
	}
}

// BenchmarkNullScatter writes from scatter lists of so many pieces of one region, 0 being a single
// Local, and from lists whose pieces alternate between two regions.
func BenchmarkNullScatter(b *testing.B) {
	for _, regions := range []int{1, 2} {
		for _, pieces := range []int{0, 1, 2, 4, 8} {
			if regions == 2 && pieces < 2 {
				continue
			}
			b.Run(fmt.Sprintf("%dregion/%dpieces", regions, pieces), func(b *testing.B) {
				n := newNullPairOf(b, ibverbx.Config{QPsPerDevice: 4, MaxMsgCntPerQP: benchDepth,
					Credits: benchDepth,
					MaxSGE:  8}, verbs.OpRDMAWrite, 64)
				other, err := n.qp.Domain().Register(make([]byte, 4096), verbs.AccessAll)
				if err != nil {
					b.Fatal(err)
				}
				for i := range n.wrs {
					if pieces != 0 {
						n.wrs[i].Local = ibverbx.Segment{}
					}
					for j := range pieces {
						mr := n.mr
						if j%regions == 1 {
							mr = other
						}
						n.wrs[i].SGL = append(n.wrs[i].SGL, mr.Slice(uint64(100*j), 8))
					}
				}
				n.round(b)
				b.ReportAllocs()
				for b.Loop() {
					n.round(b)
				}
				perRequest(b, 1)
			})
		}
	}
}

// BenchmarkNullPollOne polls 64 writes one by one, with PollOne and with a Poll for one; ns/request
// is for a write that was posted with the others and polled.
func BenchmarkNullPollOne(b *testing.B) {
	for _, rails := range []int{1, 4} {
		for _, call := range []string{"Poll", "PollOne"} {
			b.Run(fmt.Sprintf("%dqp/%s", rails, call), func(b *testing.B) {
				n := newNullPair(b, rails, ibverbx.DQPLB, verbs.OpRDMAWrite, 8, 8)
				n.round(b)
				cq := n.qp.CQ()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := n.qp.PostSend(n.wrs...); err != nil {
						b.Fatal(err)
					}
					for i := range n.wrs {
						if call == "PollOne" {
							if wc, ok, err := cq.PollOne(); !ok || wc.ID != n.wrs[i].ID {
								b.Fatal(wc, err)
							}
						} else if k, err := cq.Poll(n.wcs[:1]); k != 1 || n.wcs[0].ID != n.wrs[i].ID {
							b.Fatal(n.wcs[0], err)
						}
					}
				}
				perRequest(b, 1)
			})
		}
	}
}

// crowd is many virtual queue pairs on one virtual CQ of null devices.
type crowd struct {
	cq    *ibverbx.VirtualCQ
	qps   []*ibverbx.VirtualQP // in the order in which they were made
	wr    ibverbx.SendWR
	wcs   []ibverbx.WC
	bytes float64 // what one virtual queue pair holds
}

func newCrowd(tb testing.TB, size int, cfg ibverbx.Config) *crowd {
	tb.Helper()
	check := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	check(err)
	c := &crowd{wcs: make([]ibverbx.WC, benchBatch)}
	c.cq, err = dom.NewCQ(min(size*4096, 1<<22))
	check(err)
	before := heapBytes()
	for range size {
		qp, err := dom.NewQP(c.cq, cfg)
		check(err)
		card, err := qp.Card()
		check(err)
		check(qp.Connect(vqptest.Elsewhere(card)))
		c.qps = append(c.qps, qp)
	}
	c.bytes = float64(heapBytes()-before) / float64(size)
	mr, err := dom.Register(make([]byte, 4096), verbs.AccessAll)
	check(err)
	c.wr = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: mr.Slice(0, 8),
		Remote: mr.Remote().At(0)}
	return c
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (c *crowd) shuffle() {
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(c.qps), func(i, j int) { c.qps[i], c.qps[j] = c.qps[j], c.qps[i] })
}

// round lets 64 virtual queue pairs post one write each, next and those behind it, and polls. It
// returns whose turn is the next.
func (c *crowd) round(tb testing.TB, next int) int {
	for range benchBatch {
		if _, err := c.qps[next].PostSend(c.wr); err != nil {
			tb.Fatal(err)
		}
		if next++; next == len(c.qps) {
			next = 0
		}
	}
	for got := 0; got < benchBatch; {
		n, err := c.cq.Poll(c.wcs)
		if err != nil {
			tb.Fatal(err)
		}
		got += n
	}
	return next
}

// BenchmarkNullCrowd has many virtual queue pairs of four queue pairs each, all busy, on one CQ: in
// turn, each posts one write, and the CQ is polled after every 64. The turn goes in the order in
// which they were made or in a random one. KB/qp is the memory that a virtual queue pair holds,
// what the null provider holds for it included.
func BenchmarkNullCrowd(b *testing.B) {
	for _, size := range []int{1, 64, 1024, 4096} {
		for _, order := range []string{"sequential", "random"} {
			b.Run(fmt.Sprintf("%d/%s", size, order), func(b *testing.B) {
				c := newCrowd(b, size, ibverbx.Config{MaxMsgCntPerQP: 64, Credits: 64})
				if order == "random" {
					c.shuffle()
				}
				next := 0
				for range 2 * size / benchBatch {
					next = c.round(b, next)
				}
				b.ReportAllocs()
				for b.Loop() {
					next = c.round(b, next)
				}
				perRequest(b, 1)
				b.ReportMetric(c.bytes/1000, "KB/qp")
			})
		}
	}
}

// BenchmarkVirtualQPMemory makes virtual queue pairs with the default configuration on one CQ;
// KB/qp is as in [BenchmarkNullCrowd].
func BenchmarkVirtualQPMemory(b *testing.B) {
	const size = 64
	var bytes float64
	for b.Loop() {
		bytes = newCrowd(b, size, ibverbx.Config{}).bytes
	}
	b.ReportMetric(bytes/1000, "KB/qp")
}

// BenchmarkNullBalance is a write of one and of 16 fragments over 4 queue pairs, which take turns,
// and which share by ability: fragments too small to be measured, and such that are.
func BenchmarkNullBalance(b *testing.B) {
	for _, c := range []struct {
		name            string
		frags, fragment uint64
	}{{"small", 1, 4096}, {"small/16fragments", 16, 4096}, {"measured/16fragments", 16, 16 << 10}} {
		for _, balance := range []ibverbx.Balance{ibverbx.RoundRobin, ibverbx.ByAbility} {
			b.Run(c.name+"/"+balance.String(), func(b *testing.B) {
				n := newNullPairOf(b, ibverbx.Config{Balance: balance, QPsPerDevice: 4,
					FragmentSize: uint32(c.fragment), MaxMsgCntPerQP: benchDepth, Credits: benchDepth},
					verbs.OpRDMAWrite, c.frags*c.fragment)
				b.ReportAllocs()
				for i := 0; b.Loop(); i += benchBatch {
					n.round(b)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchBatch), "ns/request")
			})
		}
	}
}

// BenchmarkNullFailover is what it costs to offer failover while nothing fails.
func BenchmarkNullFailover(b *testing.B) {
	for _, c := range []struct {
		name   string
		scheme ibverbx.Scheme
		op     verbs.Opcode
		frags  uint64
	}{
		{"1fragment", ibverbx.DQPLB, verbs.OpRDMAWrite, 1},
		{"16fragments", ibverbx.DQPLB, verbs.OpRDMAWrite, 16},
		{"dqplb-imm", ibverbx.DQPLB, verbs.OpRDMAWriteWithImm, 1},
		{"spray-imm", ibverbx.Spray, verbs.OpRDMAWriteWithImm, 1},
		{"send", ibverbx.DQPLB, verbs.OpSend, 1},
	} {
		for _, failover := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/failover=%v", c.name, failover), func(b *testing.B) {
				n := newNullPairOf(b, ibverbx.Config{Scheme: c.scheme, Failover: failover, QPsPerDevice: 4,
					FragmentSize: 8, MaxMsgCntPerQP: 2 * benchDepth, Credits: 2 * benchDepth}, c.op,
					8*c.frags)
				n.round(b)
				b.ReportAllocs()
				for b.Loop() {
					n.round(b)
				}
				perRequest(b, c.frags)
			})
		}
	}
}

// countingCQ counts the calls that a virtual CQ makes.
type countingCQ struct {
	verbs.CQ
	polls, others int
}

func (c *countingCQ) Poll(wcs []verbs.WC) (int, error) {
	c.polls++
	return c.CQ.Poll(wcs)
}

func (c *countingCQ) Depth() int {
	c.others++
	return c.CQ.Depth()
}

func (c *countingCQ) Device() verbs.Device {
	c.others++
	return c.CQ.Device()
}

// A poll that finds nothing makes one call to each physical CQ. Each costs 2 ns and more, which
// programs that spin pay all the time.
func TestEmptyPollCallsEachCQOnce(t *testing.T) {
	p := verbstest.NewNull(3)
	var counting []*countingCQ
	var cqs []verbs.CQ
	for i := range 3 {
		cq, err := p.Device(i).CreateCQ(verbs.CQConfig{Depth: 1024})
		if err != nil {
			t.Fatal(err)
		}
		counting = append(counting, &countingCQ{CQ: cq})
		cqs = append(cqs, counting[i])
	}
	vcq, err := ibverbx.NewVirtualCQ(cqs...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range counting {
		counting[i].others = 0
	}
	if n, err := vcq.Poll(make([]ibverbx.WC, 8)); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	for i, cq := range counting {
		if cq.polls != 1 || cq.others != 0 {
			t.Errorf("CQ %d: %d polls and %d other calls, want one poll", i, cq.polls, cq.others)
		}
	}
}

// Programs describe memory to the peer once for each request, too.
func TestRemoteAllocatesNothing(t *testing.T) {
	n := newNullPair(t, 1, ibverbx.DQPLB, verbs.OpRDMAWrite, 8, 8)
	if allocs := testing.AllocsPerRun(100,
		func() { n.wrs[0].Remote = n.mr.Remote().Slice(8, 8) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// A virtual queue pair with the default configuration is small: a program may have thousands.
// 12 KB of it are of the five null queue pairs.
func TestVirtualQPIsSmall(t *testing.T) {
	c := newCrowd(t, 256, ibverbx.Config{})
	if c.bytes > 16_000 {
		t.Errorf("one holds %.1f KB", c.bytes/1000)
	}
	runtime.KeepAlive(c)
}
