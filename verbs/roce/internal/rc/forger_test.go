package rc

import (
	"bytes"
	"fmt"
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

// In the middle of a transfer a forger that knows neither numbers nor keys changes nothing with
// numbers that the peer will use soon: what arrives before its turn and before the peer's own
// packet is forgotten.
func TestForgedAhead(t *testing.T) {
	for _, ahead := range []seq{4, 5, 20, 150, 1000, maxTrack - 1} {
		n := newNetwork(t, 1, shape{ours: true})
		a, b := n.ends[0], n.ends[1]
		const size = 400 << 10
		for i := range a.mem[:size] {
			a.mem[i] = byte(i * 7)
		}
		a.send(a.write(b, 1, size))
		for range 300 {
			n.step()
		}
		n.forge(1, wire.Header{Opcode: wire.WriteMiddle, PSN: (b.q.resp.expected + ahead).psn()},
			bytes.Repeat([]byte{0x5a}, 256))
		n.run()
		a.wantStatuses(success(1)...)
		if !bytes.Equal(a.mem[:size], b.mem[:size]) {
			t.Errorf("%d numbers ahead: data has changed, and the write has succeeded", ahead)
		}
		if s := a.q.Stats(); s.Probes+s.Timeouts != 0 {
			t.Errorf("%d numbers ahead: %+v", ahead, s)
		}
	}
}

// What nobody misses is forgotten after a while, also with the very next number.
func TestForgedWhileIdle(t *testing.T) {
	for ahead := seq(1); ahead <= 3; ahead++ {
		n := newNetwork(t, 1, shape{ours: true})
		a, b := n.ends[0], n.ends[1]
		copy(a.mem, bytes.Repeat([]byte{1}, 5*256))
		n.forge(1, wire.Header{Opcode: wire.WriteMiddle, PSN: (b.q.resp.expected + ahead).psn()},
			bytes.Repeat([]byte{0x5a}, 256))
		n.run()
		n.now += overtakenWithin + 1
		a.send(a.write(b, 1, 5*256))
		n.run()
		a.wantStatuses(success(1)...)
		if !bytes.Equal(a.mem[:5*256], b.mem[:5*256]) {
			t.Errorf("%d numbers ahead: data has changed, and the write has succeeded", ahead)
		}
	}
}

// Of two different packets with one number neither is believed: the peer sends its own again. An
// equal one is a copy, also if it is one that requests an acknowledgement.
func TestTwoPacketsWithOneNumber(t *testing.T) {
	for name, forgedFirst := range map[string]bool{"forged first": true, "forged second": false} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1, shape{ours: true})
			a, b := n.ends[0], n.ends[1]
			const size = 8 * 256
			copy(a.mem, bytes.Repeat([]byte{1}, size))
			psn := b.q.resp.expected.psn() + 3
			forge := func() {
				n.forge(1, wire.Header{Opcode: wire.WriteMiddle, PSN: psn}, bytes.Repeat([]byte{0x5a}, 256))
			}
			lose := true
			n.drop = func(to int, h *wire.Header) bool {
				first := h.Opcode == wire.WriteFirst && lose
				lose = lose && !first
				return first
			}
			done, at := false, psn
			if !forgedFirst {
				at++
			}
			n.seen = func(to int, h *wire.Header, _ []byte) {
				if to == 1 && !done && h.PSN == at {
					done = true
					forge()
				}
			}
			a.send(a.write(b, 1, size))
			n.run()
			a.wantStatuses(success(1)...)
			if !done || !bytes.Equal(a.mem[:size], b.mem[:size]) {
				t.Error("data has changed, and the write has succeeded")
			}
			if s := a.q.Stats(); s.Resent != 2 || s.Probes+s.Timeouts != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Memory for packets ahead of a gap is given back, but for what the pool holds, when the gap is
// closed and when the queue pair ends.
func TestMemoryOfGapsIsGivenBack(t *testing.T) {
	for _, end := range []string{"closed", "in ERR", "reset"} {
		t.Run(end, func(t *testing.T) {
			n := newNetwork(t, 1, shape{ours: true})
			b := n.ends[1]
			first, packet := b.q.resp.expected, make([]byte, 256)
			arrives := func(i seq) {
				n.forge(1, wire.Header{Opcode: wire.SendMiddle, PSN: (first + i).psn()}, packet)
			}
			for i := range seq(maxTrack - 1) {
				arrives(1 + i)
			}
			if r := &b.q.resp.ahead; r.n != maxTrack-1 {
				t.Fatalf("%d packets are kept", r.n)
			}
			switch end {
			case "closed":
				b.recv(verbs.RecvWR{ID: 1, SGL: b.sge(0, maxTrack*256)})
				n.forge(1, wire.Header{Opcode: wire.SendFirst, PSN: first.psn()}, packet)
				if b.q.resp.expected != first+maxTrack {
					t.Fatal("not carried out")
				}
			case "in ERR":
				b.q.Enter(n.now, verbs.StateErr)
			case "reset":
				b.q.Enter(n.now, verbs.StateReset)
			}
			if r, pool := &b.q.resp.ahead, b.q.cfg.Pool; r.n != 0 || len(r.slots) > smallRing ||
				len(pool.free) != poolPackets {
				t.Errorf("%d are kept in %d slots, the pool has %d", r.n, len(r.slots), len(pool.free))
			}
		})
	}
}

// The peer learns which packets were forgotten that it believes kept, and sends them again without
// waiting for a timer.
func TestForgottenPackets(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		for from := seq(1); from <= 7; from++ {
			t.Run(fmt.Sprintf("%v, from %d on", op, from), func(t *testing.T) {
				n := newNetwork(t, 1, shape{ours: true, reads: 16})
				a, b := n.ends[0], n.ends[1]
				first := b.q.resp.expected
				n.drop = func(_ int, h *wire.Header) bool {
					return h.PSN == first.psn() && h.Reserved != wire.Repeated && h.Opcode.IsRequest()
				}
				n.seen = func(_ int, h *wire.Header, _ []byte) {
					if h.Reserved == wire.Repeated && h.PSN == first.psn() { // as if it was held up
						h.Reserved = 0
						for s := first + from; s <= b.q.resp.ahead.highest; s++ {
							b.q.resp.ahead.find(s).at -= overtakenWithin + 1
						}
					}
				}
				for i := range uint64(8) {
					wr := a.write(b, i, 100)
					wr.Opcode = op
					a.send(wr)
				}
				n.run()
				a.wantStatuses(success(8)...)
				if s := a.q.Stats(); s.Probes+s.Timeouts != 0 || s.Resent != uint64(1+8-from) {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// What a forger reaches with one packet that has the peer's address, the number of the queue pair
// and one of 2^24 packet numbers: the counts that the section Security of package roce gives. They
// are played in the middle of a transfer, near the numbers of the connection.
func TestOneForgedPacket(t *testing.T) {
	const size = 200 * 256
	evil := bytes.Repeat([]byte{0x5a}, 256)
	write := func(s *forgedOne) { s.a.send(s.a.write(s.b, 1, size)) }
	read := func(s *forgedOne) { s.a.send(s.a.read(s.b, 1, size)) }
	under := func(s *forgedOne) int { return int(s.a.q.req.next - s.a.q.req.una) }
	reads := func(s *forgedOne) int { return s.a.q.req.nreads }
	for _, c := range []struct {
		name    string
		to      int
		header  wire.Header
		payload []byte
		post    func(*forgedOne)
		ends    bool // the connection ends; or else data changes, and nobody learns of it
		numbers [2]func(*forgedOne) int
	}{
		{"a write brings other data", 1, wire.Header{Opcode: wire.WriteMiddle}, evil, write, false,
			[2]func(*forgedOne) int{exactly(1), exactly(overtaken + 2)}},
		{"a bad request", 1, wire.Header{Opcode: wire.ReadRequest, Length: 8}, nil, write, true,
			[2]func(*forgedOne) int{exactly(1), exactly(overtaken + 2)}},
		{"a read brings other data", 0, wire.Header{Opcode: wire.ReadResponseMiddle}, evil, read, false,
			[2]func(*forgedOne) int{reads, under}},
		{"a refusal", 0, wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.NakRemoteAccess}, nil, write,
			true, [2]func(*forgedOne) int{under, under}},
	} {
		for ours, want := range c.numbers {
			s := &forgedOne{}
			harmed, wanted := 0, 0
			for at := -maxTrack - 2; at < maxTrack+2; at++ {
				if at < -140 || at > 140 {
					at += 60
				}
				s.begin(t, ours == 1, size)
				c.post(s)
				for range 120 {
					s.step()
				}
				h, base := c.header, s.b.q.resp.expected
				if wanted = want(s); c.to == 0 {
					base = s.a.q.req.una
				}
				h.PSN = (base + seq(at)).psn()
				s.forge(c.to, h, c.payload)
				s.run()
				ended, changed := s.a.q.State == verbs.StateErr, !bytes.Equal(s.a.mem[:size], s.b.mem[:size])
				if c.ends && ended || !c.ends && !ended && changed {
					harmed++
				} else if ended || changed {
					t.Errorf("%s, ours=%v, %d: ended %v, changed %v", c.name, ours == 1, at, ended, changed)
				}
			}
			if harmed != wanted {
				t.Errorf("%s, ours=%v: with %d numbers, want %d", c.name, ours == 1, harmed, wanted)
			}
			t.Logf("%s, ours=%v: with %d numbers", c.name, ours == 1, harmed)
		}
	}
}

// forgedOne is a transfer with a packet of a forger in its middle.
type forgedOne struct {
	*network
	a, b *end
}

func (s *forgedOne) begin(t *testing.T, ours bool, size int) {
	s.network = newNetwork(t, 1, shape{ours: ours, memory: size, cqDepth: 16, timeout: 12})
	s.a, s.b = s.ends[0], s.ends[1]
}

func exactly(n int) func(*forgedOne) int { return func(*forgedOne) int { return n } }

// A queue pair that fails while it forgets a packet says no more.
func TestForgottenInError(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	b := n.ends[1]
	b.overruns = true
	b.recv(verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
	psn := b.q.resp.expected.psn()
	n.forge(1, wire.Header{Opcode: wire.SendOnly, PSN: psn + 100}, nil)
	n.leaving(1)
	n.forge(1, wire.Header{Opcode: wire.SendOnly, PSN: psn, AckReq: true}, nil)
	if left := n.leaving(1); b.q.State != verbs.StateErr || len(left) != 0 {
		t.Errorf("in %v, %d packets leave", b.q.State, len(left))
	}
}
