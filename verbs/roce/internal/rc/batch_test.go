package rc

import (
	"testing"

	"ibverbx/verbs/roce/internal/wire"
)

// The trailer of a packet ends where the header of the next one begins, and overlaps nothing that
// the batch holds, whatever the pads are.
func TestTrailersJoinHeaders(t *testing.T) {
	var b Batch
	for i := range BatchPackets {
		h := wire.Header{Opcode: wire.WriteMiddle, PSN: uint32(i), DestQP: 7}
		b.add(&h, make([]byte, 8+i%5))
	}
	want := b.packets
	for i := range BatchPackets {
		trailer := b.Trailer(i)
		if n := int(want[i].Pad) + wire.ICRCSize; len(trailer) != n {
			t.Errorf("packet %d: a trailer of %d bytes for a pad of %d", i, len(trailer), want[i].Pad)
		}
		// The header lies behind that array: bytes need no alignment.
		if next := &b.packets[i+1]; &trailer[len(trailer)-1] != &next.before[len(next.before)-1] {
			t.Errorf("packet %d: the trailer does not end where the next header begins", i)
		}
		for j := range trailer {
			trailer[j] = 0xff
		}
	}
	for i, p := range b.Packets() {
		if p.Header != want[i].Header || p.Len != want[i].Len || p.Pad != want[i].Pad {
			t.Errorf("packet %d was changed by a trailer", i)
		}
	}
}
