package wire

import (
	"bytes"
	"encoding/binary"
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
		before[4] &= bthBackward
		if !bytes.Equal(buf[:n], before[:n]) {
			t.Fatalf("encoded again as\n%x, was\n%x", buf[:n], before[:n])
		}
	})
}

// Any header, with any payload, arrives as it was sent; its ICRC is that of the specification, and
// no longer is when a bit changes that routers leave alone.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 3000 {
		payload := make([]byte, r.IntN(300))
		if i%50 == 0 {
			payload = make([]byte, r.IntN(5000))
		}
		for j := range payload {
			payload[j] = byte(r.Uint32())
		}
		roundTrip(t, r, uint8(i), payload, uint16(r.Uint32()), uint(r.Uint32()))
	}
}

// FuzzRoundTrip lets the fuzzer choose.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint8(SendOnly), []byte("payload"), uint16(0), uint(7))
	f.Add(uint64(2), uint8(Acknowledge), []byte{}, uint16(0xbeef), uint(100))
	f.Fuzz(func(t *testing.T, seed uint64, opcode uint8, payload []byte, id uint16, bit uint) {
		roundTrip(t, rand.New(rand.NewPCG(seed, 0)), opcode, payload, id, bit)
	})
}

// roundTrip encodes a packet, decodes it, and then changes a bit.
func roundTrip(t *testing.T, r *rand.Rand, opcode uint8, payload []byte, id uint16, bit uint) {
	l := layouts[int(opcode)%len(layouts)]
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
		t.Fatalf("%v to %v, id %d, %v, %d bytes: ICRC %08x, want %08x", src, dst, id, h.Opcode, len(payload),
			sum, want)
	}
	binary.LittleEndian.PutUint32(packet[len(packet)-ICRCSize:], sum)

	var got Header
	data, err := Parse(packet, &got)
	if err != nil || got != keep(h, l.fields) || !bytes.Equal(data, payload) {
		t.Fatalf("%+v: decoded as %+v, %d bytes, %v", h, got, len(data), err)
	}
	packet[4] = byte(r.Uint32()) // routers may change it
	if found, ok := flow.SolveID(packet); !flow.Check(id, packet) || !ok || found != id {
		t.Fatalf("the ICRC does not check, or only with identification %d", found)
	}
	bit %= uint(8 * len(packet))
	packet[bit/8] ^= 1 << (bit % 8)
	if flow.Check(id, packet) != (bit/8 == 4) {
		t.Fatalf("bit %d of byte %d does not decide", bit%8, bit/8)
	}
}
