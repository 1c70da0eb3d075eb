package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Whatever arrives is refused, or encodes again to the bytes that it came in, but for those that
// are reserved; its payload lies within it.
func FuzzParse(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add(v.packet)
	}
	for _, l := range layouts {
		h := full
		h.Opcode = l.opcode
		size := 0
		if l.payload {
			size = 5
		}
		f.Add(packetOf(&flow4, 0, h, size))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		before := bytes.Clone(packet)
		var h Header
		payload, err := Parse(packet, &h)
		check, _ := flow4.SolveID(packet)
		if !bytes.Equal(packet, before) {
			t.Fatal("reading the packet changed it")
		}
		if err != nil {
			if payload != nil || h != (Header{}) {
				t.Fatalf("refused (%v), and yet decoded: %+v", err, h)
			}
			return
		}
		if id, ok := flow4.SolveID(packet); ok && (id != check || !flow4.Check(id, packet)) {
			t.Fatalf("the identification %d does not check", id)
		}
		var buf [MaxHeader]byte
		n := h.Put(buf[:])
		end := len(packet) - ICRCSize - int(h.Pad)
		if n > end || !bytes.Equal(payload, packet[n:end]) {
			t.Fatalf("%v: a payload of %d bytes in %d", h.Opcode, len(payload), len(packet))
		}
		before[1] |= bthMigReq
		before[4] = 0
		if !bytes.Equal(buf[:n], before[:n]) {
			t.Fatalf("encoded again as\n%x, was\n%x", buf[:n], before[:n])
		}
	})
}

// Any header, with any payload, arrives as it was sent; its ICRC is that of the specification, and
// no longer is when a bit changes.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint8(SendOnly), []byte("payload"), uint16(0), uint(7))
	f.Add(uint64(2), uint8(Acknowledge), []byte{}, uint16(0xbeef), uint(100))
	f.Fuzz(func(t *testing.T, seed uint64, opcode uint8, payload []byte, id uint16, bit uint) {
		l := layouts[int(opcode)%len(layouts)]
		r := rand.New(rand.NewPCG(seed, 0))
		h := randomHeader(r, l.opcode)
		if !l.payload || len(payload) > 1<<15 {
			payload = nil
		}
		h.Pad = PadOf(len(payload))
		v6 := r.IntN(2) == 0
		if v6 {
			id = 0
		}
		src, dst := randomAddr(r, v6), randomAddr(r, v6)
		flow := NewFlow(src, dst)

		var buf [MaxHeader]byte
		n := h.Put(buf[:])
		packet := append(append(buf[:n:n], payload...), make([]byte, int(h.Pad)+ICRCSize)...)
		sum := flow.Sum(id, buf[:n], payload, int(h.Pad))
		if want := slowICRC(src, dst, id, packet); sum != want {
			t.Fatalf("ICRC %08x, want %08x", sum, want)
		}
		copy(packet[len(packet)-ICRCSize:], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16),
			byte(sum >> 24)})

		var got Header
		data, err := Parse(packet, &got)
		if err != nil || got != keep(h, l.fields) || !bytes.Equal(data, payload) {
			t.Fatalf("%+v: decoded as %+v, %d bytes, %v", h, got, len(data), err)
		}
		if found, ok := flow.SolveID(packet); !flow.Check(id, packet) || !ok || found != id {
			t.Fatalf("the ICRC does not check, or only with identification %d", found)
		}
		bit %= uint(8 * len(packet))
		packet[bit/8] ^= 1 << (bit % 8)
		if flow.Check(id, packet) != (bit/8 == 4) {
			t.Fatalf("bit %d of byte %d does not decide", bit%8, bit/8)
		}
	})
}
