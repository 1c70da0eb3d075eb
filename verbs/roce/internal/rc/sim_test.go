package rc

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// The simulation plays worlds: two ends, a network that harms packets, and events that programs,
// their owners and bad luck bring about. A model of what the programs asked for says what may
// become of it (model_test.go, and of packets watch_test.go). A world follows from its seed.

var (
	seeds     = flag.Uint64("seeds", 0, "how many worlds a test plays; 0: its own number")
	firstSeed = flag.Uint64("first", 0, "the seed of the first one")
	huntBugs  = flag.Bool("hunt", false, "report in one line what was found (see package hunt)")
)

// broken is a promise that was not kept.
type broken struct {
	seed   uint64
	step   int
	rule   string
	detail string
}

func (b *broken) Error() string {
	return fmt.Sprintf("seed %d, event %d: broken: %s: %s", b.seed, b.step, b.rule, b.detail)
}

// search plays worlds on all cores, and returns what is broken in the one with the lowest seed.
func search(t *testing.T, total uint64, play func(*testing.T, uint64) (Stats, *broken)) (Stats, *broken) {
	var mu sync.Mutex
	var found *broken
	var sum Stats
	next := *firstSeed
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, found == nil && next-1 < *firstSeed+total
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed, more := take(); more; seed, more = take() {
				stats, b := play(t, seed)
				mu.Lock()
				sum.add(stats)
				if b != nil && (found == nil || b.seed < found.seed) {
					found = b
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return sum, found
}

// playAll plays as many worlds as usual, unless a flag says otherwise.
func playAll(t *testing.T, usual uint64, play func(*testing.T, uint64) (Stats, *broken)) Stats {
	t.Helper()
	total := *seeds
	if total == 0 {
		total = usual
		if testing.Short() {
			total = max(usual/10, 1)
		}
	}
	start := time.Now()
	sum, found := search(t, total, play)
	switch {
	case found == nil:
	case *huntBugs:
		t.Fatalf("found: %.300v", found)
	default:
		t.Fatalf("%v\nreplay: go test ./verbs/roce/internal/rc -run '%s$' -args -seeds 1 -first %d", found,
			t.Name(), found.seed)
	}
	took := time.Since(start)
	t.Logf("%d worlds in %v, %.0f a second", total, took.Round(time.Millisecond),
		float64(total)/took.Seconds())
	return sum
}

// TestSimulation: whatever happens on the way, every request is carried out once, in order, and
// completes with what has become of it.
func TestSimulation(t *testing.T) {
	sum := playAll(t, 700, playWorld)
	t.Logf("%+v", sum)
	if *seeds == 0 && (sum.Resent == 0 || sum.Duplicates == 0 || sum.Ahead == 0 || sum.RNRNAKs == 0 ||
		sum.Timeouts == 0 || sum.Probes == 0 || sum.Unexpected == 0 || sum.Marked == 0 || sum.CNPs == 0) {
		t.Error("some of it never happened")
	}
}
