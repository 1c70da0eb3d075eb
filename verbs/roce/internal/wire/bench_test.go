package wire

import (
	"encoding/binary"
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

// BenchmarkICRC computes the checksum, checks it, and finds the identification.
func BenchmarkICRC(b *testing.B) {
	for name, run := range map[string]func(packet []byte, header, payload int){
		"Sum": func(p []byte, header, payload int) {
			sinkSum = flow4.Sum(0xbeef, p[:header], p[header:][:payload], int(PadOf(payload)))
		},
		"Check":   func(p []byte, _, _ int) { flow4.Check(0xbeef, p) },
		"SolveID": func(p []byte, _, _ int) { flow4.SolveID(p) },
	} {
		for _, s := range benchShapes {
			packet := packetOf(&flow4, 0xbeef, s.h, s.n)
			b.Run(name+"/"+s.h.Opcode.String()+"/"+strconv.Itoa(s.n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(packet)))
				for b.Loop() {
					run(packet, s.h.Len(), s.n)
				}
			})
		}
	}
}

var sinkSum uint32

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
