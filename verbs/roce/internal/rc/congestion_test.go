package rc

import (
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// bottleneck is a path that several connections share: a link with a queue before it that drops
// what does not fit, in one direction, and nothing but delay in the other.
type bottleneck struct {
	t     testing.TB
	rng   *rand.Rand
	pairs []*network // each with its two ends; their own flight is not used
	now   int64

	rate  float64 // bytes a second
	room  int     // bytes in the queue
	delay int64   // one way
	loss  float64 // of packets, at random

	free    int64 // when the link has sent what is in the queue
	dropped int   // by the queue
	deepest int   // bytes that were in the queue since it was last set to 0
	flight  []passing
	sent    []int // requests completed, by connection
}

type passing struct {
	pair, to int
	at       int64
	bytes    []byte
}

const jumbo = 64 << 10 // bytes of a request

func newBottleneck(t testing.TB, connections int, rate float64, room int, delay int64, s shape) *bottleneck {
	n := &bottleneck{t: t, rng: rand.New(rand.NewPCG(5, 5)), rate: rate, room: room, delay: delay, now: 1,
		sent: make([]int, connections)}
	s.ours, s.mtu, s.timeout, s.memory, s.cqDepth = true, verbs.MTU4096, 16, jumbo, 512
	for i := range connections {
		s.rndSeed = uint64(i)
		n.pairs = append(n.pairs, newNetwork(t, uint64(i), s))
	}
	return n
}

// pump keeps a connection busy, and sends what its ends have to send.
func (n *bottleneck) pump(i int, busy bool) {
	p := n.pairs[i]
	a, b := p.ends[0], p.ends[1]
	for _, wc := range a.poll() {
		if wc.Status != verbs.StatusSuccess {
			n.t.Fatalf("connection %d: %v", i, wc.Status)
		}
		n.sent[i]++
	}
	for busy && a.q.SQ.Posted-a.q.SQ.Acked < 32 && a.q.MaySend() == nil {
		a.send(a.write(b, 1, jumbo))
	}
	for from, e := range p.ends {
		for _, b := range e.transmit(n.now) {
			n.carry(i, 1-from, b)
		}
	}
}

// carry puts a packet into the queue, or on its way back.
func (n *bottleneck) carry(pair, to int, b []byte) {
	size := len(b)
	at := n.now + n.delay
	if to == 1 {
		backlog := int(float64(max(n.free-n.now, 0)) * n.rate / 1e9)
		if n.deepest = max(n.deepest, backlog); backlog+size > n.room {
			n.dropped++
			return
		}
		n.free = max(n.free, n.now) + int64(float64(size)/n.rate*1e9)
		at = n.free + n.delay
	}
	if n.rng.Float64() < n.loss {
		return
	}
	n.flight = append(n.flight, passing{pair, to, at, b})
}

// run lets time pass. It returns the bytes that each connection has carried, in requests.
func (n *bottleneck) run(length int64, busy func(i int) bool) []float64 {
	from := append([]int(nil), n.sent...)
	for end := n.now + length; n.now < end; {
		when, first, timer := end, -1, -1
		for i := range n.pairs {
			n.pump(i, busy(i))
		}
		for i := range n.flight {
			if f := &n.flight[i]; f.at < when || first >= 0 && f.at == when && i < first {
				when, first = f.at, i
			}
		}
		for i, p := range n.pairs {
			for j, e := range p.ends {
				if at := e.q.Deadline(); at < when {
					when, timer, first = at, 2*i+j, -1
				}
			}
		}
		n.now = max(n.now, when)
		switch {
		case timer >= 0:
			n.pairs[timer/2].ends[timer%2].q.Tick(n.now)
		case first >= 0:
			f := n.flight[first]
			n.flight = append(n.flight[:first], n.flight[first+1:]...)
			var h wire.Header
			payload, err := wire.Parse(f.bytes, &h)
			if err != nil {
				n.t.Fatal(err)
			}
			n.pairs[f.pair].ends[f.to].q.Receive(n.now, &h, payload)
		}
	}
	carried := make([]float64, len(n.sent))
	for i := range carried {
		carried[i] = float64(n.sent[i]-from[i]) * jumbo
	}
	return carried
}

func always(int) bool { return true }

const (
	ms     = int64(1e6)
	gigabi = 125e6 // a gigabit, in bytes a second
)

// Connections that share a link fill it, and its queue no further than the target; they share it
// fairly, and yield where the queue is short. Random losses do not slow them down by much.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		name        string
		connections int
		room        int     // of the queue, bytes
		loss        float64 // at random
		before      func(n *bottleneck)
		link        float64 // the least share of the link that is used
		each        float64 // the least share of that for each
		queue       float64 // the most that waits, seconds; 0 is any
		dropped     float64 // the most of the packets that the queue drops
	}{
		{"alone", 1, 1 << 20, 0, func(n *bottleneck) { n.run(200*ms, always) }, 0.93, 1, 0.9e-3, 0},
		{"one comes later", 2, 1 << 20, 0, func(n *bottleneck) {
			n.run(300*ms, func(i int) bool { return i == 0 })
			n.run(700*ms, always)
		}, 0.93, 0.35, 1.2e-3, 1},
		{"random loss", 1, 1 << 20, 0.001, func(n *bottleneck) { n.run(200*ms, always) }, 0.85, 1, 0, 1},
		// A queue of 0.26 ms is shorter than the target.
		{"a short queue", 2, 32 << 10, 0, func(n *bottleneck) { n.run(300*ms, always) }, 0.7, 0, 0, 0.09},
		{"after a blackout", 1, 1 << 20, 0, func(n *bottleneck) {
			n.run(200*ms, always)
			n.loss = 1
			n.run(30*ms, always)
			n.loss = 0
			n.run(60*ms, always)
		}, 0.9, 1, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newBottleneck(t, c.connections, gigabi, c.room, 50_000, shape{})
			n.loss = c.loss
			c.before(n)
			n.deepest, n.dropped = 0, 0
			const length = 1000 * ms
			got := n.run(length, always)
			sum := 0.0
			for _, bytes := range got {
				sum += bytes
			}
			link, each := sum/gigabi/(float64(length)/1e9), slices.Min(got)/sum
			queue := float64(n.deepest) / gigabi
			dropped := float64(n.dropped) / (sum/4096 + float64(n.dropped))
			t.Logf("%.1f %% of the link, %.0f %% of that for each, %.0f µs in the queue, %.1f %% dropped",
				100*link, 100*each, 1e6*queue, 100*dropped)
			if link < c.link || each < c.each || c.queue != 0 && queue > c.queue || dropped > c.dropped {
				t.Errorf("want at least %v and %v, at most %v s and %v", c.link, c.each, c.queue, c.dropped)
			}
		})
	}
}
