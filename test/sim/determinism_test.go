package sim

import (
	"regexp"
	"testing"
)

// drawn matches addresses and the numbers that the library draws by itself. They decide nothing.
var drawn = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|(?i:virtual (qp|cq)) [0-9]+|` +
	`PSN:[0-9]+|GID:[0-9a-f:.]+`)

func TestSameSeedSameRun(t *testing.T) { Game.Replays(t, 300, drawn) }

func TestSameSeedSameFailover(t *testing.T) { FailoverGame.Replays(t, 40, drawn) }
