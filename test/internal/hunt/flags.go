package hunt

import (
	"flag"
	"io"
	"os"
	"regexp"
	"testing"
	"time"
)

// Flags say how the tests of a package play: go test ./test/sendside -args -seeds 100000 -progress
type Flags struct {
	seeds    uint64
	first    uint64
	one      int64
	hunt     bool
	progress io.Writer
	mutate   bool
	kit      bool
	from     int
	every    int
}

// NewFlags defines the flags. It is for a variable of a test package.
func NewFlags() *Flags {
	f := &Flags{progress: io.Discard}
	flag.Uint64Var(&f.seeds, "seeds", 0, "how many worlds a test plays; 0: its own number")
	flag.Uint64Var(&f.first, "first", 0, "seed of the first world")
	flag.Int64Var(&f.one, "seed", -1, "play only the world of this seed, and print what happens")
	flag.BoolVar(&f.hunt, "hunt", false, "report what was found in one line, and do not shrink it")
	flag.BoolFunc("progress", "report progress on stderr", func(string) error {
		f.progress = os.Stderr
		return nil
	})
	flag.BoolVar(&f.mutate, "mutate", false, "plant bugs and check that they are found: some minutes")
	flag.BoolVar(&f.kit, "kit", false, "test the simulation itself: it replays and shrinks, bugs compile")
	flag.IntVar(&f.every, "every", 1, "with -mutate: plant one bug of so many only,")
	flag.IntVar(&f.from, "from", 0, "beginning with this one, from 0 on")
	return f
}

// Test plays worlds of a game, the usual number unless a flag sets another. A failing world is
// shrunk, and printed with the command that plays it again.
func (f *Flags) Test(t *testing.T, g *Game, usual uint64) {
	total := f.seeds
	if total == 0 {
		total = usual
		if testing.Short() {
			total = max(usual/10, 1)
		}
	}
	if f.one < -1 {
		t.Fatalf("-seed %d: give one seed from 0 on", f.one)
	}
	if f.one >= 0 {
		g.print(t, uint64(f.one))
		return
	}
	start := time.Now()
	v := g.Search(f.first, total, f.progress)
	took := time.Since(start)
	switch {
	case v == nil:
		t.Logf("%d worlds in %v, %.0f a second", total, took.Round(time.Millisecond),
			float64(total)/took.Seconds())
	case f.hunt || v.Endless:
		t.Fatalf("found: %v", v)
	default:
		report, again := g.Shrink(v.Seed)
		if !again {
			t.Fatalf("%v: but not when it is played again", v)
		}
		t.Fatalf("%s\nreplay: go test %s -run '%s$' -args -seed %d", report, g.Dir, g.Test, v.Seed)
	}
}

// Kit skips a test of the simulation itself unless the flag -kit is set.
func (f *Flags) Kit(t *testing.T) {
	t.Helper()
	if !f.kit {
		t.Skip("tests the simulation itself: -args -kit")
	}
}

// print prints the events of a world, shrunk if it fails.
func (g *Game) print(t *testing.T, seed uint64) {
	if report, failed := g.Shrink(seed); failed {
		t.Fatal(report)
	}
	g.Play(seed, nil, func(line string) { t.Log(line) })
}

// Replays checks that worlds are the same when they are played again. Text that ignore matches,
// such as an address, may differ.
func (g *Game) Replays(t *testing.T, worlds uint64, ignore *regexp.Regexp) {
	if testing.Short() {
		worlds = max(worlds/20, 1)
	}
	for seed := range worlds {
		var runs [2][]string
		for i := range runs {
			g.Play(seed, nil, func(line string) {
				runs[i] = append(runs[i], ignore.ReplaceAllString(line, ""))
			})
		}
		for i := range runs[0] {
			if i >= len(runs[1]) || runs[0][i] != runs[1][i] {
				t.Fatalf("seed %d, line %d of %d and %d:\n%s\n\nand then:\n%s", seed, i, len(runs[0]),
					len(runs[1]), runs[0][i], runs[1][min(i, len(runs[1])-1)])
			}
		}
	}
}
