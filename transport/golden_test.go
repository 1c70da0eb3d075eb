package transport

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// The wire format, as two processes of different builds share it. A figure of this test may change
// only together with wireVersion, or peers of the builds before misread each other.
func TestWireFormat(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"version", wireVersion, 2},
		{"header", wireHeader, 8},
		{"active message", int(wireAM), 1}, {"credits", int(wireCredits), 2}, {"goodbye", int(wireBye), 3},
		{"abort", int(wireAbort), 4},
		{"largest id", int(MaxAMID), 63},
		{"longest header of an active message", MaxHeader, 64},
		{"most buffers for active messages", MaxAMBuffers, 4096},
		{"receives for messages of the transport", controlSlots, 3},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the wire format has %d", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		h    header
		want string
	}{
		{header{kind: wireAM, id: 0x3f, length: 0x40, credits: 0x0504}, "013f400004050000"},
		{header{kind: wireCredits, credits: 0xffff}, "02000000ffff0000"},
		{header{kind: wireBye, credits: 1}, "0300000001000000"},
		{header{kind: wireAbort}, "0400000000000000"},
	} {
		var b [wireHeader]byte
		c.h.put(b[:])
		if got := hex.EncodeToString(b[:]); got != c.want {
			t.Errorf("%+v: %s, the wire format has %s", c.h, got, c.want)
		}
		var back header
		if err := back.parse(b[:]); c.h.length == 0 && (err != nil || back != c.h) {
			t.Errorf("%s: read as %+v, %v", c.want, back, err)
		}
	}
}

// A card's JSON has the names that other builds read, and its set of 64 handlers is a string: JSON
// numbers do not hold it.
func TestNamesInACard(t *testing.T) {
	text, err := json.Marshal(Card{Handlers: 1<<63 | 1})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{"am_buffers", "buffer_size", "flush", "handlers", "qp", "version"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := string(fields["handlers"]); got != `"9223372036854775809"` {
		t.Errorf("handlers %s", got)
	}
}
