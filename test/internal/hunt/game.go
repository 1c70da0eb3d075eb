// Package hunt looks for broken promises in worlds, and plants bugs to see whether they are found.
// A world is a simulated system with all the events that happen to it, and follows from a seed.
//
// A [Game] plays the world of a seed, with all of its events or some. [Game.Search] plays many
// worlds. [Game.Shrink] leaves out events of a failing world as long as the same promise is broken,
// and records what happens with the remaining events. [Bugs] are deliberate bugs. They are planted
// through the go command's overlay, so the sources do not change.
package hunt

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Violation is a broken promise.
type Violation struct {
	Seed   uint64
	Event  int // how many events had begun
	Rule   string
	Detail string

	Endless bool // the world never ends, so it cannot be shrunk
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, event %d: broken: %s: %s", v.Seed, v.Event, v.Rule, v.Detail)
}

// Game is a kind of world.
type Game struct {
	Test string // the test that plays it
	Dir  string // of the test's package, from the root of the module: "./test/sendside"
	// Events returns how many events the world of a seed has.
	Events func(seed uint64) int
	// Play plays the world of a seed with the named events, in order, or with all if keep is nil.
	// It returns the first broken promise, or nil. log, if not nil, receives the trace, line by
	// line. Play is called on many goroutines.
	Play func(seed uint64, keep []int, log func(string)) *Violation
}

// patience is the time after which a world counts as one that never ends, because an endless loop
// in the library cannot be stopped. Worlds take milliseconds.
const patience = 15 * time.Second

// Search plays total worlds, from seed first on, on all cores. It returns the violation with the
// lowest seed, or a world that never ends, and reports every two seconds how many are done.
func (g *Game) Search(first, total uint64, progress io.Writer) (found *Violation) {
	var mu sync.Mutex
	var done atomic.Uint64
	next, end := first, first+total // the worlds to play; end falls to the lowest one that fails
	take := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= end
	}
	over, stuck := make(chan struct{}), make(chan uint64, runtime.GOMAXPROCS(0))
	play := func(seed uint64) {
		defer time.AfterFunc(patience, func() { stuck <- seed }).Stop()
		v := g.Play(seed, nil, nil)
		done.Add(1)
		mu.Lock()
		defer mu.Unlock()
		if v != nil && seed < end {
			found, end = v, seed
		}
	}
	var wg sync.WaitGroup
	for range cap(stuck) {
		wg.Go(func() {
			for seed, ok := take(); ok; seed, ok = take() {
				play(seed)
			}
		})
	}
	go func() {
		wg.Wait()
		close(over)
	}()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return found
		case seed := <-stuck:
			return &Violation{Seed: seed, Endless: true, Rule: "a world ends",
				Detail: fmt.Sprintf("it is still played after %v", patience)}
		case <-tick.C:
			fmt.Fprintf(progress, "%d of %d worlds\n", done.Load(), total)
		}
	}
}

// Shrink plays the failing world of a seed, and leaves out events as long as the same promise is
// broken. It returns a report for people, and false if the world does not fail.
func (g *Game) Shrink(seed uint64) (report string, failed bool) {
	v := g.Play(seed, nil, nil)
	if v == nil {
		return "", false
	}
	events := g.Events(seed)
	keep := make([]int, min(v.Event, events))
	for i := range keep {
		keep[i] = i
	}
	for size, before := max(len(keep)/2, 1), len(keep); ; size = max(size/2, 1) {
		for at := 0; at < len(keep); {
			less := slices.Delete(slices.Clone(keep), at, min(at+size, len(keep)))
			if got := g.Play(seed, less, nil); got != nil && got.Rule == v.Rule {
				keep = less
			} else {
				at += size
			}
		}
		if size == 1 && len(keep) == before {
			break
		}
		before = len(keep)
	}
	var trace []string
	if got := g.Play(seed, keep, func(line string) { trace = append(trace, line) }); got != nil {
		v = got
	}
	return fmt.Sprintf("%v\n\n%d of %d events are enough:\n\n%s", v, len(keep), events, folded(trace)), true
}

// folded joins lines, and merges equal ones in a row.
func folded(lines []string) string {
	var text strings.Builder
	for i := 0; i < len(lines); {
		n := 1
		for ; i+n < len(lines) && lines[i+n] == lines[i]; n++ {
		}
		if text.WriteString(lines[i]); n > 1 {
			fmt.Fprintf(&text, " (%d times)", n)
		}
		text.WriteByte('\n')
		i += n
	}
	return text.String()
}
