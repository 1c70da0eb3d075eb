package rc

import (
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// bottleneck is a path that several flows share, in virtual time: a link with a queue before it
// that drops what does not fit, in one direction, and nothing but delay in the other.
type bottleneck struct {
	t     testing.TB
	rng   *rand.Rand
	now   int64
	flows []flow

	rate  float64 // bytes a second
	room  int     // bytes in the queue
	mark  int     // the queue marks what finds more bytes in it; 0 is never
	delay int64   // one way
	// The shares of packets that are lost, that arrive twice, and that are late by up to lateBy.
	loss, repeat, late float64
	lateBy             int64

	free    int64 // when the link has sent what is in the queue
	passed  int   // packets that the queue has taken
	dropped int   // by the queue
	marked  int   // by the queue
	deepest int   // bytes that were in the queue since it was last set to 0
	flight  parcelHeap
	spare   []*parcel
	order   uint64
}

// flow is a connection that sends as much as it may.
type flow interface {
	// transmit sends what may leave now.
	transmit(n *bottleneck)
	// receive takes a packet that has arrived: at the receiver, or back at the sender.
	receive(n *bottleneck, p *parcel)
	// deadline is when tick wants to be called.
	deadline() int64
	tick(n *bottleneck)
	// carried is how many bytes have arrived so far.
	carried() float64
	// stop ends the sending of anything new.
	stop()
}

// parcel is a packet of a flow on its way.
type parcel struct {
	at    int64
	order uint64
	flow  int
	back  bool // on its way back
	ect   bool // the queue may mark it
	ce    bool // it was marked

	header  wire.Header // of a connection of this package
	payload []byte
	tcp     segment // of TCP
}

// newBottleneck is a link with a queue of some bytes.
func newBottleneck(t testing.TB, rate float64, room int, delay int64) *bottleneck {
	return &bottleneck{t: t, rng: rand.New(rand.NewPCG(5, 5)), rate: rate, room: room, delay: delay, now: 1}
}

// bytesIn is what the link carries in a time.
func (n *bottleneck) bytesIn(time int64) float64 { return n.rate * float64(time) / 1e9 }

// parcel returns an empty packet.
func (n *bottleneck) parcel() *parcel {
	last := len(n.spare) - 1
	if last < 0 {
		return &parcel{}
	}
	p := n.spare[last]
	n.spare = n.spare[:last]
	*p = parcel{}
	return p
}

// carry puts a packet into the queue, or on its way back.
func (n *bottleneck) carry(p *parcel, size int) {
	at := n.now + n.delay
	if !p.back {
		backlog := int(n.bytesIn(max(n.free-n.now, 0)))
		n.deepest = max(n.deepest, backlog)
		if backlog+size > n.room {
			n.dropped++
			n.spare = append(n.spare, p)
			return
		}
		if n.mark != 0 && backlog > n.mark && p.ect {
			n.marked++
			p.ce = true
		}
		n.passed++
		n.free = max(n.free, n.now) + int64(float64(size)/n.rate*1e9)
		at = n.free + n.delay
	}
	if n.loss != 0 && n.rng.Float64() < n.loss {
		n.spare = append(n.spare, p)
		return
	}
	if n.late != 0 && n.rng.Float64() < n.late {
		at += n.rng.Int64N(n.lateBy)
	}
	if n.repeat != 0 && n.rng.Float64() < n.repeat {
		twin := n.parcel()
		*twin = *p
		n.put(twin, at)
	}
	n.put(p, at)
}

func (n *bottleneck) put(p *parcel, at int64) {
	n.order++
	p.at, p.order = at, n.order
	n.flight.push(p)
}

// run lets time pass. It returns the bytes that each flow has carried.
func (n *bottleneck) run(length int64) []float64 {
	carried := make([]float64, len(n.flows))
	for i, f := range n.flows {
		carried[i] = -f.carried()
		f.transmit(n)
	}
	for end := n.now + length; n.now < end; {
		when, timer := end, -1
		if len(n.flight) != 0 {
			when = min(end, n.flight[0].at)
		}
		for i, f := range n.flows {
			if at := f.deadline(); at < when {
				when, timer = at, i
			}
		}
		n.now = max(n.now, when)
		switch {
		case timer >= 0:
			n.flows[timer].tick(n)
			n.flows[timer].transmit(n)
		case n.now < end:
			p := n.flight.pop()
			n.flows[p.flow].receive(n, p)
			n.flows[p.flow].transmit(n)
			n.spare = append(n.spare, p)
		}
	}
	for i, f := range n.flows {
		carried[i] += f.carried()
	}
	return carried
}

// parcelHeap orders packets by the time at which they arrive.
type parcelHeap []*parcel

func (h parcelHeap) before(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}

func (h *parcelHeap) push(p *parcel) {
	l := append(*h, p)
	*h = l
	for i := len(l) - 1; i > 0; {
		up := (i - 1) / 2
		if !l.before(i, up) {
			return
		}
		l[i], l[up] = l[up], l[i]
		i = up
	}
}

func (h *parcelHeap) pop() *parcel {
	l := *h
	first, last := l[0], len(l)-1
	l[0], l[last] = l[last], nil
	l = l[:last]
	*h = l
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < last && l.before(down, least) {
				least = down
			}
		}
		if least == i {
			return first
		}
		l[i], l[least] = l[least], l[i]
		i = least
	}
}

// jumbo is the bytes of a request of a stream.
const jumbo = 64 << 10

// stream is a flow between two ends of this package, which writes without end.
type stream struct {
	id      int
	ends    [2]*end
	stopped bool
}

// add adds a stream of a shape.
func (n *bottleneck) add(s shape) *stream {
	s.mtu, s.timeout, s.memory, s.cqDepth, s.queueDepth = verbs.MTU4096, 16, jumbo, 512, 96
	s.rndSeed = uint64(len(n.flows))
	f := &stream{id: len(n.flows), ends: newNetwork(n.t, s.rndSeed, s).ends}
	for _, e := range f.ends {
		e.q.Enter(n.now, verbs.StateRTS)
	}
	n.flows = append(n.flows, f)
	return f
}

func (f *stream) carried() float64 {
	sq := &f.ends[0].q.SQ
	return float64(sq.Acked) * jumbo
}

func (f *stream) stop() { f.stopped = true }

func (f *stream) deadline() int64 { return min(f.ends[0].q.Deadline(), f.ends[1].q.Deadline()) }

func (f *stream) tick(n *bottleneck) {
	for _, e := range f.ends {
		if e.q.Deadline() <= n.now {
			e.q.Tick(n.now)
		}
	}
}

func (f *stream) receive(n *bottleneck, p *parcel) {
	e := f.ends[1]
	if p.back {
		e = f.ends[0]
	}
	p.header.Marked = p.ce
	e.q.Receive(n.now, &p.header, p.payload)
}

func (f *stream) transmit(n *bottleneck) {
	a, b := f.ends[0], f.ends[1]
	for _, wc := range a.poll() {
		if wc.Status != verbs.StatusSuccess {
			n.t.Errorf("stream %d after %d ms: %v", f.id, n.now/ms, wc.Status)
			f.stopped = true
		}
	}
	for !f.stopped && a.q.SQ.Posted-a.q.SQ.Acked < 80 {
		a.send(a.write(b, 1, jumbo))
	}
	for i, e := range f.ends {
		for more := true; more; {
			more = e.q.Transmit(n.now, &e.batch)
			for j := range e.batch.Packets() {
				f.carry(n, i == 1, &e.batch.packets[j])
			}
			e.batch.Reset()
		}
	}
}

// carry puts a packet on its way. Its payload stays where it is, unless that is the batch.
func (f *stream) carry(n *bottleneck, back bool, from *Packet) {
	p := n.parcel()
	p.flow, p.back, p.ect = f.id, back, true
	if !parse(from, &p.header) {
		n.t.Fatal("a packet that nobody can read")
	}
	if p.payload = from.Payload; len(p.payload) < 4096 {
		p.payload = append([]byte{}, p.payload...)
	}
	n.carry(p, len(from.Header)+len(from.Payload)+len(from.Trailer))
}
