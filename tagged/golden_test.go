package tagged

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"ibverbx/transport"
)

// The wire format, as two processes of different builds share it. A figure of this test may change
// only together with wireVersion, or peers of the builds before misread each other.
func TestWireFormat(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"version", wireVersion, 1},
		{"first id of the package", int(FirstAMID), 56},
		{"eager", int(amEager), 56}, {"first fragment", int(amFirst), 57}, {"fragment", int(amMore), 58},
		{"announcement", int(amAnnounce), 59}, {"done", int(amDone), 60}, {"window", int(amWindow), 61},
		{"batch", int(amBatch), 62},
		{"the sender waits", flagSync, 1},
		{"largest window", maxWindow, 65535},
		{"pieces of an announcement", maxPieces, 4},
		{"longest header", maxHeader, 24},
		{"before each message of a batch", batchEntry, 10},
		{"smallest transport buffer", leastBuffer, 416},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the wire format has %d", c.name, c.got, c.want)
		}
	}
	h := header{window: 0x0201, flag: 3, id: 0x07060504, tag: 0x0f0e0d0c0b0a0908,
		length: 0x1716151413121110}
	const all = "010203" + "00" + "04050607" + "08090a0b0c0d0e0f" + "1011121314151617"
	for kind, size := range map[transport.AMID]int{amEager: 16, amFirst: 24, amMore: 16, amAnnounce: 24,
		amDone: 8, amWindow: 8, amBatch: 8} {
		var b [maxHeader]byte
		if got := hex.EncodeToString(h.put(&b, kind)); got != all[:2*size] {
			t.Errorf("message %d: header %s, the wire format has %s", kind, got, all[:2*size])
		}
	}
	tag, data, rest, err := nextInBatch([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x02\x00abrest-of-it"))
	if err != nil || tag != 0x0807060504030201 || string(data) != "ab" || string(rest) != "rest-of-it" {
		t.Errorf("batch: tag %#x, %q, %q, %v", tag, data, rest, err)
	}
}

// A card's JSON has the names that other builds read.
func TestNamesInACard(t *testing.T) {
	text, err := json.Marshal(Card{})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{"max_unexpected", "transport", "version"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
