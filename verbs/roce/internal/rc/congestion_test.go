package rc

import (
	"fmt"
	"slices"
	"testing"
)

const (
	us     = int64(1e3)
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
		{"alone", 1, 1 << 20, 0, func(n *bottleneck) { n.run(200 * ms) }, 0.93, 1, 0.9e-3, 0},
		{"one comes later", 1, 1 << 20, 0, func(n *bottleneck) {
			n.run(300 * ms)
			n.add(shape{ours: true})
			n.run(700 * ms)
		}, 0.93, 0.35, 1.2e-3, 1},
		{"random loss", 1, 1 << 20, 0.001, func(n *bottleneck) { n.run(200 * ms) }, 0.85, 1, 0, 1},
		// A queue of 0.26 ms is shorter than the target.
		{"a short queue", 2, 32 << 10, 0, func(n *bottleneck) { n.run(300 * ms) }, 0.7, 0, 0, 0.09},
		{"after a blackout", 1, 1 << 20, 0, func(n *bottleneck) {
			n.run(200 * ms)
			n.loss = 1
			n.run(30 * ms)
			n.loss = 0
			n.run(60 * ms)
		}, 0.9, 1, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newBottleneck(t, gigabi, c.room, 50*us)
			for range c.connections {
				n.add(shape{ours: true})
			}
			n.loss = c.loss
			c.before(n)
			n.deepest, n.dropped = 0, 0
			const length = 1000 * ms
			got := n.run(length)
			sum := 0.0
			for _, bytes := range got {
				sum += bytes
			}
			link, each := sum/n.bytesIn(length), slices.Min(got)/sum
			queue := float64(n.deepest) / n.rate
			dropped := float64(n.dropped) / (sum/4096 + float64(n.dropped))
			t.Logf("%.1f %% of the link, %.0f %% of that for each, %.0f µs in the queue, %.1f %% dropped",
				100*link, 100*each, 1e6*queue, 100*dropped)
			if link < c.link || each < c.each || c.queue != 0 && queue > c.queue || dropped > c.dropped {
				t.Errorf("want at least %v and %v, at most %v s and %v", c.link, c.each, c.queue, c.dropped)
			}
		})
	}
}

// Beside a flow of TCP a connection has its share, and leaves TCP one; when TCP is gone, the queue
// is too.
func TestBesideCubic(t *testing.T) {
	for _, c := range []struct {
		name   string
		gbits  float64
		queue  int64
		length int64
	}{
		{"1 Gb/s and 2 ms", 1, 2 * ms, 3000 * ms},
		{"1 Gb/s and 8 ms", 1, 8 * ms, 3000 * ms},
		{"10 Gb/s and 2 ms", 10, 2 * ms, 1000 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			if t.Parallel(); !*printTable && c.gbits > 1 {
				t.Skip("half a million packets: -args -table")
			}
			n := newBottleneck(t, c.gbits*gigabi, int(c.gbits*gigabi*float64(c.queue)/1e9), 50*us)
			n.add(shape{ours: true, window: 4 << 20})
			other := n.addCubic()
			n.run(1500 * ms)
			carried := n.run(c.length)
			if share := carried[0] / (carried[0] + carried[1]); share < 0.25 || share > 0.6 {
				t.Errorf("%.2f of what both carry, want 0.25 to 0.6", share)
			}
			other.stop()
			n.run(700 * ms)
			n.deepest = 0
			n.run(100 * ms)
			if queue := float64(n.deepest) / n.rate; queue > 0.9e-3 {
				t.Errorf("%.2f ms in the queue after TCP, want 0.9", 1e3*queue)
			}
		})
	}
}

// A path that becomes longer is filled again within two seconds.
func TestLongerPath(t *testing.T) {
	for _, delay := range []int64{1, 2, 5, 20} {
		t.Run(fmt.Sprintf("%d ms", delay), func(t *testing.T) {
			if t.Parallel(); !*printTable && delay != 2 {
				t.Skip("a quarter of a million packets: -args -table")
			}
			n := newBottleneck(t, gigabi, int(gigabi*8/1000), 50*us)
			n.add(shape{ours: true, window: 4 << 20})
			n.run(500 * ms)
			n.delay = delay * ms / 2
			n.run(2000 * ms)
			if link := n.run(500 * ms)[0] / n.bytesIn(500*ms); link < 0.8 {
				t.Errorf("%.2f of the link, want 0.8", link)
			}
		})
	}
}

// Towards a foreign end losses make the window yield, and no others do.
func TestForeignWindow(t *testing.T) {
	for _, c := range []struct {
		gbits, loss, link float64
		length            int64
	}{
		{1, 0, 0.93, 1000 * ms}, {1, 0.0001, 0.92, 1000 * ms}, {1, 0.001, 0.89, 1000 * ms},
		{10, 0, 0.98, 300 * ms}, {10, 0.0001, 0.92, 300 * ms}, {10, 0.001, 0.89, 1000 * ms},
	} {
		t.Run(fmt.Sprintf("%v Gb/s, %v %% lost", c.gbits, 100*c.loss), func(t *testing.T) {
			if t.Parallel(); !*printTable && c.gbits > 1 {
				t.Skip("half a million packets: -args -table")
			}
			n := newBottleneck(t, c.gbits*gigabi, int(c.gbits*gigabi*2/1000), 50*us)
			n.add(shape{})
			n.loss = c.loss
			n.run(200 * ms)
			if link := n.run(c.length)[0] / n.bytesIn(c.length); link < c.link {
				t.Errorf("%.2f of the link, want %v", link, c.link)
			}
			if dropped := float64(n.dropped) / float64(n.passed+n.dropped); dropped > 0.03 {
				t.Errorf("the queue drops %.2f of the packets", dropped)
			}
		})
	}
}

// A loss that shows in a slowdown takes from the window that comes after it.
func TestLossInSlowdown(t *testing.T) {
	var w window
	w.start(1024, 1<<20)
	for now := int64(1000); now <= 100_000; now += 1000 {
		w.arrived(now, 100*us+now, 10, 1) // a queue that grows, and is shorter than the target
	}
	w.packets = 100
	w.beginSlowdown(200_000)
	w.missed(5, 50)
	if before := w.slowdown.before; before != 100*shrink {
		t.Errorf("the window is %v after the slowdown, want %v", before, 100*shrink)
	}
}

// A packet that waits to be sent again, for tokens or for room in the socket, is not probed.
func TestNoProbeOfWhatWaits(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours})
		a, b := n.ends[0], n.ends[1]
		a.send(a.write(b, 1, 64))
		n.leaving(0)
		a.q.markLost(a.q.req.una)
		foreign, own := a.q.req.foreign.packets, a.q.req.window.packets
		for range 5 {
			a.q.Tick(a.q.req.timers.probeAt)
		}
		if s := a.q.Stats(); s.Probes != 0 || a.q.req.foreign.packets != foreign ||
			a.q.req.window.packets != own {
			t.Errorf("%d probes, windows of %v and %v packets", s.Probes, a.q.req.foreign.packets,
				a.q.req.window.packets)
		}
	})
}
