package roce

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// writers is many queue pairs from some NICs to one, which write to it without end.
type writers struct {
	net   *network
	from  []*node
	to    *node
	qps   []*QP   // of the senders
	of    []*node // the sender that each belongs to
	done  []int   // writes that have completed, by queue pair
	total int
}

// writeSize is the size of a write.
const writeSize = 1 << 16

// newWriters connects so many queue pairs from each sender to the last NIC of a network, whose
// socket holds room bytes.
func newWriters(t testing.TB, senders, each, room int) *writers {
	n := openVirtualNICs(t, Config{}, senders+1)
	for _, x := range n.nics {
		x.room, x.buffer = room, room
		x.cfg.Window = min(1<<20, room)
	}
	n.blind = true
	c := &writers{net: n, to: newNode(t, n.nics[senders].Device, writeSize)}
	for _, x := range n.nics[:senders] {
		from := newNode(t, x.Device, writeSize)
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
func (c *writers) run(t testing.TB, writes, depth int) (took int64) {
	t.Helper()
	began, end := c.net.now, c.total+writes
	for i := range c.qps {
		for range depth {
			c.post(t, i)
		}
	}
	for c.total < end {
		c.step(t)
	}
	return c.net.now - began
}

func (c *writers) post(t testing.TB, i int) {
	_, err := c.qps[i].PostSend([]verbs.SendWR{c.of[i].write(c.to, uint64(i), writeSize)})
	must(t, err)
}

// step lets one thing happen, and has those go on whose writes are complete.
func (c *writers) step(t testing.TB) {
	var wcs [16]verbs.WC
	c.net.step()
	for _, from := range c.from {
		k, err := from.cq.Poll(wcs[:])
		must(t, err)
		for _, wc := range wcs[:k] {
			must(t, wc.Status.Err())
			c.done[wc.ID]++
			c.total++
			c.post(t, int(wc.ID))
		}
	}
}

var (
	queuePairsFlag = flag.Int("queue-pairs", 100, "queue pairs of TestManyQueuePairs that share a slow link")
	sendersFlag    = flag.Int("senders", 0, "NICs of TestManyQueuePairs that share a slow link; 0: none do")
	eachFlag       = flag.Int("each", 10, "queue pairs of each")
	queueFlag      = flag.Int("queue", 100, "packets in the queue of that link")
	lostFlag       = flag.Int("lost", 3, "percent of the packets that TestRandomLoss loses")
)

// Many queue pairs write to one NIC, whose socket has the usual receive buffer, from one NIC or
// from many: all of them progress alike, and almost nothing is lost for want of room once all have
// begun. So they do if the NIC takes time to receive, and windows shrink because packets wait in
// its buffer, and if a link on the way is slow and its queue holds less than their windows.
func TestManyQueuePairs(t *testing.T) {
	const room = 4 << 20
	perhaps := max(*sendersFlag**eachFlag, 1)
	for _, of := range []struct {
		senders, each, room int
		latency, pace       time.Duration
		queue               int // packets, before a link of 1 Gb/s; 0 for no such link
		first, writes       int // before and while it is looked at, of each
	}{
		{1, 1000, room, 5 * time.Microsecond, 0, 0, 0, 8},
		{1, 500, room, 5 * time.Microsecond, 3 * time.Microsecond, 0, 8, 8},
		{40, 1, room * 40 / 100, 100 * time.Microsecond, 0, 0, 40, 60}, // as 100 with all of it
		{20, 10, room, 100 * time.Microsecond, 0, 0, 5, 20},
		{1, *queuePairsFlag, room, 50 * time.Microsecond, 0, *queueFlag, 1000 / *queuePairsFlag, 8},
		{*sendersFlag, *eachFlag, room, 50 * time.Microsecond, 0, *queueFlag, 2000 / perhaps,
			5600 / perhaps}, // some three seconds
	} {
		t.Run(fmt.Sprintf("%d of %d, queue %d", of.each, of.senders, of.queue), func(t *testing.T) {
			narrow := func(c *writers) {
				c.net.plan.Latency, c.net.pace = of.latency, of.pace
				if to := c.net.nics[len(c.from)]; of.queue != 0 {
					to.rate, to.queue = 125e6, of.queue*4200
				}
			}
			if of.senders == 0 {
				t.Skip("takes -args -senders 20")
			}
			if testing.Short() {
				of.each, of.senders, of.room = (of.each+4)/5, (of.senders+1)/2, of.room/2
			}
			alone := newWriters(t, 1, 1, room)
			narrow(alone)
			one := alone.run(t, 500, 32)
			c := newWriters(t, of.senders, of.each, of.room)
			narrow(c)
			c.run(t, of.first*len(c.qps), 2)
			before, done := c.counted(), slices.Clone(c.done)
			took := c.run(t, of.writes*len(c.qps), 0)
			s := c.counted()
			least, most := of.writes, 0
			for i, n := range c.done {
				least, most = min(least, n-done[i]), max(most, n-done[i])
			}
			resent, sent := s.Resent-before.Resent, s.Sent-before.Sent
			speed := float64(of.writes*len(c.qps)) / float64(took) / (500 / float64(one))
			t.Logf("%d to %d writes each, %.2f of what one reaches; %d of %d packets resent, %d dropped, "+
				"%d timeouts, %d ms", least, most, speed, resent, sent, c.net.nics[of.senders].dropped,
				s.Timeouts, c.net.now/1e6)
			tolerated := sent / 100
			if of.queue != 0 {
				tolerated = sent / 50
			}
			if resent > tolerated || least*2 < most || speed < 0.7 {
				t.Error("too many lost, or unfair, or slow")
			}
		})
	}
}

// Most of the NICs that begin at once find no room in the queue before a slow link, and hear
// nothing for long; yet no request fails.
func TestManyBegin(t *testing.T) {
	c := newWriters(t, 20, 10, 4<<20)
	c.net.plan.Latency = 50 * time.Microsecond
	to := c.net.nics[20]
	to.rate, to.queue = 125e6, 100*4200
	c.run(t, 1200, 2) // 0.6 seconds
	t.Logf("%d ms", c.net.now/1e6)
}

// A network that loses packets at random would lose as many of fewer: the budget leaves it full.
func TestRandomLoss(t *testing.T) {
	const rate, writes = 1.25e9, 1500
	c := newWriters(t, 1, 64, 4<<20)
	c.net.plan.Latency, c.net.plan.Lose = 50*time.Microsecond, float64(*lostFlag)/100
	to := c.net.nics[1]
	to.rate, to.queue = rate, math.MaxInt
	c.run(t, 600, 2)
	took := c.run(t, writes, 0)
	full := writes * writeSize / float64(took) * 1e9 / rate
	t.Logf("%.2f of the link, %d ms", full, c.net.now/1e6)
	if full < 0.6 && *lostFlag <= 3 || full < 0.4 && *lostFlag <= 10 {
		t.Error("slow")
	}
}

// Where a queue marks packets, queue pairs whose windows are as small as they can be take fewer
// turns at a time, until it does not mark most of them.
func TestManyMarked(t *testing.T) {
	c := newWriters(t, 1, 100, 4<<20)
	c.net.plan.Latency = 50 * time.Microsecond
	to := c.net.nics[1]
	to.rate, to.queue, to.mark = 125e6, 400*4200, 65*4200
	c.run(t, 300, 2)
	sent, marked, dropped := c.counted().Sent, to.Counters().Marked, to.dropped
	c.run(t, 600, 0)
	sent, marked, dropped = c.counted().Sent-sent, to.Counters().Marked-marked, to.dropped-dropped
	t.Logf("%d of %d packets are marked, %d dropped", marked, sent, dropped)
	if marked*10 > sent || dropped != 0 {
		t.Error("too many")
	}
}

// counted is what the senders have counted, in all.
func (c *writers) counted() (all Counters) {
	for _, from := range c.from {
		s := from.dev.Counters()
		all.Sent += s.Sent
		all.Resent += s.Resent
		all.Timeouts += s.Timeouts
	}
	return all
}

// The budget starts with some turns and doubles until packets are lost, or again with one packet if
// nothing has come back. Of several NICs, each loses a part with each packet.
func TestBudgetOfSeveral(t *testing.T) {
	const limit, cost = 64 * 4096, 4096 // least is 8 packets
	b := budget{bytes: leastBudget, starts: true}
	for i, c := range []struct{ arrived, missed, left int }{
		{0, 1, 32},
		{0, 1, 1},
		{1, 0, 2},
		{2, 0, 4},
		{12, 1, 16},
		{30, 0, 46},
		{5, 0, 51},
		{0, 1, 47},
		{10, 0, 47},
		{0, 8, 23},
		{0, 16, 8},
		{8 * severalGrow / 8, 0, 16},
		{0, 100, 8},
	} {
		b.add(limit, limit, cost, c.arrived, c.missed)
		if left := b.of(limit) / cost; left != c.left {
			t.Fatalf("step %d: %d packets are left, want %d", i, left, c.left)
		}
	}
	fewer, more := budget{bytes: 4 * cost}, budget{bytes: 12 * cost}
	for range 1000 { // each sends what it has, and loses one packet of 64
		for _, b := range []*budget{&fewer, &more} {
			b.add(limit/8, limit, cost, 63*b.bytes/cost, b.bytes/cost)
		}
	}
	if d := more.bytes - fewer.bytes; d < -cost/2 || d > cost/2 {
		t.Errorf("%d bytes and %d", fewer.bytes, more.bytes)
	}
	b = budget{bytes: leastBudget, starts: true}
	b.add(limit, 0, cost, 32, 0)
	if b != (budget{}) {
		t.Errorf("at the limit: %+v", b)
	}
	if b.add(limit/8, 0, cost, 1000, 0); b != (budget{}) {
		t.Errorf("nothing is lost: %+v", b)
	}
}

// Where a NIC has only a few packets for several queue pairs, it has as many bytes under way as its
// budget says, on average: not the packets that fit.
func TestBudgetInPackets(t *testing.T) {
	const limit, cost, packets = 8 * 4096, 4096, 2000
	for _, lose := range []int{30, 64, 200} { // a packet of so many
		b := budget{bytes: 2 * cost}
		var trips, bytes float64 // round trips, and the sum of the budgets in each
		for i := range packets {
			b.add(limit, 0, cost, 1, i%lose/(lose-1))
			trip := cost / float64(b.inPackets(limit)/cost*cost)
			trips, bytes = trips+trip, bytes+trip*float64(b.bytes)
		}
		got, want := packets/trips, bytes/trips/cost
		if got < want*0.97 || got > want*1.03 {
			t.Errorf("%.2f packets under way, the budget is %.2f", got, want)
		}
	}
}

// With the usual limit of the kernel a window is as large as the receive buffer: many queue pairs
// still use half of the buffer, and one that is alone all of its window.
func TestShareOfSmallBuffer(t *testing.T) {
	const room = 212992
	alone := newWriters(t, 1, 1, room)
	most := 0
	for range 64 {
		_, err := alone.qps[0].PostSend([]verbs.SendWR{alone.of[0].write(alone.to, 0, writeSize)})
		must(t, err)
	}
	for alone.net.Movable() != 0 {
		alone.net.step()
		most = max(most, alone.qps[0].underWay)
	}
	if most <= room/2 {
		t.Errorf("a queue pair that is alone has %d bytes under way at most", most)
	}
	c := newWriters(t, 1, 20, room)
	c.run(t, 20*16, 2)
	if used := c.qps[0].path.share.used; used > room/2 || c.net.nics[1].dropped != 0 {
		t.Errorf("%d bytes are under way, %d packets dropped", used, c.net.nics[1].dropped)
	}
}

// A completion queue overruns, and takes a queue pair with it that has the room for which another
// one waits.
func TestShareOfOverrun(t *testing.T) {
	n := openVirtualNICs(t, Config{}, 3)
	for _, x := range n.nics {
		x.buffer = 2 * turn * 4096
	}
	size := 1 << 20
	from, x, y := newNode(t, n.nics[0].Device, size), newNode(t, n.nics[1].Device, size),
		newNode(t, n.nics[2].Device, size)
	small, err := from.dev.CreateCQ(verbs.CQConfig{Depth: 1})
	must(t, err)
	defer small.Close()
	connect := func(cq verbs.CQ, to *node) *QP {
		qp, err := from.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
		must(t, err)
		peer := to.newQP(t)
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
		t.Cleanup(func() { must(t, peer.Close()) })
		return qp.(*QP)
	}
	a, b, c := connect(small, x), connect(small, y), connect(from.cq, y)
	defer c.Close()
	defer b.Close()
	defer a.Close()
	heal := n.nics[2].Lose(true, false, 0)
	post := func(qp *QP, to *node, size int) {
		_, err := qp.PostSend([]verbs.SendWR{from.write(to, 1, size)})
		must(t, err)
	}
	post(b, y, size)
	post(c, y, size)
	if !c.waits || c.underWay != 0 {
		t.Fatalf("waits: %v, %d bytes under way", c.waits, c.underWay)
	}
	for range 4 {
		post(a, x, 64)
	}
	for b.core.State != verbs.StateErr {
		n.step()
	}
	heal()
	must(t, n.await(t, from).Status.Err())
}

// Those that wait for a turn when the send buffer is full still take turns when it has room again.
func TestShareOfBacklog(t *testing.T) {
	n := openVirtualNICs(t, Config{Strict: true}, 2) // the network marks no packet of foreign ends
	const size = 1 << 20
	for _, x := range n.nics {
		x.buffer = 2 * 3 * turn * 4096 // room for three turns
	}
	from, to := newNode(t, n.nics[0].Device, size), newNode(t, n.nics[1].Device, size)
	var qps []*QP
	for range 4 {
		qp, peer := from.newQP(t), to.newQP(t)
		t.Cleanup(func() { must(t, qp.Close()); must(t, peer.Close()) })
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
		qps = append(qps, qp)
	}
	post := func(qp *QP) {
		_, err := qp.PostSend([]verbs.SendWR{from.write(to, 1, size)})
		must(t, err)
	}
	post(qps[0])
	for qps[0].underWay <= 2*turn*4096 { // until its window is large
		must(t, n.await(t, from).Status.Err())
		post(qps[0])
	}
	for _, qp := range qps[1:] {
		post(qp)
	}
	s := &from.dev.sender
	for _, qp := range qps[1:] {
		if !qp.waits {
			t.Fatalf("a queue pair finds room beside the first, which has %d bytes under way",
				qps[0].underWay)
		}
	}
	g := newGate(from.dev, 0, 0)
	for len(s.backlog) == 0 || qps[0].path.share.used > turn*4096 {
		n.step()
	}
	g.open(plenty)
	for len(s.backlog) != 0 {
		n.step()
	}
	if x := qps[0].path.share; qps[0].underWay != 0 || x.used <= x.limit-turn*4096 {
		t.Errorf("%d bytes of %d are under way, %d of the one whose turn is the last", x.used, x.limit,
			qps[0].underWay)
	}
	for range qps {
		must(t, n.await(t, from).Status.Err())
	}
}

// A queue pair leaves while the send buffer is full of packets for another peer: those that waited
// for its room get it when the buffer has room again.
func TestShareLeftInBacklog(t *testing.T) {
	n := openVirtualNICs(t, Config{}, 3)
	for _, x := range n.nics {
		x.buffer = 2 * turn * 4096
	}
	const size = 1 << 20
	pair := newNodes(t, n.nics[0].Device, n.nics[1].Device, size)
	from, x, y := pair[0], pair[1], newNode(t, n.nics[2].Device, size)
	var qps [2]*QP
	for i := range qps {
		qp, peer := from.newQP(t), y.newQP(t)
		t.Cleanup(func() { must(t, peer.Close()) })
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
		_, err := qp.PostSend([]verbs.SendWR{from.write(y, 1, size)})
		must(t, err)
		qps[i] = qp
	}
	defer qps[1].Close()
	if !qps[1].waits {
		t.Fatal("the second queue pair finds room")
	}
	g := newGate(from.dev, 0, 0)
	from.post(t, from.write(x, 2, 64))
	must(t, qps[0].Close())
	if s := &from.dev.sender; len(s.backlog) == 0 || len(s.waiting) != 0 || qps[1].underWay != 0 {
		t.Fatalf("%d packets and %d queue pairs wait for the socket", len(s.backlog), len(s.waiting))
	}
	g.open(plenty)
	for len(from.dev.sender.backlog) != 0 {
		n.step()
	}
	if qps[1].underWay == 0 {
		t.Error("the socket has room again, and nothing is sent")
	}
	for range 2 {
		must(t, n.await(t, from).Status.Err())
	}
}

// A queue pair whose peer is dead keeps no other one waiting.
func TestShareOfDeadPeer(t *testing.T) {
	n := openVirtualNICs(t, Config{}, 2)
	const size = 1 << 20
	for _, x := range n.nics {
		x.buffer = 4 << 20
	}
	from, to := newNode(t, n.nics[0].Device, size), newNode(t, n.nics[1].Device, size)
	for i := range 5 {
		qp, peer := from.newQP(t), to.newQP(t)
		t.Cleanup(func() { must(t, qp.Close()); must(t, peer.Close()) })
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1}))
		if i < 4 {
			must(t, peer.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState))
		}
		_, err := qp.PostSend([]verbs.SendWR{from.write(to, uint64(i), size)})
		must(t, err)
	}
	began := n.now
	if wc := n.await(t, from); wc.ID != 4 || wc.Status != verbs.StatusSuccess || n.now-began > 10e6 {
		t.Errorf("after %d µs: %v", (n.now-began)/1000, wc)
	}
}

// A grant below half of the own buffer bounds a queue pair that is alone too, until the peer grants
// more, or has not confirmed it for long.
func TestGrant(t *testing.T) {
	now := int64(1)
	d := &Device{crowd: crowd{own: 1 << 20}, clock: func() int64 { return now }}
	q := &QP{dev: d, cost: leastCost, engine: rc.New(rc.Config{QP: &nic.QP{}})}
	s := share{limit: 1 << 20}
	for i, c := range []struct {
		after   int64
		granted int // KiB; 0 if nothing comes
		limit   int
		room    int
	}{
		{0, 0, 1 << 20, math.MaxInt},
		{0, 1 << 10, 1 << 20, math.MaxInt},
		{0, 100, 96 << 10, 192},
		{0, 1, leastGrant, 16},
		{0, 2 << 10, 1 << 20, math.MaxInt},
		{0, 16, 16 << 10, 32},
		{grantLasts, 16, 16 << 10, 32},
		{grantLasts, 0, 16 << 10, 32},
		{1, 0, 1 << 20, math.MaxInt},
	} {
		now += c.after
		if c.granted != 0 {
			s.grant(q, now, wire.AckCredits(c.granted))
		}
		s.note(q)
		if s.limit != c.limit || s.room(q) != c.room {
			t.Errorf("step %d: limit %d, room for %d; want %d and %d", i, s.limit, s.room(q), c.limit, c.room)
		}
	}
}

// A grant below what several queue pairs have under way is the cut for that: its losses take
// nothing more. One that is alone may have more under way than its part.
func TestGrantCuts(t *testing.T) {
	const cost = 4096
	d := &Device{crowd: crowd{own: 1 << 20}}
	for _, c := range []struct {
		others int
		left   [2]int // after a flight that was under way, and one more
	}{{50 * cost, [2]int{16, 2}}, {0, [2]int{2, 2}}} {
		q := &QP{dev: d, cost: cost, underWay: 50 * cost}
		s := share{limit: 1 << 20, used: q.underWay + c.others}
		s.grant(q, 1, wire.AckCredits(16*cost>>10))
		for i, want := range c.left {
			s.budget.add(s.limit, s.used, cost, 20, 80)
			if left := s.budget.of(s.limit) / cost; left != want {
				t.Errorf("%d bytes of others, flight %d: %d packets left, want %d", c.others, i, left, want)
			}
		}
	}
}

// Losses of more than 2 % in a round take a part of the limit if a queue delays all of its
// packets, or if they are heavy: once for all that was under way, and down to two turns. Other
// rounds give it back.
func TestBudget(t *testing.T) {
	const limit, cost = 400 * 4096, 4096
	var b budget
	for i, c := range []struct {
		used, arrived, missed int
		rtt                   int64
		left                  int
	}{
		{400, 10000, 10, 100, 400},
		{400, 400, 11, 151, 400},
		{400, 101, 0, 151, 280},
		{280, 0, 300, 151, 280}, // was under way before
		{280, 100, 0, 151, 280}, // so was this
		{280, 501, 11, 150, 282},
		{280, 501, 11, 200, 196},
		{50, 280, 0, 200, 196},
		{50, 0, 80, 100, 196},
		{50, 0, 1, 200, 68}, // of what was used, or half
		{68, 50, 0, 100, 68},
		{68, 0, 81, 100, 47},
		{47, 68, 0, 100, 47},
		{47, 0, 81, 100, 32},
		{32, 47, 0, 100, 32},
		{32, 0, 400, 100, 32},
		{32, 32, 0, 100, 32},
		{32, 511, 0, 100, 32},
		{32, 1, 0, 100, 34},
		{34, 502, 10, 200, 36},
	} {
		b.took(c.rtt)
		b.add(limit, c.used*cost, cost, c.arrived, c.missed)
		if left := b.of(limit) / cost; left != c.left {
			t.Fatalf("step %d: %d packets are left, want %d", i, left, c.left)
		}
	}
	for range (400 - 36) / budgetGrows {
		b.add(limit, 32*cost, cost, budgetRound, 0)
	}
	if b != (budget{base: 100}) || b.of(64<<10) != 64<<10 {
		t.Errorf("after many rounds without losses: %+v", b)
	}
	for _, c := range []struct {
		rtt  int64
		left int
	}{{10e6 + longer, 400}, {10e6 + longer + 1, 280}} {
		b = budget{base: 10e6, shortest: c.rtt}
		if b.add(limit, limit, cost, 501, 11); b.of(limit)/cost != c.left {
			t.Errorf("%d ns on a long path: %d packets are left, want %d", c.rtt, b.of(limit)/cost, c.left)
		}
	}
}

// The rest of a turn comes before the turns of others, and needs no more room than there ever is.
func TestRestOfTurn(t *testing.T) {
	s := share{limit: 1 << 20}
	fresh := &QP{cost: leastCost}
	five, three := &QP{cost: leastCost, left: 5}, &QP{cost: leastCost, left: 3}
	s.wait(fresh)
	s.wait(five)
	if s.next() != five {
		t.Error("another one's turn comes before the rest of one")
	}
	s.wait(three)
	if s.next() != three || s.next() != fresh {
		t.Error("wrong order")
	}
	if n := s.turnOf(five); n != 5 || s.turnOf(fresh) != turn {
		t.Errorf("%d packets are left of a turn, want 5; a whole one has %d", n, s.turnOf(fresh))
	}
	if s.limit = leastGrant; s.turnOf(five) != 4 {
		t.Errorf("%d packets of a turn need room at once, half of the limit is 4", s.turnOf(five))
	}
}

// A queue pair that is alone may use all of its share, unless another one waits.
func TestAloneInShare(t *testing.T) {
	q := &QP{cost: leastCost, underWay: 1 << 10}
	s := share{limit: 1 << 20, used: 1 << 10}
	if s.room(q) != math.MaxInt {
		t.Errorf("room for %d", s.room(q))
	}
	s.wait(&QP{})
	if room := s.room(q); room != 1<<10-1 {
		t.Errorf("room for %d while another waits", room)
	}
}

// Two queue pairs with short packets leave a budget of one of them, since their peers are dead. Two
// others, whose packets are longer, send nevertheless.
func TestPacketLongerThanTheBudget(t *testing.T) {
	const size = 64 << 10
	n := openVirtualNICs(t, Config{}, 2)
	for _, x := range n.nics {
		x.buffer = 4 << 20
	}
	from, to := newNode(t, n.nics[0].Device, size), newNode(t, n.nics[1].Device, size)
	open := func(mtu verbs.MTU) (qp, peer verbs.QP) {
		qp, peer = from.newQP(t), to.newQP(t)
		t.Cleanup(func() { must(t, qp.Close()); must(t, peer.Close()) })
		must(t, verbstest.Connect(qp, peer, verbstest.ConnectConfig{Port: 1,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.PathMTU, attr.RetryCount = mtu, 3 }}))
		return qp, peer
	}
	post := func(qp verbs.QP, id uint64) {
		_, err := qp.PostSend([]verbs.SendWR{from.write(to, id, size)})
		must(t, err)
	}
	longer := []verbs.QP{}
	for id := range uint64(2) {
		qp, peer := open(verbs.MTU1024)
		must(t, peer.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState))
		post(qp, id)
		qp, _ = open(verbs.MTU4096)
		longer = append(longer, qp)
	}
	s := longer[0].(*QP).path.share
	for s.budget.bytes >= 4096 {
		n.step()
	}
	for i, qp := range longer {
		post(qp, uint64(2+i))
	}
	for got, wcs := 0, make([]verbs.WC, 4); got < 4; {
		if n.Movable() == 0 {
			t.Fatalf("nothing moves: %d bytes are under way, the budget is %d", s.used, s.budget.bytes)
		}
		n.step()
		k, err := from.cq.Poll(wcs)
		must(t, err)
		for _, wc := range wcs[:k] {
			if failed := wc.Status == verbs.StatusRetryExcErr; failed != (wc.ID < 2) {
				t.Errorf("request %d: %v", wc.ID, wc.Status)
			}
		}
		got += k
	}
}
