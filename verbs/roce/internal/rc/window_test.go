package rc

import (
	"math"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// newTestWindow returns a window of 100 packets behind its slow start, on a path of 0.1 ms.
func newTestWindow() *window {
	w := &window{}
	w.start(1024, 1<<20)
	w.packets, w.slowStart = 100, false
	w.path.add(1, 100*us)
	return w
}

// want compares a window with what it must be.
func want(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6 {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestWindowFollows(t *testing.T) {
	w := newTestWindow()
	w.roundMin, w.losses, w.lossRate = 100*us, 1, 0.01
	w.follow(ms)
	want(t, "1 % lost", w.packets, 101)
	w = newTestWindow()
	w.roundMin, w.losses, w.lossRate, w.slowStart = 100*us, 1, 0.03, true
	w.follow(ms)
	want(t, "3 % lost", w.packets, 70)
	if w.slowStart {
		t.Error("3 % are lost, and the slow start goes on")
	}
	w = newTestWindow()
	w.slowStart, w.roundEnd, w.roundMin = true, 1, 3*w.path.target()
	w.endRound(ms)
	want(t, "a long delay", w.packets, 50)
	if w.rounds != slowdownEvery-slowdownFirst {
		t.Errorf("after the slow start, %d rounds until a slowdown, want %d", slowdownEvery-w.rounds,
			slowdownFirst)
	}
	w = newTestWindow()
	w.collapse(7)
	want(t, "nothing comes back", w.packets, minWindow)
}

// The share of losses ends at 0. Processors are slow with numbers as small as it would become.
func TestWindowForgetsLosses(t *testing.T) {
	w := newTestWindow()
	w.missed(10, 50)
	if w.lossRate == 0 {
		t.Fatal("a loss does not count")
	}
	for range 10_000 {
		w.arrived(ms, 100*us, 1, 1)
	}
	if w.lossRate != 0 {
		t.Errorf("10,000 packets after a loss its share is %g, want 0", w.lossRate)
	}
}

// A loss or a mark takes from the window once a round trip.
func TestWindowYields(t *testing.T) {
	lose := func(w *window, s seq) { w.missed(s, 50) }
	mark := func(w *window, s seq) { w.marked(s, 50) }
	short := func(w *window) { w.last, w.longest = 200*us, 210*us }
	compete := func(w *window) { w.rival.competes = true }
	slow := func(w *window) { short(w); w.beginSlowdown(ms) }
	for _, c := range []struct {
		name     string
		takes    func(*window, seq)
		prepare  func(*window)
		packets  float64
		isBefore bool // of the window that follows the slowdown
		waits    bool // for what was lost, to slow down
	}{
		{"a loss in a long queue", lose, func(*window) {}, 100, false, false},
		{"a loss in a short queue", lose, short, 70, false, false},
		{"a loss in competition", lose, compete, 70, false, true},
		{"a loss in a slowdown", lose, slow, 70, true, false},
		{"a mark", mark, short, 50, false, false},
		{"a mark in competition", mark, compete, 70, false, true},
		{"a mark in a slowdown", mark, slow, 50, true, false},
	} {
		w := newTestWindow()
		c.prepare(w)
		c.takes(w, 10)
		c.takes(w, 11)
		got := w.packets
		if c.isBefore {
			got = w.slowdown.before
		}
		want(t, c.name, got, c.packets)
		if w.rival.waits != c.waits {
			t.Errorf("%s: waits to slow down: %v", c.name, w.rival.waits)
		}
	}
}

// What a slowdown finds decides whether a window follows the delay or competes.
func TestWindowAfterSlowdown(t *testing.T) {
	w := newTestWindow()
	w.rival.competes, w.roundMin = true, 400*us
	w.beginSlowdown(ms)
	w.slowdown.shortest = 100 * us
	w.endSlowdown(2 * ms)
	want(t, "the queue of its own is gone", w.packets, 25)
	if w.rival.competes {
		t.Error("the queue is gone, and it still competes")
	}
	w = newTestWindow()
	w.rival.competes, w.roundMin = true, 4*ms
	w.beginSlowdown(ms)
	w.slowdown.shortest = 2 * ms
	w.endSlowdown(2 * ms)
	want(t, "the queue of others stays", w.packets, 50)
	want(t, "the queue of others stays: threshold", w.threshold, 100)
	w = newTestWindow()
	w.packets, w.rival.before, w.long, w.longSince, w.roundMin = 3, 40, longRounds, ms, 4*ms
	w.beginSlowdown(ms + longTime)
	w.slowdown.shortest = 4 * ms
	w.endSlowdown(ms + longTime)
	want(t, "it could not shorten the delay", w.packets, 40)
	if !w.rival.competes || !w.slowStart {
		t.Error("it could not shorten the delay, and does not compete")
	}
}

func TestWindowCompetes(t *testing.T) {
	for round, slow := range map[int64]bool{600 * us: true, 800 * us: false} {
		w := newTestWindow()
		w.rival = rival{competes: true, round: 1000 * us}
		w.roundMin = round
		if w.compete(ms) != slow {
			t.Errorf("a round of %d us behind one of 1000 us: slows down %v", round/us, !slow)
		}
	}
	for round, goesOn := range map[int64]bool{800 * us: true, 900 * us: false} {
		w := newTestWindow()
		w.slowStart, w.roundMin = true, round
		w.rival = rival{competes: true, found: 300 * us, round: math.MaxInt64}
		if w.compete(ms); w.slowStart != goesOn {
			t.Errorf("a round of %d us, found 300 us: slow start %v", round/us, w.slowStart)
		}
	}
	var r rival
	want(t, "the first loss", r.cut(100), 70)
	const t0, s = 5, float64(1e9)
	r.grow(t0, 70)
	back := math.Cbrt(30 / cubicScale)
	want(t, "the window of the loss", r.grow(t0+int64(back*s), 70), 100)
	want(t, "long after that", r.grow(t0+int64(10*s), 70), 105)
	want(t, "a loss before that", r.cut(90), 63)
	want(t, "a loss before that: the most", r.most, 76.5)
}

func TestPathIsForgotten(t *testing.T) {
	var p path
	p.start()
	for i, want := range []int64{100 * us, 100 * us, 200 * us} {
		if p.add(1+int64(i)*renewPath, 100*us*int64(min(i+1, 2))); p.base != want {
			t.Errorf("after %d s the path is %d us long, want %d", 10*i, p.base/us, want/us)
		}
	}
}

// A slowdown ends with the fourth answer to what left in it, or after four round trips.
func TestSlowdownEnds(t *testing.T) {
	s := slowdown{began: 1000, shortest: math.MaxInt64}
	for i, c := range []struct {
		now, rtt int64
		ends     bool
	}{{1500, 600, false}, {1600, 500, false}, {1600, 500, false}, {1600, 500, false}, {1600, 500, true}} {
		if ends := s.arrived(c.now, c.rtt, 2000); ends != c.ends {
			t.Errorf("answer %d: ends %v", i, ends)
		}
	}
	s = slowdown{began: 1000}
	if s.arrived(5000, 0, 2000) || !s.arrived(5001, 0, 2000) {
		t.Error("it does not end after four round trips, or before")
	}
}

func TestForeignWindowRules(t *testing.T) {
	var w foreignWindow
	w.start()
	w.arrived(1, 10)
	want(t, "slow start", w.packets, startWindow+1)
	w.packets = 100
	w.missed(5, 50)
	w.missed(6, 60)
	want(t, "two losses in a round trip", w.packets, 50)
	w.arrived(50, 51)
	want(t, "after them", w.packets, 50+1./50)
	w.missed(51, 70)
	want(t, "a loss in the next one", w.packets, (50+1./50)/2)
	w.packets = foreignTrack
	w.arrived(70, 80)
	want(t, "the most", w.packets, foreignTrack)
	w.collapse(90)
	want(t, "nothing comes back", w.packets, minWindow)
	want(t, "nothing comes back: threshold", w.threshold, foreignTrack/2)
}

// An end yields to a marked answer to its read, and to what its peer says of marked requests, once
// for each of them.
func TestYieldToMarks(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		for name, c := range map[string]struct {
			op    verbs.Opcode
			marks func(*wire.Header) bool
		}{
			"read":  {verbs.OpRDMARead, func(h *wire.Header) bool { return h.Opcode.IsReadResponse() }},
			"write": {verbs.OpRDMAWrite, func(h *wire.Header) bool { return h.Opcode.IsRequest() }},
		} {
			n := newNetwork(t, 1, shape{ours: ours})
			a, b := n.ends[0], n.ends[1]
			n.seen = func(_ int, h *wire.Header, _ []byte) { h.Marked = c.marks(h) }
			wr := a.write(b, 1, 8)
			wr.Opcode = c.op
			a.send(wr)
			n.run()
			a.wantStatuses(success(1)...)
			if size := a.q.window(); size >= startWindow {
				t.Errorf("a marked %s: a window of %d packets", name, size)
			}
			before := a.q.window()
			n.forge(0, wire.Header{Opcode: wire.ReadResponseOnly, PSN: (a.q.req.una - 1).psn(),
				Backward: true, Marked: true}, make([]byte, 8))
			if size := a.q.window(); size != before {
				t.Errorf("a late answer takes from the window: %d packets, was %d", size, before)
			}
		}
	})
}

// Packets that arrive together do to a window what they do one by one.
func TestWindowArrivedTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		var together window
		together.start(1024, 1<<20)
		together.rival.competes = i%2 == 1
		single := together
		now, next := int64(0), seq(1000)
		for i := range 500 {
			now += rng.Int64N(200 * us)
			rtt := 50*us + rng.Int64N(100*us)
			if i/100%2 == 1 {
				rtt += 5 * ms // somebody else's queue
			}
			n, flying := 1+rng.IntN(60), rng.IntN(100)
			if rng.IntN(50) == 0 {
				together.missed(next, next+10)
				single.missed(next, next+10)
				next += 5
			}
			together.arrived(now, rtt, flying, n)
			for left := n - 1; left >= 0; left-- {
				single.arrived(now, rtt, flying+left, 1)
			}
			together.passed(now, next)
			single.passed(now, next)
			if together != single {
				t.Fatalf("%d packets in step %d: %+v, want %+v", n, i, together, single)
			}
		}
	}
}
