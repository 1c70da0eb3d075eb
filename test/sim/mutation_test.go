package sim

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ibverbx/test/internal/hunt"
)

// bugs are mistakes that were made, in this library or in others of its kind, or that could have
// been.
var bugs = hunt.Bugs{Package: ".", File: "testdata/ibverbx.bugs"}

// TestMutations plants one bug at a time in a copy of the package, and demands that the simulation
// finds it within so many worlds.
func TestMutations(t *testing.T) { flags.Hunt(t, &Game, bugs, 8000) }

// TestFailureIsShrunkAndReplays plants a bug and looks at what a person gets: a story that is much
// shorter than the world, and a command that tells the same again.
func TestFailureIsShrunkAndReplays(t *testing.T) {
	bin := Game.Build(t, bugs, "fence ignored")
	out, err := Game.Run(bin, "-seeds", "100")
	story := regexp.MustCompile(
		`(?s)broken: ([^:]*):.*?(\d+) of (\d+) events are enough:\n.*\n *replay: go test ./test/sim -run 'TestSimulation\$' -args -seed (\d+)\n`).FindStringSubmatch(out)
	if err == nil || story == nil || story[1] != string(ruleFence) || atoi(story[2]) > 3 ||
		atoi(story[3]) < 20 {
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := Game.Run(bin, "-seed", story[4])
	if err == nil || !strings.Contains(again, story[1]) ||
		!strings.Contains(again, story[2]+" of "+story[3]+" events are enough") {
		t.Fatalf("played again: %v\n%s", err, again)
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}
