package roce

import (
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
)

// A rate limit holds within a few percent, in both directions: of writes, and of the answers to
// reads, which the other end sends. On a machine that does something else some tries may be slower,
// and none faster.
func TestRate(t *testing.T) {
	const size, depth = 64 << 10, 4
	rates := []float64{5e6, 0.25e6, 50e6, 200e6}
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
				best := 0.
				for try := 0; try < 10 && best < 0.95*rate; try++ {
					got := measure(max(int(rate*0.4/size), depth))
					if best = max(best, got); got > 1.03*rate {
						t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
					}
				}
				if best < 0.95*rate {
					t.Errorf("%.0f bytes a second, %.1f %% of the limit", best, 100*best/rate)
				}
				t.Logf("%.1f %% of the limit; %+v", 100*best/rate, a.dev.Counters().Stats)
			})
		}
	}
}
