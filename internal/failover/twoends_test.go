package failover

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// The flags are those of the simulations, so that planted bugs are hunted here too.
var (
	worlds = flag.Uint64("seeds", 4_000, "how many worlds to play")
	single = flag.Uint64("seed", 0, "play the world of this seed alone")
	hunted = flag.Bool("hunt", false, "print the first world that is broken in the form of the simulations")
)

// Two ends are played against each other without any NIC: rails are lost at every moment, controls
// are lost with their rail, delayed, and reordered between rails. Both ends agree, nothing is lost
// or carried out twice, nothing lands after it was reported, and all rails come back.
func TestTwoEnds(t *testing.T) {
	first, last := uint64(1), *worlds
	if *single != 0 {
		first, last = *single, *single
	}
	failed := uint64(0)
	for seed := first; seed <= last; seed++ {
		over, err := play(seed)
		if err != nil {
			if *hunted {
				fmt.Printf("found: seed %d, event 0: broken: %v\n", seed, err)
				os.Exit(1)
			}
			t.Fatalf("seed %d: %v\n\nreplay: go test ./internal/failover -run TwoEnds -args -seed %d", seed,
				err, seed)
		}
		if over {
			failed++
		}
	}
	// Only where a CQ dies with messages in it the connection may fail.
	if failed > last/50+1 {
		t.Errorf("%d of %d connections have failed", failed, last)
	}
}
