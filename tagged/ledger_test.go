package tagged

import (
	"math/rand/v2"
	"testing"
)

// check says whether the invariant holds.
func (l *ledger) check() bool {
	return l.room >= 0 && l.room <= l.most && l.open >= 0 && l.owed >= 0 && l.open+l.owed <= l.keeps
}

// TestLedger plays two ends with messages on the way between them. No place is lost or made up:
// what the sender has, what is on the way, what is kept and what is owed are all there are. Whoever
// waits for a place gets one when messages are consumed.
func TestLedger(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(20)
		a, b := ledger{room: n, most: n}, ledger{open: n, keeps: n}
		// messages to b on the way and kept by it, and matches that a is to hear of
		there, kept, untold := 0, 0, 0
		var back []uint16 // places on the way to a
		for step := range 2000 {
			switch rng.IntN(5) {
			case 0:
				if a.admits() {
					a.sent(1)
					there++
				}
			case 1:
				if there != 0 {
					there--
					if !b.arrived() {
						t.Fatalf("seed %d, step %d: no place for a message that had one: %+v", seed, step, b)
					}
					kept++
				}
			case 2:
				if kept != 0 {
					if kept--; rng.IntN(2) == 0 {
						untold++
					} else {
						b.consumed(1)
					}
				}
			case 3:
				switch frees := min(untold, 1); {
				case frees != 0 || b.due():
					places := b.offer(frees)
					b.consumed(frees)
					b.gave(places)
					untold -= frees
					back = append(back, places)
				}
			case 4:
				if len(back) != 0 {
					if err := a.returned(back[0]); err != nil {
						t.Fatalf("seed %d, step %d: %v", seed, step, err)
					}
					back = back[1:]
				}
			}
			sum := a.room + there + kept + untold + b.owed
			for _, places := range back {
				sum += int(places)
			}
			if sum != n || !a.check() || !b.check() {
				t.Fatalf("seed %d, step %d: %d places of %d: %+v, %+v", seed, step, sum, n, a, b)
			}
			if !a.admits() && there+kept+untold+len(back) == 0 && !b.due() {
				t.Fatalf("seed %d, step %d: the sender waits for ever: %+v, %+v", seed, step, a, b)
			}
		}
		if b.open = 0; b.arrived() {
			t.Fatal("a message beyond the window was let in")
		}
		if a.returned(uint16(n+1)) == nil {
			t.Fatal("more places than there are were taken back")
		}
	}
}
