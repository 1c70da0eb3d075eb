package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
)

// vector is a packet that the kernel's rdma_rxe sent.
type vector struct {
	src, dst netip.AddrPort
	id       uint16 // 0 in IPv6
	packet   []byte
}

// readVectors reads testdata/icrc-vectors.txt.
func readVectors(t testing.TB) (vectors []vector) {
	t.Helper()
	file, err := os.Open("testdata/icrc-vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var src, dst, digits string
		var sport, dport, df uint16
		var id int
		_, err := fmt.Sscanf(lines.Text(), "VEC src=%s dst=%s sport=%d dport=%d ipid=%d df=%d udp_payload=%s",
			&src, &dst, &sport, &dport, &id, &df, &digits)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		packet, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		vectors = append(vectors, vector{
			src:    netip.AddrPortFrom(netip.MustParseAddr(src), sport),
			dst:    netip.AddrPortFrom(netip.MustParseAddr(dst), dport),
			id:     uint16(max(id, 0)),
			packet: packet,
		})
	}
	if len(vectors) != 32 {
		t.Fatalf("%d vectors, want 32", len(vectors))
	}
	return vectors
}

// What rdma_rxe sent has the ICRC that a Flow computes, and its identification is found.
func TestVectors(t *testing.T) {
	for i, v := range readVectors(t) {
		flow := NewFlow(v.src, v.dst)
		var h Header
		payload, err := Parse(v.packet, &h)
		if err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		want := binary.LittleEndian.Uint32(v.packet[len(v.packet)-ICRCSize:])
		if got := flow.Sum(v.id, v.packet[:h.Len()], payload, int(h.Pad)); got != want {
			t.Errorf("%d, %v: Sum %08x, want %08x", i, h.Opcode, got, want)
		}
		if !flow.Check(v.id, v.packet) {
			t.Errorf("%d, %v: Check refuses it", i, h.Opcode)
		}
		if id, ok := flow.SolveID(v.packet); id != v.id || !ok {
			t.Errorf("%d, %v: SolveID %d, %v; want %d", i, h.Opcode, id, ok, v.id)
		}
	}
}

// datagram is the IP header, the UDP header and the packet of a datagram, as RFC 791, 8200 and 768
// lay them out, with values in the fields that the ICRC leaves out.
func datagram(src, dst netip.AddrPort, id uint16, packet []byte) (b []byte, ip int) {
	length := uint16(8 + len(packet))
	if src.Addr().Is4() {
		b = append(b, 0x45, 0xb9)
		b = binary.BigEndian.AppendUint16(b, 20+length)
		b = binary.BigEndian.AppendUint16(b, id)
		b = append(b, 0x40, 0, 61, 17, 0x12, 0x34) // DF, TTL, UDP, checksum
	} else {
		b = append(b, 0x6b, 0x91, 0x23, 0x45)
		b = binary.BigEndian.AppendUint16(b, length)
		b = append(b, 17, 61)
	}
	b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	ip = len(b)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, length)
	b = append(b, 0x56, 0x78)
	return append(b, packet...), ip
}

// slowICRC is the ICRC as IBTA annex A17.3.3 tells it, bit by bit, of a packet that ends in one.
func slowICRC(src, dst netip.AddrPort, id uint16, packet []byte) uint32 {
	b, ip := datagram(src, dst, id, packet)
	ones := func(at ...int) {
		for _, i := range at {
			b[i] = 0xff
		}
	}
	if b[0]>>4 == 4 {
		ones(1, 8, 10, 11) // TOS, TTL, checksum
	} else {
		b[0] |= 0x0f // traffic class and flow label
		ones(1, 2, 3, 7)
	}
	ones(ip+6, ip+7) // UDP checksum
	ones(ip + 8 + 4) // what holds FECN and BECN
	covered := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, b[:len(b)-4]...)
	crc := ^uint32(0)
	for _, c := range covered {
		for bit := range 8 {
			feedback := (crc ^ uint32(c)>>bit) & 1
			crc >>= 1
			if feedback != 0 {
				crc ^= 0xedb88320
			}
		}
	}
	return ^crc
}

// randomAddr is a socket address of either family.
func randomAddr(r *rand.Rand, v6 bool) netip.AddrPort {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	addr := netip.AddrFrom4([4]byte(b[:4]))
	if v6 {
		b[0] = 0xfd
		addr = netip.AddrFrom16(b)
	}
	return netip.AddrPortFrom(addr, uint16(r.Uint32()))
}

// An IPv4 address in the form of IPv6 is the IPv4 address.
func TestMappedAddresses(t *testing.T) {
	mapped := NewFlow(netip.MustParseAddrPort("[::ffff:10.9.0.1]:49441"),
		netip.MustParseAddrPort("10.9.0.2:4791"))
	if mapped != flow4 {
		t.Error("an IPv4 address in the form of IPv6 makes another flow")
	}
}

// Any bit that changes is noticed, but for those that routers change; Check only reads.
func TestCorruption(t *testing.T) {
	for _, flow := range []*Flow{&flow4, &flow6} {
		for _, size := range []int{0, 5, 64, 1024} {
			packet := packetOf(flow, 0, benchHeaders[2], size)
			for bit := range 8 * len(packet) {
				packet[bit/8] ^= 1 << (bit % 8)
				before := bytes.Clone(packet)
				if got, want := flow.Check(0, packet), bit/8 == 4; got != want {
					t.Errorf("%d bytes, bit %d of byte %d: Check says %v", size, bit%8, bit/8, got)
				}
				if !bytes.Equal(packet, before) {
					t.Fatal("Check changed the packet")
				}
				packet[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// A packet of another flow, direction, identification or length is noticed.
func TestOtherFlows(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.9.0.1:49441"), netip.MustParseAddrPort("10.9.0.2:4791")
	packet := packetOf(&flow4, 0, benchHeaders[1], 100)
	for name, flow := range map[string]Flow{
		"source address":      NewFlow(netip.MustParseAddrPort("10.9.0.3:49441"), dst),
		"destination address": NewFlow(src, netip.MustParseAddrPort("10.9.0.3:4791")),
		"source port":         NewFlow(netip.MustParseAddrPort("10.9.0.1:49442"), dst),
		"destination port":    NewFlow(src, netip.MustParseAddrPort("10.9.0.2:4792")),
		"direction":           NewFlow(dst, src),
		"family":              flow6,
	} {
		if flow.Check(0, packet) {
			t.Errorf("another %s is not noticed", name)
		}
	}
	if flow4.Check(1, packet) {
		t.Error("another identification is not noticed")
	}
	if flow4.Check(0, packet[:len(packet)-4]) || flow4.Check(0, append(packet, 0, 0, 0, 0)) {
		t.Error("another length is not noticed")
	}
}

// Any length is answered.
func TestShortPackets(t *testing.T) {
	for n := range bthSize + ICRCSize {
		if flow4.Check(0, make([]byte, n)) || flow6.Check(0, make([]byte, n)) {
			t.Errorf("%d bytes are a packet", n)
		}
		if id, ok := flow4.SolveID(make([]byte, n)); id != 0 || ok {
			t.Errorf("%d bytes have an identification: %d", n, id)
		}
	}
}

// Every identification is found, at lengths on both sides of what the tables divide at.
func TestSolveID(t *testing.T) {
	for _, size := range []int{0, 4, 208, 212, 216, 220, 4096, 65444} {
		h := benchHeaders[1]
		packet := packetOf(&flow4, 0, h, size)
		at := len(packet) - ICRCSize
		step := 1
		if size > 1000 {
			step = 977
		}
		for id := 0; id < 1<<16; id += step {
			sum := flow4.Sum(uint16(id), packet[:bthSize], packet[bthSize:at], 0)
			binary.LittleEndian.PutUint32(packet[at:], sum)
			if got, ok := flow4.SolveID(packet); int(got) != id || !ok {
				t.Fatalf("%d bytes, identification %d: %d, %v", size, id, got, ok)
			}
		}
	}
}

// A wrong packet has no identification, but for one in 2^16: SolveID says what trying all of them
// would say.
func TestSolveIDRefuses(t *testing.T) {
	packet := packetOf(&flow4, 7, benchHeaders[2], 30)
	at := len(packet) - ICRCSize
	sums := map[uint32]uint16{}
	for id := range 1 << 16 {
		sums[flow4.Sum(uint16(id), packet[:28], packet[28:at], 0)] = uint16(id)
	}
	r := rand.New(rand.NewPCG(5, 6))
	passed := 0
	for range 1 << 20 {
		sum := r.Uint32()
		binary.LittleEndian.PutUint32(packet[at:], sum)
		want, exists := sums[sum]
		got, ok := flow4.SolveID(packet)
		if ok != exists || ok && got != want {
			t.Fatalf("%08x: %d, %v; want %d, %v", sum, got, ok, want, exists)
		}
		if ok {
			passed++
		}
	}
	if passed == 0 || passed > 48 { // 16 are expected
		t.Errorf("%d wrong packets of 2^20 pass", passed)
	}
	packet = packetOf(&flow6, 0, benchHeaders[2], 30)
	packet[20] ^= 1
	if id, ok := flow6.SolveID(packet); ok {
		t.Errorf("a wrong packet of IPv6 passes, with identification %d", id)
	}
}

// The payload may stand apart from the header, and the header may be split anywhere behind the BTH.
func TestSumInParts(t *testing.T) {
	packet := packetOf(&flow6, 0, benchHeaders[1], 200)
	end := len(packet) - ICRCSize
	want := binary.LittleEndian.Uint32(packet[end:])
	for n := bthSize; n <= end; n++ {
		payload := bytes.Clone(packet[n:end])
		if got := flow6.Sum(0, packet[:n], payload, 0); got != want {
			t.Errorf("split at %d: %08x, want %08x", n, got, want)
		}
	}
}
