package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
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
