package rc

import (
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// loop is two ends without a network: what one sends is at once given to the other.
type loop struct {
	*network
	headers [BatchPackets]wire.Header
	wcs     [64]verbs.WC
}

func newLoop(t testing.TB, mtu verbs.MTU) *loop {
	n := newNetwork(t, 1, shape{ours: true, mtu: mtu, memory: 4 << 20, timeout: 20, queueDepth: 64})
	return &loop{network: n}
}

// exchange carries packets until none is left, and returns how many had a payload.
func (l *loop) exchange() (packets int) {
	for moved := true; moved; {
		moved = false
		for i, e := range l.ends {
			e.q.Transmit(l.now, &e.batch)
			for j := range e.batch.Packets() {
				p := &e.batch.packets[j]
				h := &l.headers[j]
				if !parse(p, h) {
					l.t.Fatal("a packet that nobody can read")
				}
				if len(p.Payload) != 0 {
					packets++
				}
				l.now += 100
				l.ends[1-i].q.Receive(l.now, h, p.Payload)
				moved = true
			}
			e.batch.Reset()
		}
	}
	return packets
}

// parse decodes the headers of a packet whose payload stays where it is.
func parse(p *Packet, h *wire.Header) bool {
	var b [wire.MaxHeader + wire.ICRCSize]byte
	n := copy(b[:], p.Header)
	b[1] &^= 3 << 4 // the pad is behind the payload
	_, err := wire.Parse(b[:n+wire.ICRCSize], h)
	return err == nil
}

// do posts a request, without allocating, and lets it complete.
func (l *loop) do(wr *verbs.SendWR) int {
	e := l.ends[0]
	if e.q.CheckSend(wr) != nil {
		l.t.Fatal("no room")
	}
	e.q.SQ.Push(wr)
	e.q.Posted()
	packets := l.exchange()
	if n, _ := e.cq.Poll(l.wcs[:]); n != 1 || l.wcs[0].Status != verbs.StatusSuccess {
		l.t.Fatalf("%d completions, %v", n, l.wcs[0].Status)
	}
	return packets
}

func BenchmarkPackets(b *testing.B) {
	for _, c := range []struct {
		name string
		op   verbs.Opcode
		size int
	}{{"write 8", verbs.OpRDMAWrite, 8}, {"write 1M", verbs.OpRDMAWrite, 1 << 20},
		{"read 1M", verbs.OpRDMARead, 1 << 20}} {
		b.Run(c.name, func(b *testing.B) {
			l := newLoop(b, verbs.MTU4096)
			wr := l.ends[0].write(l.ends[1], 1, c.size)
			wr.Opcode = c.op
			packets := 0
			for range 20 {
				l.do(&wr)
			}
			b.ReportAllocs()
			for b.Loop() {
				packets += l.do(&wr)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(packets, 1)), "ns/packet")
		})
	}
}

// Once warm, nothing is allocated.
func TestNoAllocations(t *testing.T) {
	l := newLoop(t, verbs.MTU4096)
	a, b := l.ends[0], l.ends[1]
	recv := verbs.RecvWR{ID: 1, SGL: b.sge(0, 1<<20)}
	for _, op := range simOps {
		for _, size := range []int{8, 256 << 10} {
			if op.IsAtomic() {
				size = 8
			}
			wr := a.write(b, 1, size)
			wr.Opcode = op
			once := func() {
				if op.IsSend() || op.HasImm() {
					b.q.RQ.Push(&recv)
				}
				l.do(&wr)
				_, _ = b.cq.Poll(l.wcs[:])
			}
			for range 20 {
				once()
			}
			if n := testing.AllocsPerRun(50, once); n != 0 {
				t.Errorf("%v of %d bytes: %.1f allocations", op, size, n)
			}
		}
	}
}

// Neither are packets that arrive before others, nor what is sent again.
func TestNoAllocationsWithGaps(t *testing.T) {
	l := newLoop(t, verbs.MTU256)
	b := l.ends[1]
	payload := make([]byte, 256)
	once := func() {
		first := b.q.resp.expected
		for _, i := range []seq{1, 2, 3, 0} {
			h := wire.Header{Opcode: wire.WriteMiddle, PSN: (first + i).psn()}
			switch i {
			case 0:
				h.Opcode, h.Addr, h.RKey, h.Length = wire.WriteFirst, b.mr.Addr(), b.mr.RKey(), 1024
			case 3:
				h.Opcode, h.AckReq = wire.WriteLast, true
			}
			b.q.Receive(l.now, &h, payload)
			b.q.Transmit(l.now, &b.batch)
			b.batch.Reset()
		}
		if b.q.resp.expected != first+4 {
			t.Fatal("not carried out")
		}
	}
	for range 2 * maxTrack {
		once()
	}
	if n := testing.AllocsPerRun(100, once); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
}
