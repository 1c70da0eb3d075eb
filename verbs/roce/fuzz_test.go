package roce

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// FuzzDatagrams gives a NIC datagrams: as they are, or made whole, for one of its queue pairs, from
// its peer, another process of the peer's host, or a stranger. Nothing panics, another queue pair
// of the NIC is not disturbed, and every datagram is counted.
func FuzzDatagrams(f *testing.F) {
	at := netip.MustParseAddrPort("127.0.0.2:4791")
	for i, h := range []wire.Header{
		{Opcode: wire.SendOnly}, {Opcode: wire.SendFirst, PSN: 1}, {Opcode: wire.WriteOnlyImm, Length: 8},
		{Opcode: wire.WriteMiddle}, {Opcode: wire.ReadRequest, Length: 1 << 31}, {Opcode: wire.FetchAdd},
		{Opcode: wire.Acknowledge, Syndrome: wire.NakSequence}, {Opcode: wire.ReadResponseLast},
		{Opcode: wire.AtomicAcknowledge}, {Opcode: wire.Acknowledge, Syndrome: wire.Ack, PSN: 5},
	} {
		var payload []byte
		if h.Opcode.IsSend() || h.Opcode.IsWrite() || h.Syndrome == wire.NakSequence {
			payload = make([]byte, 8)
		}
		f.Add(uint8(i), seal(at, at, h, payload))
	}
	p := openNICs(f, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(f, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	victims := [2]*QP{a.newQP(f), b.newQP(f)}
	f.Cleanup(func() {
		must(f, victims[0].Close())
		must(f, victims[1].Close())
	})
	froms := []netip.AddrPort{b.dev.local, netip.AddrPortFrom(b.dev.local.Addr(), 0xc123),
		netip.MustParseAddrPort("127.0.0.3:4791")}
	id := uint64(0)
	f.Fuzz(func(t *testing.T, how uint8, packet []byte) {
		for _, qp := range victims {
			must(t, qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
		}
		must(t, verbstest.Connect(victims[0], victims[1], verbstest.ConnectConfig{Port: 1,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.SQPSN, attr.RQPSN = 0, 0 }}))
		wr := a.write(b, 0, 64)
		wr.RKey = 0 // so that something is under way, and does not complete
		if how&0x40 != 0 {
			_, err := victims[0].PostSend([]verbs.SendWR{wr})
			must(t, err)
		}
		from := froms[int(how)%len(froms)]
		packet = append([]byte(nil), packet...)
		if how&0x80 == 0 && len(packet) >= 16 {
			binary.BigEndian.PutUint32(packet[4:], victims[0].Num())
			end := len(packet) - wire.ICRCSize
			flow := wire.NewFlow(from, a.dev.local)
			binary.LittleEndian.PutUint32(packet[end:], flow.Sum(0, packet[:end], nil, 0))
		}
		r := &a.dev.recv
		r.mu.Lock()
		a.dev.mu.Lock()
		r.packet(a.dev.now(), &udp.Datagram{Data: packet, From: from, Bundle: 1})
		for i, q := range r.dirty {
			q.touched = false
			q.transmit()
			r.dirty[i] = nil
		}
		r.dirty = r.dirty[:0]
		a.dev.mu.Unlock()
		r.mu.Unlock()
		id++
		a.post(t, a.write(b, id, 64))
		for {
			wc := a.poll(t)
			if wc.QPNum == victims[0].Num() {
				if wc.Status == verbs.StatusSuccess && from == froms[2] {
					t.Fatal("a stranger's packet completes a request")
				}
				continue
			}
			if wc.Status != verbs.StatusSuccess || wc.ID != id {
				t.Fatalf("completion of %d: %v", wc.ID, wc.Status)
			}
			break
		}
		if b.qp.State() != verbs.StateRTS || a.qp.State() != verbs.StateRTS {
			t.Fatal("another connection has ended")
		}
	})
}
