package rc

import (
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// A packet ahead of what the peer has sent costs the peer's message no time: the report of a gap at
// the number that comes next acknowledges all before it.
func TestGapReportAcknowledges(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	a, b := n.ends[0], n.ends[1]
	n.forge(1, wire.Header{Opcode: wire.WriteOnly, PSN: (b.q.resp.expected + 2).psn()}, nil)
	a.send(a.write(b, 1, 64))
	for a.q.SQ.Acked != a.q.SQ.Posted && n.step() {
	}
	a.wantStatuses(success(1)...)
	if n.now > 3*n.latency {
		t.Errorf("a message takes %d ns, a round trip %d", n.now, 2*n.latency)
	}
}

// A foreign end that a forger has shown a packet ahead says so in the NAK that the peer's next
// message draws, which acknowledges what came before it.
func TestNAKForNextAcknowledges(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours})
		a, b := n.ends[0], n.ends[1]
		a.send(a.write(b, 1, 600))
		n.leaving(0)
		h := wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.NakSequence, PSN: a.q.req.next.psn()}
		n.forge(0, h, nil)
		a.wantStatuses(success(1)...)
		for _, why := range []wire.Syndrome{wire.NakRemoteAccess, wire.RNRNak(1)} {
			a.send(a.write(b, 2, 600))
			n.leaving(0)
			h.Syndrome, h.PSN = why, a.q.req.next.psn()
			n.forge(0, h, nil)
			if a.q.State != verbs.StateRTS || a.q.req.una == a.q.req.next {
				t.Fatalf("%v of a number that was not sent: %v, %d under way", why, a.q.State,
					a.q.req.next-a.q.req.una)
			}
			n.forge(0, wire.Header{Opcode: wire.Acknowledge, PSN: (a.q.req.next - 1).psn()}, nil)
			a.wantStatuses(success(1)...)
		}
	})
}

// A NAK for the next number of an end that has sent nothing acknowledges nothing.
func TestNAKForTheFirstNumber(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	a := n.ends[0]
	for _, opcode := range []wire.Opcode{wire.Acknowledge, wire.ReadResponseOnly} {
		n.forge(0, wire.Header{Opcode: opcode, Syndrome: wire.NakSequence, PSN: a.q.req.next.psn()},
			[]byte{255, 255, 255, 255})
	}
	a.wantStatuses()
}
