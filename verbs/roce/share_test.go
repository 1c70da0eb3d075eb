package roce

import (
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// crowd is many queue pairs from some NICs to one, which write to it without end.
type crowd struct {
	net   *network
	from  []*node
	to    *node
	qps   []*QP   // of the senders
	of    []*node // the sender that each belongs to
	done  []int   // writes that have completed, by queue pair
	total int
}

// crowdWrite is the size of a write.
const crowdWrite = 1 << 16

// newCrowd connects so many queue pairs from each sender to the last NIC of a network, whose socket
// holds room bytes.
func newCrowd(t testing.TB, senders, each, room int) *crowd {
	n := openVirtualNICs(t, Config{}, senders+1)
	for _, x := range n.nics {
		x.mtu, x.room, x.buffer = verbs.MTU4096, room, room
	}
	n.blind = true
	c := &crowd{net: n, to: newNode(t, n.nics[senders].Device, crowdWrite)}
	for _, x := range n.nics[:senders] {
		from := newNode(t, x.Device, crowdWrite)
		c.from = append(c.from, from)
		for range each {
			qp, peer := from.newQP(t), c.to.newQP(t)
			t.Cleanup(func() { must(t, qp.Close()); must(t, peer.Close()) })
			must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
			c.qps, c.of = append(c.qps, qp), append(c.of, from)
		}
	}
	c.done = make([]int, len(c.qps))
	return c
}

// run has each queue pair write, depth at a time, until so many writes are complete in all. It
// returns how long that took.
func (c *crowd) run(t testing.TB, writes, depth int) (took int64) {
	t.Helper()
	post := func(i int) {
		_, err := c.qps[i].PostSend([]verbs.SendWR{c.of[i].write(c.to, uint64(i), crowdWrite)})
		must(t, err)
	}
	began, end := c.net.now, c.total+writes
	for i := range c.qps {
		for range depth {
			post(i)
		}
	}
	var wcs [16]verbs.WC
	for c.total < end {
		c.net.step()
		for _, from := range c.from {
			k, err := from.cq.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:k] {
				must(t, wc.Status.Err())
				c.done[wc.ID]++
				c.total++
				post(int(wc.ID))
			}
		}
	}
	return c.net.now - began
}

// Many queue pairs write to one NIC, whose socket has the usual receive buffer: all of them get on
// alike, and almost nothing is lost for want of room.
func TestManyQueuePairs(t *testing.T) {
	count, writes := 1000, 8
	if testing.Short() {
		count = 200
	}
	const room = 4 << 20
	alone := newCrowd(t, 1, 1, room)
	one := alone.run(t, 2000, 32)
	c := newCrowd(t, 1, count, room)
	took := c.run(t, count*writes, 2)
	least, most := c.done[0], c.done[0]
	for _, n := range c.done {
		least, most = min(least, n), max(most, n)
	}
	s := c.from[0].dev.Counters()
	speed := float64(c.total) / float64(took) / (2000 / float64(one))
	t.Logf("%d queue pairs: %d to %d writes each, %.2f of what one reaches; %d of %d packets resent, "+
		"%d dropped, %d timeouts", count, least, most, speed, s.Resent, s.Sent, c.net.nics[1].dropped,
		s.Timeouts)
	if s.Resent*100 > s.Sent || least*2 < most || speed < 0.7 {
		t.Error("too many lost, or unfair, or slow")
	}
}
