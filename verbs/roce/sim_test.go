package roce

import (
	"regexp"
	"testing"

	"ibverbx/test/sim"
)

var flags = sim.NewFlags()

// worlds are those of package sim, over NICs of this package on a network in virtual time.
var worlds = sim.Over("TestSimulation", "./verbs/roce", newNetwork)

// TestSimulation plays worlds of virtual queue pairs from seeds. A failing one is shrunk, and
// printed with the command that plays it again.
func TestSimulation(t *testing.T) {
	flags.Test(t, &worlds, 300)
	total.Lock()
	defer total.Unlock()
	t.Logf("%+v", total.Counters)
	if c := &total.Counters; c.Sent > 1e6 && (c.LinkDown == 0 || c.Malformed == 0 || c.NoQP == 0 ||
		c.Strangers == 0 || c.BadICRC == 0 || c.Retried == 0 || c.Resent == 0 || c.Timeouts == 0 ||
		c.Probes == 0 || c.NAKs == 0 || c.RNRNAKs == 0 || c.Duplicates == 0 || c.Ahead == 0) {
		t.Error("some of it never happened")
	}
}

// drawn matches addresses and the numbers that the library draws by itself. They decide nothing.
var drawn = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|(?i:virtual (qp|cq)) [0-9]+|PSN:[0-9]+`)

func TestSameSeedSameRun(t *testing.T) { worlds.Replays(t, 60, drawn) }
