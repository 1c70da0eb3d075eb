package wire

import (
	"strings"
	"testing"
)

// The predicates say what the names say, for every byte.
func TestPredicates(t *testing.T) {
	known := map[Opcode]string{} // the fields that follow the BTH
	payload := map[Opcode]bool{}
	for _, l := range layouts {
		known[l.opcode], payload[l.opcode] = l.fields, l.payload
	}
	for b := range 256 {
		o := Opcode(b)
		fields, ok := known[o]
		if o == Congestion {
			continue // neither a request nor a response: TestCNP
		}
		name := ""
		if ok {
			name = o.String()
		}
		has := func(word string) bool { return strings.Contains(name, word) }
		field := func(word string) bool { return strings.Contains(fields, word) }
		single := ok && !has("first") && !has("middle") && !has("last")
		isResponse := has("response") || has("ACK")
		for _, p := range []struct {
			name      string
			got, want bool
		}{
			{"Known", o.Known(), ok},
			{"IsRequest", o.IsRequest(), ok && !isResponse},
			{"IsResponse", o.IsResponse(), isResponse},
			{"IsFirst", o.IsFirst(), has("first")},
			{"IsMiddle", o.IsMiddle(), has("middle")},
			{"IsLast", o.IsLast(), has("last")},
			{"IsOnly", o.IsOnly(), single},
			{"Begins", o.Begins(), has("first") || single},
			{"Ends", o.Ends(), has("last") || single},
			{"IsSend", o.IsSend(), has("SEND")},
			{"IsWrite", o.IsWrite(), has("WRITE")},
			{"IsRead", o.IsRead(), name == "READ request"},
			{"IsReadResponse", o.IsReadResponse(), has("READ response")},
			{"IsAtomic", o.IsAtomic(), has("CMP_SWAP") || has("FETCH_ADD")},
			{"HasImm", o.HasImm(), field("imm")},
			{"HasAETH", o.HasAETH(), field("aeth")},
			{"HasPayload", o.HasPayload(), payload[o]},
		} {
			if p.got != p.want {
				t.Errorf("%v: %s is %v", o, p.name, p.got)
			}
		}
		if (o.HeaderLen() == 0) == ok {
			t.Errorf("%v: headers of %d bytes", o, o.HeaderLen())
		}
	}
}

func TestOpcodeString(t *testing.T) {
	for o, want := range map[Opcode]string{
		SendLastImm: "SEND last with immediate", WriteOnlyImm: "WRITE only with immediate",
		ReadRequest: "READ request", ReadResponseOnly: "READ response only", Acknowledge: "ACK",
		AtomicAcknowledge: "atomic ACK", CompareSwap: "CMP_SWAP", FetchAdd: "FETCH_ADD",
		0x15: "opcode 0x15", 0xff: "opcode 0xff",
	} {
		if got := o.String(); got != want {
			t.Errorf("0x%02x: %q, want %q", uint8(o), got, want)
		}
	}
}

// Each byte is at most one kind of syndrome, and keeps its value.
func TestSyndromes(t *testing.T) {
	for b := range 256 {
		s := Syndrome(b)
		if got, want := s.IsAck(), b < 0x20; got != want {
			t.Errorf("0x%02x: IsAck is %v", b, got)
		}
		if got, want := s.IsRNR(), b >= 0x20 && b < 0x40; got != want {
			t.Errorf("0x%02x: IsRNR is %v", b, got)
		}
		if got, want := s.IsNak(), b >= 0x60 && b < 0x80; got != want {
			t.Errorf("0x%02x: IsNak is %v", b, got)
		}
		if got, want := s.Value(), uint8(b%32); got != want {
			t.Errorf("0x%02x: Value is %d", b, got)
		}
		if got, want := RNRNak(uint8(b)), Syndrome(0x20+b%32); got != want {
			t.Errorf("RNRNak(%d) is 0x%02x, want 0x%02x", b, uint8(got), uint8(want))
		}
	}
	for s, want := range map[Syndrome]string{
		Ack: "ACK", 0: "ACK", RNRNak(12): "RNR NAK, timer 12", NakSequence: "NAK: PSN sequence error",
		NakInvalidRequest: "NAK: invalid request", NakRemoteAccess: "NAK: remote access error",
		NakRemoteOperation: "NAK: remote operational error", 0x64: "syndrome 0x64", 0x40: "syndrome 0x40",
		0x80: "syndrome 0x80",
	} {
		if got := s.String(); got != want {
			t.Errorf("0x%02x: %q, want %q", uint8(s), got, want)
		}
	}
}

// An acknowledgement gives the most credits that have a code, and no more than was asked for.
func TestCredits(t *testing.T) {
	for code, want := range map[uint8]int{0: 0, 1: 1, 2: 2, 3: 3, 5: 6, 6: 8, 29: 24576, 30: 32768} {
		if got := Credits(code); got != want {
			t.Errorf("code %d is %d credits, want %d", code, got, want)
		}
	}
	for n := range 40000 {
		s := AckCredits(n)
		code := s.Value()
		if !s.IsAck() || Credits(code) > n || code < MostCredits && Credits(code+1) <= n {
			t.Fatalf("%d credits: %v, code %d", n, s, code)
		}
	}
}

// Packet sequence numbers are compared across the wrap.
func TestPSN(t *testing.T) {
	for _, test := range []struct {
		a, b uint32
		want int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {0x7fffff, 0, 0x7fffff},
		{0x800000, 0, -0x800000}, {0, 0x800000, -0x800000}, {0, 0x800001, 0x7fffff}, {2, 0xfffffe, 4},
		{0x800002, 3, 0x7fffff}, {0x800003, 3, -0x800000}, {0xfffff0, 0x10, -0x20},
	} {
		if got := PSNDiff(test.a, test.b); got != test.want {
			t.Errorf("PSNDiff(%#x, %#x) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
	for _, start := range []uint32{0, 1, 0x7fffff, 0x800000, 0xffffff} {
		for _, n := range []int{-0x800000, -70000, -1, 0, 1, 128, 70000, 0x7fffff} {
			if got := PSNDiff((start+uint32(n))&PSNMask, start); got != n {
				t.Errorf("%d after %#x is %d after it", n, start, got)
			}
		}
	}
}
