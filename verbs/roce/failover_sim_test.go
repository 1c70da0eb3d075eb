package roce

import (
	"testing"

	"ibverbx/test/sim"
)

// failoverWorlds are those of package sim whose rails die, on networks that lose, repeat, forge and
// hold up packets.
var failoverWorlds = sim.FailoverOver("TestFailover", "./verbs/roce", newNetwork)

func TestFailover(t *testing.T) { flags.Test(t, &failoverWorlds, 100) }
