package sim

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ibverbx/test/internal/hunt"
)

var flags = hunt.NewFlags()

// TestSimulation plays worlds from seeds. A failing one is shrunk, and printed with the command
// that plays it again.
func TestSimulation(t *testing.T) { flags.Test(t, &Game, 1000) }

// TestFailover plays worlds whose rails die.
func TestFailover(t *testing.T) { flags.Test(t, &FailoverGame, 1500) }

// bugs are mistakes that were made, or could have been, in this library and others of its kind.
var bugs = hunt.Bugs{Package: ".", File: "testdata/ibverbx.bugs"}

// TestMutations checks that each bug has its place. With -mutate it plants one at a time and
// demands that the simulation finds it within 8,000 worlds.
func TestMutations(t *testing.T) { flags.Hunt(t, &Game, bugs, 8000) }

// failoverBugs are mistakes of the same kind where rails die.
var failoverBugs = hunt.Bugs{Package: ".", File: "testdata/failover.bugs"}

// TestMutationsOfFailover is TestMutations of what goes on when a rail dies.
func TestMutationsOfFailover(t *testing.T) { flags.Hunt(t, &FailoverGame, failoverBugs, 20000) }

// protocolGame is the test of internal/failover in which two ends are played without any NIC.
var protocolGame = hunt.Game{Test: "TestTwoEnds", Dir: "./internal/failover"}

// protocolBugs are mistakes in what two ends say to each other about lost rails.
var protocolBugs = hunt.Bugs{Package: "internal/failover", File: "testdata/protocol.bugs"}

// TestMutationsOfProtocol is TestMutations of internal/failover.
func TestMutationsOfProtocol(t *testing.T) { flags.Hunt(t, &protocolGame, protocolBugs, 20000) }

// report is what a person gets of a failure: the rule, the number of events that are left, that of
// all, and the seed.
var report = regexp.MustCompile(`(?s)broken: ([^:]*):.*?(\d+) of (\d+) events are enough:\n.*\n *` +
	`replay: go test ./test/sim -run 'TestSimulation\$' -args -seed (\d+)\n`)

// TestFailureIsShrunkAndReplays plants a bug and checks that a failure is reported with much fewer
// events than the world has, and with a command that plays them again.
func TestFailureIsShrunkAndReplays(t *testing.T) {
	flags.Kit(t)
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

// drawn matches addresses and the numbers that the library draws by itself. They decide nothing.
var drawn = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|(?i:virtual (qp|cq)) [0-9]+|` +
	`PSN:[0-9]+|GID:[0-9a-f:.]+`)

// TestReplays checks that a seed decides what happens.
func TestReplays(t *testing.T) {
	flags.Kit(t)
	Game.Replays(t, 300, drawn)
	FailoverGame.Replays(t, 300, drawn)
}
