package roce

import (
	"fmt"
	"testing"
)

// BenchmarkLoss writes 1 MiB at a time, four under way, over a network that loses a part of the
// packets, of both directions.
func BenchmarkLoss(b *testing.B) {
	for _, rate := range []float64{0, 0.0001, 0.001, 0.01} {
		b.Run(fmt.Sprintf("%g%%", rate*100), func(b *testing.B) {
			const size, depth = 1 << 20, 4
			p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
			pair := newNodes(b, p.Device(0), p.Device(1), size)
			var networks [2]harm
			for i, n := range pair {
				networks[i].odds = odds{lose: rate}
				networks[i].do(b, n.dev, 1)
			}
			wr := pair[0].write(pair[1], 1, size)
			b.SetBytes(size)
			b.ResetTimer()
			for posted, done := 0, 0; done < b.N; done++ {
				for ; posted < b.N && posted-done < depth; posted++ {
					pair[0].post(b, wr)
				}
				pair[0].succeed(b)
			}
			b.StopTimer()
			c := pair[0].dev.Counters()
			b.ReportMetric(float64(c.Resent)/float64(max(c.Sent, 1))*100, "%resent")
			b.ReportMetric(float64(c.Timeouts), "timeouts")
		})
	}
}
