package rc

import (
	"math"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// A queue pair puts no more under way than its owner allows, asks for an acknowledgement of the
// last of that, and says that more would leave. Reads are asked for in shorter parts.
func TestAllow(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		for name, ask := range map[string]func(e, peer *end) verbs.SendWR{
			"write": func(e, peer *end) verbs.SendWR { return e.write(peer, 1, 8000) },
			"read":  func(e, peer *end) verbs.SendWR { return e.read(peer, 1, 8000) },
		} {
			t.Run(name, func(t *testing.T) {
				n := newNetwork(t, 1, shape{ours: ours, mtu: verbs.MTU256, memory: 8000})
				a, b := n.ends[0], n.ends[1]
				a.send(ask(a, b))
				a.q.Allow(0)
				if n := len(a.transmit(n.now)); n != 0 || !a.q.HeldBack() || a.q.UnderWay() != 0 {
					t.Fatalf("%d packets leave, of none allowed; held back: %v", n, a.q.HeldBack())
				}
				var asks []bool
				n.left = func(from int, h *wire.Header) {
					if from == 0 {
						asks = append(asks, h.AckReq)
					}
				}
				a.q.Allow(3)
				n.flush(0)
				if a.q.UnderWay() != 3 || !a.q.HeldBack() || !asks[len(asks)-1] {
					t.Errorf("%d numbers under way; held back: %v; acknowledgements are asked for: %v",
						a.q.UnderWay(), a.q.HeldBack(), asks)
				}
				a.q.Allow(math.MaxInt)
				n.run()
				a.wantStatuses(success(1)...)
				if a.q.HeldBack() || a.q.UnderWay() != 0 {
					t.Errorf("in the end %d numbers are under way; held back: %v", a.q.UnderWay(),
						a.q.HeldBack())
				}
			})
		}
	})
}

// A peer that was silent for some probes gives its room to others.
func TestUnderWayOfSilentPeer(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true, timeout: 20})
	a, b := n.ends[0], n.ends[1]
	n.drop = func(int, *wire.Header) bool { return true }
	a.send(a.write(b, 1, 8))
	n.flush(0)
	for probe := range silentProbes {
		if got := a.q.UnderWay(); got != 1 {
			t.Errorf("%d under way after %d probes", got, probe)
		}
		n.happen()
		n.flush(0)
	}
	if got := a.q.UnderWay(); got != 0 {
		t.Errorf("%d under way after %d probes", got, silentProbes)
	}
}
