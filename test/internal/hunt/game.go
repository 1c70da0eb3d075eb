package hunt

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Violation is a broken promise.
type Violation struct {
	Seed   uint64
	Event  int // how many events had begun
	Rule   string
	Detail string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, event %d: broken: %s: %s", v.Seed, v.Event, v.Rule, v.Detail)
}

// Game is a kind of world.
type Game struct {
	Test string // the test that plays it
	Dir  string // of the test's package, from the root of the module: "./test/sendside"
	// Events says how many events the world of a seed has.
	Events func(seed uint64) int
	// Play plays the world of a seed with the events named, in order, or with all when keep is nil.
	// It returns the first promise that was broken, or nil. log, which may be nil, is given
	// what happens, line by line. Play is called on many goroutines.
	Play func(seed uint64, keep []int, log func(string)) *Violation
}

// Search plays total worlds, from seed first on, on all cores. It returns what is broken in the
// world with the lowest seed, and counts the worlds in done.
func (g *Game) Search(first, total uint64, done *atomic.Uint64) *Violation {
	var next atomic.Uint64
	var mu sync.Mutex
	var found *Violation
	play := func(seed uint64) (goOn bool) {
		mu.Lock()
		late := found != nil && seed > found.Seed
		mu.Unlock()
		if late || seed >= first+total {
			return false
		}
		if v := g.Play(seed, nil, nil); v != nil {
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

// Report is what a person needs to understand a failure.
type Report struct {
	Broken *Violation
	Events int    // how many events the world had
	Kept   int    // how many are needed
	Trace  string // what happens in the shrunken world
}

// String is the whole report.
func (r Report) String() string {
	return fmt.Sprintf("%v\n\n%d of %d events are enough:\n\n%s", r.Broken, r.Kept, r.Events, r.Trace)
}

// Shrink plays the world of a seed that fails, and leaves out events for as long as the same
// promise is broken. It reports false when the world does not fail.
func (g *Game) Shrink(seed uint64) (Report, bool) {
	v := g.Play(seed, nil, nil)
	if v == nil {
		return Report{}, false
	}
	r := Report{Broken: v, Events: g.Events(seed)}
	keep := make([]int, min(v.Event, r.Events))
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
	var t trace
	if got := g.Play(seed, keep, t.add); got != nil {
		r.Broken = got
	}
	r.Kept, r.Trace = len(keep), t.String()
	return r, true
}

// trace collects lines. Consecutive equal lines become one.
type trace struct {
	text   strings.Builder
	last   string
	repeat int
}

func (t *trace) add(line string) {
	if line == t.last {
		t.repeat++
		return
	}
	t.flush()
	t.last, t.repeat = line, 1
}

func (t *trace) flush() {
	switch {
	case t.repeat > 1:
		fmt.Fprintf(&t.text, "%s (%d times)\n", t.last, t.repeat)
	case t.repeat == 1:
		t.text.WriteString(t.last + "\n")
	}
	t.repeat = 0
}

func (t *trace) String() string {
	t.flush()
	return t.text.String()
}
