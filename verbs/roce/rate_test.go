package roce

import (
	"fmt"
	"testing"
	"time"

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
				got := rateOf(t, pair, op, func() int64 { return n.now }, n.await)
				if got > 1.01*rate || got < 0.99*rate {
					t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
				}
				t.Logf("%.1f %% of the limit; %+v", 100*got/rate, pair[0].dev.Counters())
			})
		}
	}
}

// Over sockets nothing is faster than the limit either. How much slower it is, is the machine's.
func TestRateOverSockets(t *testing.T) {
	const rate = 50e6
	p := openNICs(t, Config{Rate: rate}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), rateSize)
	began := time.Now()
	got := rateOf(t, pair, verbs.OpRDMAWrite, func() int64 { return int64(time.Since(began)) },
		func(t testing.TB, n *node) verbs.WC { return n.poll(t) })
	if got > 1.03*rate {
		t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
	}
	t.Logf("%.1f %% of the limit; %+v", 100*got/rate, pair[0].dev.Counters())
}

const rateSize = 64 << 10

// rateOf returns how many bytes a second pass, by a clock, with four requests outstanding. await
// waits for a completion.
func rateOf(t *testing.T, pair [2]*node, op verbs.Opcode, clock func() int64,
	await func(testing.TB, *node) verbs.WC) float64 {
	const n, depth = 160, 4
	a, b := pair[0], pair[1]
	began := clock()
	for i := range n + depth {
		if i >= depth {
			if wc := await(t, a); wc.Status != verbs.StatusSuccess {
				t.Fatal(wc.Status)
			}
		}
		if i < n {
			wr := a.write(b, 1, rateSize)
			wr.Opcode = op
			a.post(t, wr)
		}
	}
	return float64(n*rateSize) / (float64(clock()-began) / 1e9)
}
