package tagged

import (
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// FuzzHeader parses headers. What is accepted is written as the same bytes.
func FuzzHeader(f *testing.F) {
	f.Add(byte(0), make([]byte, 16), []byte("x"))
	f.Add(byte(3), append(make([]byte, 16), 1, 0, 0, 0, 0, 0, 0, 0), []byte("x"))
	f.Add(byte(4), []byte{1, 0, 0, 0, 5, 0, 0, 0}, []byte(nil))
	f.Fuzz(func(t *testing.T, k byte, b, payload []byte) {
		kind := amEager + transport.AMID(k%7)
		var h header
		if h.parse(kind, b, payload) != nil {
			return
		}
		var again [maxHeader]byte
		if got := h.put(&again, kind); string(got) != string(b) {
			t.Fatalf("% x\nwritten again as\n% x", b, got)
		}
	})
}

// FuzzMemory parses descriptions of memory. What is accepted adds up, and is written as the same
// bytes.
func FuzzMemory(f *testing.F) {
	keys := ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 5: 2})
	one := ibverbx.RemoteSegment{Addr: 64, Length: 10, Keys: keys}.AppendBinary(nil)
	f.Add(byte(1), uint64(10), one)
	f.Add(byte(2), uint64(20), append(one, one...))
	f.Fuzz(func(t *testing.T, count byte, length uint64, b []byte) {
		var m memory
		if m.parse(int(count%(maxPieces+1)), length, b) != nil {
			return
		}
		var again []byte
		total := uint64(0)
		for _, p := range m.pieces[:m.count] {
			again = p.AppendBinary(again)
			total += p.Length
		}
		if string(again) != string(b) || total != length {
			t.Fatalf("%d bytes, % x\nread as %d bytes, % x", length, b, total, again)
		}
	})
}
