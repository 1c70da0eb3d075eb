package sim

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

var flags = hunt.NewFlags()

// TestSimulation plays worlds from seeds. A failing one is shrunk, and printed with the command
// that plays it again.
func TestSimulation(t *testing.T) { flags.Test(t, &Game, 2000) }

// TestFailover plays worlds whose rails die.
func TestFailover(t *testing.T) { flags.Test(t, &FailoverGame, 300) }
