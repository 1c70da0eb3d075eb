package roce

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

var flags = hunt.NewFlags()

// engine is the game of the engine, which its own package plays.
var engine = hunt.Game{Test: "TestSimulation", Dir: "./verbs/roce/internal/rc"}

// nics is the game of the NICs: virtual queue pairs on a network in virtual time.
var nics = hunt.Game{Test: "TestSimulation", Dir: "./verbs/roce"}

// TestMutations checks that each bug has its place. With -mutate it plants them one at a time and
// demands that the simulation finds each.
func TestMutations(t *testing.T) {
	flags.Hunt(t, &engine, hunt.Bugs{Package: "verbs/roce/internal/rc", File: "testdata/rc.bugs"}, 8000)
}

// TestNICMutations does the same with bugs of the NICs.
func TestNICMutations(t *testing.T) {
	flags.Hunt(t, &nics, hunt.Bugs{Package: "verbs/roce", File: "testdata/roce.bugs"}, 2000)
}

// TestTimerMutations does the same with bugs of the timers that NICs of software share.
func TestTimerMutations(t *testing.T) {
	flags.Hunt(t, &nics, hunt.Bugs{Package: "verbs/internal/nic", File: "testdata/timers.bugs"}, 2000)
}
