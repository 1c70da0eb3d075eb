package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strconv"
	"testing"
)

// The flows of the tests.
var (
	flow4 = NewFlow(netip.MustParseAddrPort("10.9.0.1:49441"), netip.MustParseAddrPort("10.9.0.2:4791"))
	flow6 = NewFlow(netip.MustParseAddrPort("[fd00:9::1]:49458"), netip.MustParseAddrPort("[fd00:9::2]:4791"))
)

// packetOf encodes h with a payload of n bytes, and its ICRC for id.
func packetOf(flow *Flow, id uint16, h Header, n int) []byte {
	h.Pad = PadOf(n)
	packet := make([]byte, MaxHeader, MaxHeader+n+7)
	packet = packet[:h.Put(packet)]
	header := len(packet)
	for i := range n {
		packet = append(packet, byte(i*7+i>>8+1))
	}
	sum := flow.Sum(id, packet[:header], packet[header:], int(h.Pad))
	packet = append(packet, make([]byte, h.Pad)...)
	return binary.LittleEndian.AppendUint32(packet, sum)
}

// A packet of the header alone, of path MTUs, and of odd lengths.
var (
	benchHeaders = []Header{
		{Opcode: Acknowledge, PKey: 0xffff, DestQP: 17, PSN: 0x123456, Syndrome: Ack, MSN: 7},
		{Opcode: WriteMiddle, PKey: 0xffff, DestQP: 17, PSN: 0x123456},
		{Opcode: WriteOnly, PKey: 0xffff, DestQP: 17, PSN: 0x123456, Addr: 0x7f0000001000, RKey: 5,
			Length: 8},
		{Opcode: FetchAdd, PKey: 0xffff, DestQP: 17, PSN: 0x123456, Addr: 0x7f0000001000, RKey: 5,
			SwapAdd: 1},
	}
	benchShapes = []struct {
		h Header
		n int
	}{
		{benchHeaders[0], 0}, {benchHeaders[3], 0}, {benchHeaders[2], 8}, {benchHeaders[1], 8},
		{benchHeaders[1], 61}, {benchHeaders[1], 64}, {benchHeaders[1], 256}, {benchHeaders[1], 1024},
		{benchHeaders[1], 4093},
		{benchHeaders[2], 4096}, {benchHeaders[1], 4096},
	}
)

func BenchmarkSum(b *testing.B) {
	for _, s := range benchShapes {
		packet := packetOf(&flow4, 0, s.h, s.n)
		n := s.h.Len()
		b.Run(s.h.Opcode.String()+"/"+strconv.Itoa(s.n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(packet)))
			var sum uint32
			for b.Loop() {
				sum += flow4.Sum(0, packet[:n], packet[n:n+s.n], int(PadOf(s.n)))
			}
			sinkSum = sum
		})
	}
}

var sinkSum uint32

func BenchmarkCheck(b *testing.B) {
	for _, s := range benchShapes {
		packet := packetOf(&flow4, 0, s.h, s.n)
		b.Run(s.h.Opcode.String()+"/"+strconv.Itoa(s.n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(packet)))
			for b.Loop() {
				if !flow4.Check(0, packet) {
					b.Fatal("wrong")
				}
			}
		})
	}
}

func BenchmarkSolveID(b *testing.B) {
	for _, s := range benchShapes {
		packet := packetOf(&flow4, 0xbeef, s.h, s.n)
		b.Run(s.h.Opcode.String()+"/"+strconv.Itoa(s.n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(packet)))
			for b.Loop() {
				if id, ok := flow4.SolveID(packet); id != 0xbeef || !ok {
					b.Fatal("wrong")
				}
			}
		})
	}
}

// What hash/crc32 costs by itself.
func BenchmarkCRC32(b *testing.B) {
	for _, n := range []int{8, 16, 32, 48, 64, 128, 256, 1024, 4096, 4108} {
		p := make([]byte, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			var sum uint32
			for b.Loop() {
				sum = crc32.Update(sum, crc32.IEEETable, p)
			}
			sinkSum = sum
		})
		b.Run(strconv.Itoa(n)+"/few", func(b *testing.B) {
			b.SetBytes(int64(n))
			var sum uint32
			for b.Loop() {
				sum = runFew(sum, p)
			}
			sinkSum = sum
		})
	}
}

func BenchmarkPut(b *testing.B) {
	for _, h := range benchHeaders {
		b.Run(h.Opcode.String(), func(b *testing.B) {
			b.ReportAllocs()
			var buf [MaxHeader]byte
			for b.Loop() {
				h.Put(buf[:])
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, h := range benchHeaders {
		packet := packetOf(&flow4, 0, h, 0)
		b.Run(h.Opcode.String(), func(b *testing.B) {
			b.ReportAllocs()
			var got Header
			for b.Loop() {
				if _, err := Parse(packet, &got); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
