package pattern

import "testing"

// TestSource shows that what a slot gets lies in the source, and is another piece in each of the
// next thousand rounds.
func TestSource(t *testing.T) {
	const size, slots = 100, 20
	for slot := range slots {
		first := Round{Number: 5, Seed: 9, Size: size}
		for later := range uint64(Shifts) {
			r := Round{Number: 5 + later, Seed: 9, Size: size}
			at := r.Source(slot)
			if at < slot*size || at+size > slots*size+Shifts*Step {
				t.Fatalf("slot %d of round %d is read at %d", slot, r.Number, at)
			}
			if later > 0 && at == first.Source(slot) {
				t.Fatalf("slot %d gets the same in rounds 5 and %d", slot, r.Number)
			}
			if r.Target(slot) != slot*size {
				t.Fatalf("slot %d is at %d", slot, r.Target(slot))
			}
		}
	}
}
