package sim

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ibverbx/test/internal/hunt"
)

// bugs are mistakes that were made, or could have been, in this library and others of its kind.
var bugs = hunt.Bugs{Package: ".", File: "testdata/ibverbx.bugs"}

// TestMutations checks that each bug has its place. With -mutate it plants one at a time and
// demands that the simulation finds it within 8,000 worlds.
func TestMutations(t *testing.T) { flags.Hunt(t, &Game, bugs, 8000) }

// failoverBugs are mistakes of the same kind where rails die.
var failoverBugs = hunt.Bugs{Package: ".", File: "testdata/failover.bugs"}

// TestMutationsOfFailover is TestMutations of what goes on when a rail dies.
func TestMutationsOfFailover(t *testing.T) { flags.Hunt(t, &FailoverGame, failoverBugs, 20000) }

// report is what a person gets of a failure: the rule, the number of events that are left, that of
// all, and the seed.
var report = regexp.MustCompile(`(?s)broken: ([^:]*):.*?(\d+) of (\d+) events are enough:\n.*\n *` +
	`replay: go test ./test/sim -run 'TestSimulation\$' -args -seed (\d+)\n`)

// TestFailureIsShrunkAndReplays plants a bug and checks that a failure is reported with much fewer
// events than the world has, and with a command that plays them again.
func TestFailureIsShrunkAndReplays(t *testing.T) {
	bin := Game.Build(t, bugs, "fence ignored")
	out, err := Game.Run(bin, "-seeds", "100")
	found := report.FindStringSubmatch(out)
	if err == nil || found == nil || found[1] != string(ruleFence) || atoi(found[2]) > 3 ||
		atoi(found[3]) < 20 {
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := Game.Run(bin, "-seed", found[4])
	if err == nil || !strings.Contains(again, found[1]) ||
		!strings.Contains(again, found[2]+" of "+found[3]+" events are enough") {
		t.Fatalf("played again: %v\n%s", err, again)
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}
