package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// latencyWindow is the memory that latency is measured over, in bytes: small, because the NIC
	// is measured and not the memory.
	latencyWindow = 1 << 20
	// latencyWarmup is how many messages go before the measured ones.
	latencyWarmup   = 200
	latencyPatience = 20 * time.Millisecond // that those may take
	// latencySpin is how long an end polls for what comes from a real NIC before it sleeps: longer
	// than any message is under way between such NICs, and no longer, because emulated ones need
	// the core.
	latencySpin = time.Millisecond
	// patientSpin is how long an end polls otherwise before it sleeps. Where two NICs copy on two
	// cores it gains a sixth of the bandwidth, and half of it when another process uses a core too.
	patientSpin = 20 * time.Microsecond
	// longest is the longest latency that the histogram distinguishes, in nanoseconds.
	longest = int64(100 * time.Second)
)

// newHistogram is one that latencies fit into.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, 3) }

// record adds a sample in nanoseconds.
func record(h *hdrhistogram.Histogram, took int64) {
	_ = h.RecordValue(min(max(took, 1), longest)) // in range
}

// percentiles is the distribution of what was recorded.
func percentiles(h *hdrhistogram.Histogram, half bool) *Percentile {
	return &Percentile{
		HalfRoundTrip: half, Samples: h.TotalCount(), Min: h.Min(), Mean: h.Mean(),
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99),
		P999: h.ValueAtQuantile(99.9), Max: h.Max(),
	}
}
