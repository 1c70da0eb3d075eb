package rc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
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

func bothKinds(t *testing.T, f func(t *testing.T, ours bool)) {
	for _, ours := range []bool{false, true} {
		t.Run(fmt.Sprintf("ours=%v", ours), func(t *testing.T) { f(t, ours) })
	}
}

// Every opcode, at sizes around the path MTU, across the wrap of the PSN.
func TestEveryOpcode(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours, psn: [2]uint32{0xfffff0, 3}})
		a, b := n.ends[0], n.ends[1]
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range a.mem {
			a.mem[i] = byte(rng.Uint32())
		}
		id := uint64(0)
		do := func(wr verbs.SendWR, recv bool) {
			t.Helper()
			id++
			wr.ID, wr.Flags = id, wr.Flags|verbs.SendSignaled
			if recv {
				b.recv(verbs.RecvWR{ID: id, SGL: b.sge(1<<19, 1<<18)})
			}
			a.send(wr)
			n.run()
			wcs := a.poll()
			if len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess || wcs[0].ID != id {
				t.Fatalf("%v of %d bytes: %v", wr.Opcode, wr.Bytes(), wcs)
			}
			if recv {
				got := b.poll()
				if len(got) != 1 || got[0].Status != verbs.StatusSuccess || got[0].ID != id ||
					got[0].ByteLen != uint32(wr.Bytes()) || wr.Opcode.HasImm() && got[0].Imm != wr.Imm {
					t.Fatalf("%v of %d bytes received: %v", wr.Opcode, wr.Bytes(), got)
				}
			}
		}
		for _, size := range []int{0, 1, 2, 3, 4, 8, 255, 256, 257, 511, 512, 513, 4096, 70001} {
			remote := verbs.SendWR{SGL: a.sge(100, size), RemoteAddr: b.mr.Addr() + 7, RKey: b.mr.RKey()}
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
				clear(b.mem)
				wr := remote
				wr.Opcode, wr.Imm = op, 0xdeadbeef
				do(wr, op.HasImm())
				if !bytes.Equal(b.mem[7:7+size], a.mem[100:100+size]) || b.mem[7+size] != 0 {
					t.Fatalf("%v of %d bytes: wrong bytes", op, size)
				}
			}
			for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm} {
				clear(b.mem)
				do(verbs.SendWR{Opcode: op, Imm: 7, SGL: a.sge(100, size)}, true)
				if !bytes.Equal(b.mem[1<<19:][:size], a.mem[100:100+size]) {
					t.Fatalf("%v of %d bytes: wrong bytes", op, size)
				}
			}
			for i := range b.mem {
				b.mem[i] = byte(rng.Uint32())
			}
			wr := remote
			wr.Opcode = verbs.OpRDMARead
			do(wr, false)
			if !bytes.Equal(b.mem[7:7+size], a.mem[100:100+size]) {
				t.Fatalf("read of %d bytes: wrong bytes", size)
			}
		}
		atomic := verbs.SendWR{SGL: a.sge(0, 8), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		clear(b.mem)
		atomic.Opcode, atomic.CompareAdd = verbs.OpAtomicFetchAdd, 5
		do(atomic, false)
		do(atomic, false)
		if a.mem[0] != 5 || b.mem[0] != 10 {
			t.Fatalf("fetch and add twice: found %d, left %d", a.mem[0], b.mem[0])
		}
		atomic.Opcode, atomic.CompareAdd, atomic.Swap = verbs.OpAtomicCmpAndSwp, 10, 77
		do(atomic, false)
		do(atomic, false)
		if a.mem[0] != 77 || b.mem[0] != 77 {
			t.Fatalf("compare and swap twice: found %d, left %d", a.mem[0], b.mem[0])
		}
		if s := a.q.Stats(); s.Resent != 0 || s.Timeouts != 0 || s.Probes != 0 {
			t.Errorf("on a perfect network: %+v", s)
		}
	})
}

// The pieces of a batch lie side by side in memory, except payloads too long to copy, and none
// overlaps another, whatever the lengths are.
func TestBatchLiesSideBySide(t *testing.T) {
	var b Batch
	payloads := make([][]byte, BatchPackets)
	var headers [BatchPackets]wire.Header
	for i := range BatchPackets {
		headers[i] = wire.Header{Opcode: wire.WriteMiddle, PSN: uint32(i), DestQP: 7}
		if i%3 == 0 {
			headers[i].Opcode = wire.FetchAdd // has the longest header
		}
		payloads[i] = bytes.Repeat([]byte{byte(i)}, []int{copied, 0, 5, copied + 1, copied - 1}[i%5])
		b.add(&headers[i], payloads[i])
	}
	for _, p := range b.Packets() {
		for j := range p.Trailer {
			p.Trailer[j] = 0xff
		}
	}
	at := 0
	joins := func(i int, what string, piece []byte) {
		if at += len(piece); len(piece) != 0 && &b.frames[at-1] != &piece[len(piece)-1] {
			t.Errorf("packet %d: the %s does not join what is before it", i, what)
		}
	}
	for i, p := range b.Packets() {
		var header [wire.MaxHeader]byte
		n := headers[i].Put(header[:])
		if !bytes.Equal(p.Header, header[:n]) || !bytes.Equal(p.Payload, payloads[i]) {
			t.Errorf("packet %d was changed by others", i)
		}
		if pad := -len(payloads[i]) & 3; len(p.Trailer) != pad+wire.ICRCSize {
			t.Errorf("packet %d: a trailer of %d bytes for a pad of %d", i, len(p.Trailer), pad)
		}
		joins(i, "header", p.Header)
		if len(payloads[i]) <= copied {
			joins(i, "payload", p.Payload)
		} else if &p.Payload[0] != &payloads[i][0] {
			t.Errorf("packet %d: a payload of %d bytes was copied", i, len(p.Payload))
		}
		joins(i, "trailer", p.Trailer)
	}
}
