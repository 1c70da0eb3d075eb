package sim

import (
	"fmt"

	"ibverbx/test/internal/lab"
)

// Game is the simulation as something that is searched, shrunk and played again from a seed.
var Game = lab.Game("TestSimulation", "./test/sim", newPlan, (*plan).run)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }
