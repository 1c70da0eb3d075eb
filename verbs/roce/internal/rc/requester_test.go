package rc

import (
	"testing"
	"time"

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

// The slot of the last request that was sent may be in use again before the next one is sent.
func TestSlotInUseAgain(t *testing.T) {
	n := newNetwork(t, 1, shape{queueDepth: 8})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8))
	n.run()
	a.wantStatuses(success(1)...)
	for i := range uint64(8) {
		a.send(a.write(b, 2+i, 300))
	}
	n.run()
	a.wantStatuses(success(8)...)
}

// A request that the peer has refused, and that waits for those before it, lets none begin that
// were posted behind it, whatever states the queue pair passes.
func TestNothingBeginsBehindRefused(t *testing.T) {
	n := newNetwork(t, 1, shape{timeout: 14})
	a, b := n.ends[0], n.ends[1]
	n.drop = func(to int, h *wire.Header) bool { return h.Opcode.IsReadResponse() }
	bad := a.write(b, 2, 8)
	bad.RKey ^= 0x100
	a.send(a.read(b, 1, 8), bad)
	for a.q.Stats().NAKs == 0 {
		n.step()
	}
	a.modify(n.now, verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState)
	a.modify(n.now, verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState)
	a.send(a.write(b, 3, 8))
	last := a.q.req.end - 1
	n.seen = func(to int, h *wire.Header, _ []byte) {
		if to == 1 && h.PSN == last.psn() {
			t.Error("a request behind one that was refused has left")
		}
	}
	n.run()
	a.wantStatuses(verbs.StatusRetryExcErr, verbs.StatusWRFlushErr, verbs.StatusWRFlushErr)
}

// A receiver that was not ready may take the message all the same, in a packet that was repeated on
// the way. What is posted then still leaves when the wait is over.
func TestTimerAfterReceiverWasReady(t *testing.T) {
	n := newNetwork(t, 1, shape{})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8))
	h := n.leaving(0)[0]
	n.forge(0, wire.Header{Opcode: wire.Acknowledge, PSN: h.PSN, Syndrome: wire.RNRNak(1)}, nil)
	n.forge(0, wire.Header{Opcode: wire.Acknowledge, PSN: h.PSN, Syndrome: wire.Ack}, nil)
	b.q.resp.expected++ // as the acknowledgement says
	a.send(a.write(b, 2, 8))
	n.run()
	a.wantStatuses(success(2)...)
}

// The receiver is asked again once for each time that it says that it is not ready, and not for
// each copy of its answer.
func TestRepeatedRNRNak(t *testing.T) {
	n := newNetwork(t, 1, shape{rnrRetry: 1})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8))
	nak := wire.Header{Opcode: wire.Acknowledge, PSN: n.leaving(0)[0].PSN, Syndrome: wire.RNRNak(1)}
	n.forge(0, nak, nil)
	n.now = a.q.Deadline()
	a.q.Tick(n.now)
	n.forge(0, nak, nil)
	n.run()
	a.wantStatuses(success(1)...)
}

// A refusal of what was acknowledged before is a copy from elsewhere.
func TestRefusalOfWhatIsDone(t *testing.T) {
	n := newNetwork(t, 1, shape{})
	a, b := n.ends[0], n.ends[1]
	n.drop = func(to int, h *wire.Header) bool { return to == 0 && n.now < int64(time.Millisecond) }
	a.send(a.read(b, 1, 8), a.write(b, 2, 8))
	sent := n.leaving(0)
	n.forge(0, wire.Header{Opcode: wire.Acknowledge, PSN: sent[1].PSN, Syndrome: wire.Ack}, nil)
	n.forge(0, wire.Header{Opcode: wire.Acknowledge, PSN: sent[1].PSN, Syndrome: wire.NakRemoteAccess}, nil)
	a.send(a.write(b, 3, 8))
	if got := n.leaving(0); len(got) == 0 || got[len(got)-1].PSN != sent[1].PSN+1 {
		t.Errorf("the next request does not leave: %+v", got)
	}
}

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

// The rate limit holds for the answers to reads too.
func TestRateLimitOfAnswers(t *testing.T) {
	n := newNetwork(t, 1, shape{mtu: verbs.MTU1024, timeout: 20, rate: 10e6})
	a, b := n.ends[0], n.ends[1]
	const size = 1 << 20
	from := n.now
	a.send(a.read(b, 1, size))
	n.run()
	a.wantStatuses(success(1)...)
	rate := size / (float64(n.now-from) / 1e9)
	if rate > 10.2e6 || rate < 9.8e6 {
		t.Errorf("%.2f MB/s, the limit is 10", rate/1e6)
	}
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

// A foreign peer answers a read with all of it at once, whatever this end has room for: what it is
// asked for stays within the window.
func TestReadsStayWithinTheWindow(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		const packets = 10
		n := newNetwork(t, 1, shape{ours: ours, window: packets * 256})
		a, b := n.ends[0], n.ends[1]
		a.send(a.read(b, 1, 100*256), a.read(b, 2, 100*256))
		asked := 0
		for _, h := range n.leaving(0) {
			asked += int(h.Length) / 256
		}
		if asked == 0 || asked > packets {
			t.Errorf("%d packets are asked for, the window has %d", asked, packets)
		}
		n.now = a.q.Deadline()
		a.q.Tick(n.now)
		n.run()
		a.wantStatuses(success(2)...)
	})
}
