package rc

import (
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

func (e *end) write(peer *end, id uint64, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: e.sge(0, n),
		RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
}

func (e *end) read(peer *end, id uint64, n int) verbs.SendWR {
	wr := e.write(peer, id, n)
	wr.Opcode = verbs.OpRDMARead
	return wr
}

func success(n int) []verbs.Status { return make([]verbs.Status, n) }

// The responder tells which requests for reads it has ahead of a gap. They are not asked for again.
func TestKeptReadIsNotRepeated(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	a, b := n.ends[0], n.ends[1]
	first := true
	requests := 0
	n.drop = func(to int, h *wire.Header) bool {
		if h.Opcode.IsRead() {
			requests++
		}
		if h.Opcode.IsWrite() && first {
			first = false
			return true
		}
		return false
	}
	a.send(a.write(b, 1, 8), a.read(b, 2, 2000), a.write(b, 3, 1000))
	n.run()
	a.wantStatuses(success(3)...)
	if requests != 1 {
		t.Errorf("%d requests for one read that was not lost", requests)
	}
}

// The first packet of an answer is lost: what follows it asks for it once.
func TestGapBeforeFirstRoundTrip(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours})
		a, b := n.ends[0], n.ends[1]
		requests, answers := 0, 0
		n.drop = func(to int, h *wire.Header) bool {
			if h.Opcode.IsRead() {
				requests++
			}
			if h.Opcode.IsReadResponse() {
				answers++
				return answers == 1
			}
			return false
		}
		a.send(a.read(b, 1, 16*256))
		n.run()
		a.wantStatuses(success(1)...)
		if requests != 2 {
			t.Errorf("%d requests for one read, of whose answer one packet was lost", requests)
		}
	})
}

// A packet that the rate limit keeps from being sent again is not waited for.
func TestTimeoutUnderRateLimit(t *testing.T) {
	n := newNetwork(t, 1, shape{mtu: verbs.MTU4096, rate: 4000, timeout: 8, retries: 1})
	a, b := n.ends[0], n.ends[1]
	lose := 1
	n.drop = func(to int, h *wire.Header) bool {
		if to == 1 && lose > 0 {
			lose--
			return true
		}
		return false
	}
	a.send(a.write(b, 1, 4096))
	n.run()
	a.wantStatuses(success(1)...)
}

// A read that was lost behind nothing but what is acknowledged is asked for again without waiting
// for a timer, between our own ends.
func TestLostReadBehindOneAcknowledgement(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true, timeout: 14})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8)) // takes the first round trip
	n.run()
	lose := true
	n.drop = func(to int, h *wire.Header) bool {
		if h.Opcode.IsReadResponse() && lose {
			lose = false
			return true
		}
		return false
	}
	a.send(a.read(b, 2, 8), a.write(b, 3, 8))
	for range 3 {
		n.step()
	}
	a.send(a.write(b, 4, 8), a.write(b, 5, 8))
	n.run()
	a.wantStatuses(success(5)...)
	if s := a.q.Stats(); s.Probes+s.Timeouts != 0 {
		t.Errorf("%d probes, %d timeouts", s.Probes, s.Timeouts)
	}
}

// The window shrinks to what is under way, and none of that has asked for an acknowledgement,
// because a request behind it had to wait: one packet more may leave, and asks.
func TestWindowThatShrinks(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours, reads: 1})
		a, b := n.ends[0], n.ends[1]
		quiet := a.write(b, 2, 8)
		quiet.Flags = 0
		a.send(a.read(b, 1, 8), quiet, quiet, quiet, a.read(b, 3, 8))
		n.flush(0)
		if r := &a.q.req; r.flying != 4 || r.quiet != 3 {
			t.Fatalf("%d packets under way, %d behind the last that has asked", r.flying, r.quiet)
		}
		a.q.collapse()
		n.run()
		a.wantStatuses(success(2)...)
		if s := a.q.Stats(); s.Probes+s.Timeouts != 0 {
			t.Errorf("%d probes, %d timeouts", s.Probes, s.Timeouts)
		}
	})
}
