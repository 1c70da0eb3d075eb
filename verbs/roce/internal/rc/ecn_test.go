package rc

import (
	"testing"

	"ibverbx/verbs/roce/internal/wire"
)

// A foreign peer whose packets the network has marked is told by a CNP, once in 50 microseconds; an
// end of ours by the next answer.
func TestMarkedPackets(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours, timeout: 18})
		a, b := n.ends[0], n.ends[1]
		n.latency = 10_000 // a round trip of 20 µs
		notices, echoes := []int64{}, 0
		n.seen = func(to int, h *wire.Header, _ []byte) {
			switch {
			case h.Opcode == wire.Congestion:
				notices = append(notices, n.now)
				if to != 0 || h.DestQP != 100 || h.PSN != 0 || !h.Backward {
					t.Errorf("%+v", h)
				}
			case h.Opcode.IsRequest():
				h.Marked = true
			case h.Backward:
				echoes++
			}
		}
		for i := range uint64(20) {
			a.send(a.write(b, i, 8))
			n.run()
		}
		a.wantStatuses(success(20)...)
		s, p := b.q.Stats(), a.q.Stats()
		if s.Marked != 20 {
			t.Errorf("%d marked, want 20", s.Marked)
		}
		if ours {
			if len(notices) != 0 || echoes != 20 {
				t.Errorf("%d CNPs and %d echoes, want 0 and 20", len(notices), echoes)
			}
			return
		}
		if echoes != 0 || len(notices) < 5 || len(notices) > 9 || s.CNPsSent != uint64(len(notices)) ||
			p.CNPs != s.CNPsSent {
			t.Errorf("%d echoes, %d CNPs in 400 µs, counted %d and %d",
				echoes, len(notices), s.CNPsSent, p.CNPs)
		}
		for i := 1; i < len(notices); i++ {
			if d := notices[i] - notices[i-1]; d < cnpEvery {
				t.Errorf("two CNPs within %d ns", d)
			}
		}
	})
}

// An end of ours sends no CNP, so one from its address is a forger's.
func TestForgedCNP(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	a := n.ends[0]
	before := a.q.req.window.packets
	a.q.Receive(n.now, &wire.Header{Opcode: wire.Congestion, Backward: true}, nil)
	if s := a.q.Stats(); s.CNPs != 0 || s.Unexpected != 1 || a.q.req.window.packets != before {
		t.Errorf("%+v, window %v, was %v", s, a.q.req.window.packets, before)
	}
}

// Marks take half of a window at first, at most once a round trip, and five rounds bring most of it
// back. Where each round has one they take ever half, where few have less.
func TestMarks(t *testing.T) {
	var w foreignWindow
	w.start()
	w.packets, w.threshold = 100, 50
	w.marked(10, 20)
	w.marked(19, 25)
	if w.packets != 50 {
		t.Errorf("%v after a mark, want 50", w.packets)
	}
	for s := seq(20); s < 25; s++ {
		w.arrived(s, s+1)
	}
	if w.packets < 98 || w.packets > 100 {
		t.Errorf("%v after five rounds, want 98 to 100", w.packets)
	}
	before := w.packets
	for s := seq(25); s < 125; s++ { // as many as a round has
		w.arrived(s, 126)
	}
	if w.packets < before+0.9 || w.packets > before+1.1 {
		t.Errorf("%v after the sixth round, want a packet more than %v", w.packets, before)
	}
	for s := seq(126); s < 226; s++ {
		w.arrived(s, s+1)
	}
	before = w.packets
	if w.marked(226, 227); w.packets < 0.99*before {
		t.Errorf("%v of %v after a hundred rounds without a mark", w.packets, before)
	}
	m := marks{alpha: 0.5}
	m.cut(100)
	if got, want := m.cut(100), 100*(1-(0.5+0.5*markWeight)/2); got != want {
		t.Errorf("%v of 100 after a second mark, want %v", got, want)
	}
}

// A queue that marks stays short, and drops nothing.
func TestMarkingQueue(t *testing.T) {
	for _, kind := range []string{own, foreign} {
		for _, flows := range []int{1, 4} {
			t.Run(kind, func(t *testing.T) {
				n := newBottleneck(t, gigabi, int(gigabi*2/1000), 50*us)
				n.mark = int(gigabi * 0.2 / 1000)
				for range flows {
					n.addKind(kind, 0)
				}
				n.run(300 * ms)
				n.deepest, n.dropped, n.marked = 0, 0, 0
				const length = 500 * ms
				sum, least := 0.0, 1.0
				for _, bytes := range n.run(length) {
					sum += bytes / n.bytesIn(length)
					least = min(least, bytes/n.bytesIn(length))
				}
				queue := 1e3 * float64(n.deepest) / n.rate
				t.Logf("%d flows: %.2f of the link, %.2f each, %.2f ms in the queue, %d marked, %d dropped",
					flows, sum, least, queue, n.marked, n.dropped)
				if sum < 0.9 || least < 0.5/float64(flows) || queue > 1 || n.dropped != 0 || n.marked == 0 {
					t.Error("want 0.9, half of a fair share, 1 ms, some and none")
				}
			})
		}
	}
}

// A marked packet with a number that the peer cannot use now takes nothing from its window.
func TestForgedMark(t *testing.T) {
	for ahead, want := range map[seq]bool{0: true, maxTrack - 1: true, maxTrack: false, 1 << 23: false,
		1<<24 - maxTrack - 1: false, 1<<24 - 1: true} {
		n := newNetwork(t, 1, shape{ours: true})
		b := n.ends[1]
		h := wire.Header{Opcode: wire.WriteOnly, PSN: (b.q.resp.expected + ahead).psn(), Marked: true}
		b.q.Receive(n.now, &h, nil)
		if got := b.q.resp.congested.echoes; got != want {
			t.Errorf("a mark %d numbers ahead is told: %v, want %v", ahead, got, want)
		}
	}
}
