package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds    = flag.Uint64("seeds", 2000, "how many worlds TestSimulation plays")
	first    = flag.Uint64("first", 0, "seed of the first")
	oneSeed  = flag.Int64("seed", -1, "play this one only, and say what happens")
	hunt     = flag.Bool("hunt", false, "say in one line what was found, and do not shrink it")
	progress = flag.Bool("progress", false, "say on stderr how far it is")
)

// TestSimulation plays worlds from seeds. A failing one is shrunk, and printed with the command that plays it again.
func TestSimulation(t *testing.T) {
	if *oneSeed >= 0 {
		replaySeed(t, uint64(*oneSeed))
		return
	}
	total := *seeds
	if total == 0 || *oneSeed < -1 {
		t.Fatalf("-seeds %d, -seed %d: give a number of worlds above 0, or one seed from 0 on", total, *oneSeed)
	}
	if testing.Short() {
		total = min(total, 200)
	}
	start := time.Now()
	if v := search(*first, total); v != nil && *hunt {
		t.Fatalf("found: %v", v)
	} else if v != nil {
		report, again := Shrink(v.Seed)
		if !again {
			t.Fatalf("%v: but not when it is played again", v)
		}
		t.Fatalf("%v\nreplay: go test ./test/sim -run 'TestSimulation$' -args -seed %d", report, v.Seed)
	}
	t.Logf("%d worlds in %v", total, time.Since(start).Round(time.Millisecond))
}

// replaySeed tells what happens in a world, shrunk if it fails.
func replaySeed(t *testing.T, seed uint64) {
	if report, failed := Shrink(seed); failed {
		t.Fatal(report)
	}
	newPlan(seed).run(func(line string) { t.Log(line) })
}

// search plays worlds on all cores and returns what is broken in the one with the lowest seed.
func search(first, total uint64) *Violation {
	var next, done atomic.Uint64
	var mu sync.Mutex
	var found *Violation
	stop := report(&done, total)
	defer stop()
	play := func(seed uint64) (goOn bool) {
		mu.Lock()
		late := found != nil && seed > found.Seed
		mu.Unlock()
		if late || seed >= first+total {
			return false
		}
		if v := Run(seed); v != nil {
			mu.Lock()
			if found == nil || seed < found.Seed {
				found = v
			}
			mu.Unlock()
		}
		done.Add(1)
		return true
	}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for play(first + next.Add(1) - 1) {
			}
		})
	}
	wg.Wait()
	return found
}

// report says every two seconds how far it is.
func report(done *atomic.Uint64, total uint64) (stop func()) {
	if !*progress {
		return func() {}
	}
	start, end, over := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-end:
				fmt.Fprintln(os.Stderr)
				return
			case <-time.After(2 * time.Second):
			}
			n := done.Load()
			rate := float64(n) / time.Since(start).Seconds()
			left := time.Duration(float64(total-n)/rate) * time.Second
			fmt.Fprintf(os.Stderr, "\r%d of %d worlds, %.0f a second, %v left   ", n, total, rate, left)
		}
	}()
	return func() { close(end); <-over }
}
