package roce

import (
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
)

// A rate limit holds in both directions: of writes, and of the answers to reads, which the other
// end sends. Nothing is ever faster. How near to the limit it comes the engine's tests say, which
// have a clock of their own; on a machine that does something else it is slower here.
func TestRate(t *testing.T) {
	const size, depth = 64 << 10, 4
	rates := []float64{5e6, 0.25e6, 50e6}
	if testing.Short() {
		rates = rates[:1]
	}
	for _, rate := range rates {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			t.Run(fmt.Sprintf("%v MB a second/%v", rate/1e6, op), func(t *testing.T) {
				p := openNICs(t, Config{Rate: rate}, "127.0.0.1", "127.0.0.2")
				pair := newNodes(t, p.Device(0), p.Device(1), size)
				a, b := pair[0], pair[1]
				measure := func(n int) float64 {
					began := time.Now()
					for i := range n + depth {
						if i >= depth {
							a.succeed(t)
						}
						if i < n {
							wr := a.write(b, 1, size)
							wr.Opcode = op
							a.post(t, wr)
						}
					}
					return float64(n*size) / time.Since(began).Seconds()
				}
				got := measure(max(int(rate*0.2/size), depth))
				if got > 1.03*rate || got < 0.1*rate {
					t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
				}
				t.Logf("%.1f %% of the limit; %+v", 100*got/rate, a.dev.Counters())
			})
		}
	}
}
