package ibverbx_test

import (
	"runtime"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

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
