package roce

import (
	"testing"

	"ibverbx/test/sim"
)

var flags = sim.NewFlags()

// worlds are those of package sim, over NICs of this package on a network in virtual time.
var worlds = sim.Over("TestSimulation", "./verbs/roce", newNetwork)

// TestSimulation plays worlds of virtual queue pairs from seeds. A failing one is shrunk, and
// printed with the command that plays it again.
func TestSimulation(t *testing.T) { flags.Test(t, &worlds, 300) }
