package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
)

// full is a header with every field set.
var full = Header{
	Solicited: true, AckReq: true, Pad: 2, PKey: 0x8765, DestQP: 0x123456, PSN: 0xabcdef,
	Addr: 0x0102030405060708, RKey: 0x11121314, Length: 0x21222324,
	SwapAdd: 0x3132333435363738, Compare: 0x4142434445464748,
	Syndrome: 0x62, MSN: 0x515253, Original: 0x6162636465666768, Imm: 0x71727374,
}

// The extended headers of full, by IBTA volume 1, chapter 9.
const (
	fullRETH   = "0102030405060708 11121314 21222324"
	fullAtomic = "0102030405060708 11121314 3132333435363738 4142434445464748"
	fullAETH   = "62 515253"
	fullOld    = "6162636465666768"
	fullImm    = "71727374"
)

// layouts has what follows the BTH of full by opcode, the fields that this is, and whether a
// payload may follow.
var layouts = []struct {
	opcode   Opcode
	number   byte
	extended string
	fields   string
	payload  bool
}{
	{SendFirst, 0x00, "", "", true},
	{SendMiddle, 0x01, "", "", true},
	{SendLast, 0x02, "", "", true},
	{SendLastImm, 0x03, fullImm, "imm", true},
	{SendOnly, 0x04, "", "", true},
	{SendOnlyImm, 0x05, fullImm, "imm", true},
	{WriteFirst, 0x06, fullRETH, "reth", true},
	{WriteMiddle, 0x07, "", "", true},
	{WriteLast, 0x08, "", "", true},
	{WriteLastImm, 0x09, fullImm, "imm", true},
	{WriteOnly, 0x0a, fullRETH, "reth", true},
	{WriteOnlyImm, 0x0b, fullRETH + fullImm, "reth imm", true},
	{ReadRequest, 0x0c, fullRETH, "reth", false},
	{ReadResponseFirst, 0x0d, fullAETH, "aeth", true},
	{ReadResponseMiddle, 0x0e, "", "", true},
	{ReadResponseLast, 0x0f, fullAETH, "aeth", true},
	{ReadResponseOnly, 0x10, fullAETH, "aeth", true},
	{Acknowledge, 0x11, fullAETH, "aeth", false},
	{AtomicAcknowledge, 0x12, fullAETH + fullOld, "aeth original", false},
	{CompareSwap, 0x13, fullAtomic, "atomic", false},
	{FetchAdd, 0x14, fullAtomic, "atomic", false},
}

// unhex decodes digits with spaces between them.
func unhex(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// keep clears the fields of h that a packet with these extended headers has no room for.
func keep(h Header, fields string) Header {
	if !strings.Contains(fields, "reth") {
		h.Length = 0
		if !strings.Contains(fields, "atomic") {
			h.Addr, h.RKey = 0, 0
		}
	}
	if !strings.Contains(fields, "atomic") {
		h.SwapAdd, h.Compare = 0, 0
	}
	if !strings.Contains(fields, "aeth") {
		h.Syndrome, h.MSN = 0, 0
	}
	if !strings.Contains(fields, "original") {
		h.Original = 0
	}
	if !strings.Contains(fields, "imm") {
		h.Imm = 0
	}
	return h
}

// Each opcode is encoded as the specification lays it out, and decoded to what it was.
func TestLayouts(t *testing.T) {
	for _, l := range layouts {
		h := full
		h.Opcode = l.opcode
		payload := "aabbccddeeff"
		if !l.payload {
			h.Pad, payload = 0, ""
		}
		// SE 1, migrated 1, pad count, version 0.
		want := append([]byte{l.number, 0xc0 | h.Pad<<4}, unhex(t, "8765 00 123456 80 abcdef"+l.extended)...)

		buf := bytes.Repeat([]byte{0xee}, MaxHeader)
		n := h.Put(buf)
		if !bytes.Equal(buf[:n], want) {
			t.Errorf("%v: encoded as\n%x, want\n%x", h.Opcode, buf[:n], want)
		}
		if n != h.Len() || n != l.opcode.HeaderLen() {
			t.Errorf("%v: Put says %d bytes, Len %d, HeaderLen %d", h.Opcode, n, h.Len(),
				l.opcode.HeaderLen())
		}
		if rest := buf[n:]; !bytes.Equal(rest, bytes.Repeat([]byte{0xee}, len(rest))) {
			t.Errorf("%v: Put wrote more than it says: %x", h.Opcode, rest)
		}

		packet := append(want, unhex(t, payload+strings.Repeat("00", int(h.Pad))+"01020304")...)
		var got Header
		data, err := Parse(packet, &got)
		if err != nil || got != keep(h, l.fields) || !bytes.Equal(data, unhex(t, payload)) {
			t.Errorf("%v: decoded as\n%+v, %x, %v; want\n%+v", h.Opcode, got, data, err, keep(h, l.fields))
		}
		other := full // what it held stays where the packet has nothing
		if _, err := Parse(packet, &other); err != nil || other != h {
			t.Errorf("%v: decoded over another as\n%+v, %v; want\n%+v", h.Opcode, other, err, h)
		}
	}
}

// The bits of the BTH, one at a time.
func TestFlags(t *testing.T) {
	for _, test := range []struct {
		h    Header
		want string
	}{
		{Header{Opcode: SendOnly}, "04 40 0000 00000000 00000000"},
		{Header{Opcode: SendOnly, Solicited: true}, "04 c0 0000 00000000 00000000"},
		{Header{Opcode: SendOnly, AckReq: true}, "04 40 0000 00000000 80000000"},
		{Header{Opcode: SendOnly, Pad: 1}, "04 50 0000 00000000 00000000"},
		{Header{Opcode: SendOnly, Pad: 3}, "04 70 0000 00000000 00000000"},
		{Header{Opcode: SendOnly, PKey: 0xffff}, "04 40 ffff 00000000 00000000"},
		{Header{Opcode: SendOnly, DestQP: 0xffffff}, "04 40 0000 00ffffff 00000000"},
		{Header{Opcode: SendOnly, PSN: 0xffffff}, "04 40 0000 00000000 00ffffff"},
	} {
		var buf [MaxHeader]byte
		n := test.h.Put(buf[:])
		if want := unhex(t, test.want); !bytes.Equal(buf[:n], want) {
			t.Errorf("%+v: encoded as %x, want %x", test.h, buf[:n], want)
		}
		payload := 4 - int(test.h.Pad)
		var got Header
		data, err := Parse(append(buf[:n:n], make([]byte, 8)...), &got)
		if err != nil || got != test.h || len(data) != payload {
			t.Errorf("%+v: decoded as %+v, %d bytes, %v", test.h, got, len(data), err)
		}
	}
}

// Numbers of 24 bits do not spill into their neighbours.
func TestWideNumbers(t *testing.T) {
	h := Header{Opcode: Acknowledge, DestQP: 0xff123456, PSN: 0xffabcdef, Syndrome: Ack, MSN: 0xff515253,
		Pad: 0xfc, Reserved: 0x80}
	var buf [MaxHeader]byte
	got, want := buf[:h.Put(buf[:])], unhex(t, "11 40 0000 00123456 00abcdef 1f515253")
	if !bytes.Equal(got, want) {
		t.Errorf("encoded as %x, want %x", got, want)
	}
}

// A CNP is what NICs send: this one is of a ConnectX, in Mellanox's "RoCEv2 CNP Packet Format
// Example".
func TestCNP(t *testing.T) {
	h := Header{Opcode: Congestion, PKey: 0xffff, DestQP: 0xd2, Backward: true}
	buf := bytes.Repeat([]byte{0x5a}, MaxHeader)
	want := unhex(t, "81 00 ffff 400000d2 00000000 00000000000000000000000000000000")
	if packet := buf[:h.Put(buf)]; !bytes.Equal(packet, want) {
		t.Errorf("encoded as %x, want %x", packet, want)
	}
	var got Header
	payload, err := Parse(append(want, 0xe4, 0x2d, 0xad, 0x81), &got)
	if err != nil || got != h || len(payload) != 0 {
		t.Errorf("%+v, %d bytes of payload, %v", got, len(payload), err)
	}
	if _, err := Parse(append(want, 0, 0, 0, 0, 1, 2, 3, 4), &got); !errors.Is(err, ErrPayload) {
		t.Errorf("with a payload: %v", err)
	}
}

// What a network may change, and the migration state, are not looked at. The bits beside AckReq are
// told; they are for callers to ignore.
func TestReservedBits(t *testing.T) {
	packet := unhex(t, "04 00 ffff ff123456 7fabcdef 01020304") // not migrated; FECN, BECN, reserved bits
	var h Header
	payload, err := Parse(packet, &h)
	if want := (Header{Opcode: SendOnly, PKey: 0xffff, DestQP: 0x123456, PSN: 0xabcdef,
		Backward: true, Reserved: 0x7f}); err != nil || h != want {
		t.Errorf("%+v, %v; want %+v", h, err, want)
	}
	if len(payload) != 0 {
		t.Errorf("a payload of %d bytes", len(payload))
	}
}

// Packets that are not well-formed are refused, each for what is wrong with it.
func TestRejects(t *testing.T) {
	for _, test := range []struct {
		name, packet string
		want         error
	}{
		{"nothing", "", ErrShort},
		{"one byte", "04", ErrShort},
		{"no ICRC", "04 40 ffff 00123456 00abcdef", ErrShort},
		{"a part of the ICRC", "04 40 ffff 00123456 00abcdef 010203", ErrShort},
		{"no AETH", "11 40 ffff 00123456 00abcdef 01020304", ErrShort},
		{"a part of the RETH", "0c 40 ffff 00123456 00abcdef 0102030405060708 11121314 01020304", ErrShort},
		{"no immediate", "0b 40 ffff 00123456 00abcdef" + fullRETH + "01020304", ErrShort},
		{"version 1", "04 41 ffff 00123456 00abcdef 01020304", ErrVersion},
		{"version 8", "04 48 ffff 00123456 00abcdef 01020304", ErrVersion},
		{"the first opcode that is not known", "15 40 ffff 00123456 00abcdef 01020304", ErrOpcode},
		{"SEND with invalidate", "17 40 ffff 00123456 00abcdef 11121314 01020304", ErrOpcode},
		{"an opcode of datagrams", "64 40 ffff 00123456 00abcdef 0000000000000001 01020304", ErrOpcode},
		{"the last opcode", "ff 40 ffff 00123456 00abcdef 01020304", ErrOpcode},
		{"pad without payload", "04 50 ffff 00123456 00abcdef 01020304", ErrPad},
		{"a payload that is not padded", "04 40 ffff 00123456 00abcdef aabb 01020304", ErrPad},
		{"an acknowledgement that is not padded", "11 40 ffff 00123456 00abcdef 1f000001 aa 01020304",
			ErrPad},
		{"an atomic's acknowledgement with payload",
			"12 40 ffff 00123456 00abcdef 1f000001" + fullOld + "aabbccdd 01020304", ErrPayload},
		{"an acknowledgement with pad", "11 50 ffff 00123456 00abcdef 1f000001 01020304", ErrPad},
		{"a READ request with payload", "0c 40 ffff 00123456 00abcdef" + fullRETH + "aabbccdd 01020304",
			ErrPayload},
		{"an atomic with payload", "14 40 ffff 00123456 00abcdef" + fullAtomic + "aabbccdd 01020304",
			ErrPayload},
	} {
		before := full
		h := before
		payload, err := Parse(unhex(t, test.packet), &h)
		if !errors.Is(err, test.want) || payload != nil {
			t.Errorf("%s: %x, %v; want %v", test.name, payload, err, test.want)
		}
		if h != before {
			t.Errorf("%s: refused, and yet decoded", test.name)
		}
	}
}

// Every length of every opcode is refused or leaves a payload within it.
func TestLengths(t *testing.T) {
	for _, l := range layouts {
		for n := range 64 {
			for pad := range 4 {
				packet := make([]byte, n, n+8)
				copy(packet, []byte{l.number, 0x40 | byte(pad)<<4})
				var h Header
				payload, err := Parse(packet, &h)
				rest := n - l.opcode.HeaderLen() - ICRCSize
				ok := rest >= 0 && rest%4 == 0 && rest >= pad && (l.payload || rest == 0)
				if (err == nil) != ok {
					t.Errorf("%v, %d bytes, pad %d: %v", l.opcode, n, pad, err)
				}
				if err == nil && len(payload) != rest-pad {
					t.Errorf("%v, %d bytes, pad %d: a payload of %d bytes", l.opcode, n, pad, len(payload))
				}
			}
		}
	}
}

// randomHeader is a header with any values that its fields can hold.
func randomHeader(r *rand.Rand, o Opcode) Header {
	return Header{
		Opcode: o, Solicited: r.IntN(2) == 0, AckReq: r.IntN(2) == 0, PKey: uint16(r.Uint32()),
		Reserved: uint8(r.Uint32()) & 0x7f,
		DestQP:   r.Uint32() & PSNMask, PSN: r.Uint32() & PSNMask,
		Addr: r.Uint64(), RKey: r.Uint32(), Length: r.Uint32(),
		SwapAdd: r.Uint64(), Compare: r.Uint64(),
		Syndrome: Syndrome(r.Uint32()), MSN: r.Uint32() & PSNMask, Original: r.Uint64(), Imm: r.Uint32(),
	}
}

// Nothing allocates, refusals included.
func TestNoAllocations(t *testing.T) {
	good := packetOf(&flow4, 7, benchHeaders[2], 100)
	unknown := bytes.Repeat([]byte{0xf0}, 16)
	var h Header
	var buf [MaxHeader]byte
	for name, f := range map[string]func(){
		"Put":   func() { benchHeaders[3].Put(buf[:]) },
		"Parse": func() { _, _ = Parse(good, &h) },
		"Parse of bad packets": func() {
			_, _ = Parse(nil, &h)
			_, _ = Parse(unknown, &h)
			_, _ = Parse(good[:len(good)-1], &h)
		},
		"Sum":     func() { sinkSum = flow4.Sum(1, good[:28], good[28:], 0) },
		"Check":   func() { flow6.Check(7, good) },
		"SolveID": func() { flow4.SolveID(good) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Bytes run through the register as in hash/crc32, at every length.
func TestRun(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := make([]byte, 400)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	for n := range p {
		register := r.Uint32()
		want := ^crc32.Update(^register, crc32.IEEETable, p[:n])
		if got := runFew(register, p[:n]); got != want {
			t.Errorf("runFew of %d bytes: %08x, want %08x", n, got, want)
		}
		if got := runMany(register, p[:n]); got != want {
			t.Errorf("runMany of %d bytes: %08x, want %08x", n, got, want)
		}
	}
}

// runBack undoes zeros, as many as there can be.
func TestRunBack(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	zeros := make([]byte, 1<<16)
	for i := range 600 {
		n := i
		if i >= 300 {
			n = r.IntN(1 << 16)
		}
		register := r.Uint32()
		if got := runBack(runMany(register, zeros[:n]), n); got != register {
			t.Errorf("%d zeros: %08x, want %08x", n, got, register)
		}
	}
}

// The product without carries is that of the school.
func TestMultiplyLong(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	numbers := []uint32{0, 1, 1 << 31, ^uint32(0), 0x11111111, 0x88888888}
	for range 200 {
		numbers = append(numbers, r.Uint32())
	}
	for _, a := range numbers {
		for _, b := range numbers {
			want := uint64(0)
			for bit := range 32 {
				if b>>bit&1 != 0 {
					want ^= uint64(a) << bit
				}
			}
			if got := multiplyLong(a, b); got != want {
				t.Fatalf("%08x times %08x: %016x, want %016x", a, b, got, want)
			}
		}
	}
}
