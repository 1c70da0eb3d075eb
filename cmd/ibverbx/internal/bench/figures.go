package bench

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/perf/benchmath"
	"ibverbx/internal/units"
)

const (
	// Confidence is the probability that the median lies within a spread.
	Confidence = 0.95
	// leastSamples is the least number of samples for that.
	leastSamples = 6
	// noisy is the spread, in percent, beyond which a figure counts as noise.
	noisy = 20
)

// Spread is how far the samples of a figure lie apart; the figure is their median. It assumes
// nothing about their distribution.
type Spread struct {
	Samples    []float64 `json:"samples"` // in the order in which they were measured
	Low        float64   `json:"low"`     // the median of many more samples would lie between Low
	High       float64   `json:"high"`    // and High
	Confidence float64   `json:"confidence"`
	Percent    float64   `json:"percent"`         // from the figure to the farther of the two
	Noise      bool      `json:"noise,omitempty"` // that is more than 20
}

// spreadOf returns the spread of samples; nil if there are too few.
func spreadOf(samples []float64) *Spread {
	if len(samples) < leastSamples {
		return nil
	}
	sorted := benchmath.NewSample(slices.Clone(samples), &benchmath.DefaultThresholds)
	sum := benchmath.AssumeNothing.Summary(sorted, Confidence)
	s := &Spread{Samples: slices.Clone(samples), Low: sum.Lo, High: sum.Hi, Confidence: sum.Confidence}
	if sum.Center > 0 {
		s.Percent = 100 * max(sum.Hi/sum.Center-1, 1-sum.Lo/sum.Center)
	}
	s.Noise = s.Percent > noisy
	return s
}

// median returns the median of samples, which has at least one.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

const (
	// latencyWindow is the memory for measuring latency, in bytes: small, because the NIC is
	// measured and not the memory.
	latencyWindow = 1 << 20
	// latencyWarmup is how many messages go before the measured ones.
	latencyWarmup   = 200
	latencyPatience = 20 * time.Millisecond // that those may take
	// latencySpin is how long an end with a real NIC polls before it sleeps: longer than any
	// message between such NICs takes, but no longer, because emulated NICs need the core.
	latencySpin = time.Millisecond
	// patientSpin is how long an end polls otherwise before it sleeps. With two NICs that copy on
	// two cores it gains a sixth of the bandwidth, and half when another process uses a core too.
	patientSpin = 20 * time.Microsecond
	// longest is the longest latency that the histogram distinguishes, in nanoseconds.
	longest = int64(100 * time.Second)
)

// Latencies counts latencies. A nil one has none.
type Latencies struct {
	*hdrhistogram.Histogram
	halved bool // round trips are recorded
}

// NewLatencies counts the recorded times, or if these are round trips their halves.
func NewLatencies(halved bool) *Latencies {
	return &Latencies{hdrhistogram.New(1, longest, 3), halved}
}

// Record adds a time in nanoseconds.
func (l *Latencies) Record(took int64) {
	if l.halved {
		took /= 2
	}
	_ = l.RecordValue(min(max(took, 1), longest)) // in range
}

// Percentiles returns the distribution of the recorded times.
func (l *Latencies) Percentiles() *Percentile {
	if l == nil {
		return nil
	}
	return &Percentile{
		HalfRoundTrip: l.halved, Samples: l.TotalCount(), Min: l.Min(), Mean: l.Mean(),
		P50: l.ValueAtQuantile(50), P90: l.ValueAtQuantile(90), P99: l.ValueAtQuantile(99),
		P999: l.ValueAtQuantile(99.9), Max: l.Max(),
	}
}

// Mode is what is measured.
type Mode string

// The modes.
const (
	Bandwidth Mode = "bw"  // of as many messages at a time as possible
	Latency   Mode = "lat" // of one message at a time
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Bandwidth, Latency} }

// Series reports whether the mode measures one message at a time, each with its own time.
func (m Mode) Series() bool { return m == Latency }

// Scheme is a column: how many queue pairs, and how they are used.
type Scheme string

// The schemes.
const (
	Single Scheme = "single" // one queue pair on one NIC
	Spray  Scheme = "spray"
	DQPLB  Scheme = "dqplb"
)

// Schemes returns all schemes, in the order of the columns.
func Schemes() []Scheme { return []Scheme{Single, Spray, DQPLB} }

// words returns names as text.
func words[T ~string](list []T) (text []string) {
	for _, v := range list {
		text = append(text, string(v))
	}
	return text
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds = units.Seconds
