package roce

import (
	"fmt"
	"testing"

	"ibverbx/verbs"
)

// A rate limit holds in both directions: of writes, and of the answers to reads, which the other
// end sends. The NICs are on a network in virtual time, so that the figure is theirs and not that
// of the machine.
func TestRate(t *testing.T) {
	for _, rate := range []float64{0.25e6, 5e6, 50e6, 1e9} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			t.Run(fmt.Sprintf("%v MB a second/%v", rate/1e6, op), func(t *testing.T) {
				n := openVirtual(t, Config{Rate: rate})
				pair := newNodes(t, n.nics[0].Device, n.nics[1].Device, rateSize)
				got := rateOf(t, n, pair, op)
				if got > 1.01*rate || got < 0.99*rate {
					t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
				}
				t.Logf("%.1f %% of the limit; %+v", 100*got/rate, pair[0].dev.Counters())
			})
		}
	}
}

const rateSize = 64 << 10

// rateOf returns how many bytes a second pass, with four requests outstanding.
func rateOf(t *testing.T, n *network, pair [2]*node, op verbs.Opcode) float64 {
	const count, depth = 160, 4
	a, b := pair[0], pair[1]
	began := n.now
	for i := range count + depth {
		if i >= depth {
			must(t, n.await(t, a).Status.Err())
		}
		if i < count {
			wr := a.write(b, 1, rateSize)
			wr.Opcode = op
			a.post(t, wr)
		}
	}
	return float64(count*rateSize) / (float64(n.now-began) / 1e9)
}
