package bench

import (
	"slices"

	"golang.org/x/perf/benchmath"
)

const (
	// confidence is the probability that the median lies within a spread.
	confidence = 0.95
	// leastSamples is how many samples that takes at least.
	leastSamples = 6
	// noisy is the spread, in percent, beyond which a figure is taken for noise.
	noisy = 20
)

// Spread is how far the samples of a figure lie apart; the figure is their median. It assumes
// nothing of how they are distributed.
type Spread struct {
	Samples    []float64 `json:"samples"` // in the order in which they were measured
	Low        float64   `json:"low"`     // the median of many more samples would lie between Low
	High       float64   `json:"high"`    // and High
	Confidence float64   `json:"confidence"`
	Percent    float64   `json:"percent"`         // from the figure to the farther one of both
	Noise      bool      `json:"noise,omitempty"` // that is more than 20
}

// spreadOf is the spread of samples; nil where there are too few.
func spreadOf(samples []float64) *Spread {
	if len(samples) < leastSamples {
		return nil
	}
	sorted := benchmath.NewSample(slices.Clone(samples), &benchmath.DefaultThresholds)
	sum := benchmath.AssumeNothing.Summary(sorted, confidence)
	s := &Spread{Samples: slices.Clone(samples), Low: sum.Lo, High: sum.Hi, Confidence: sum.Confidence}
	if sum.Center > 0 {
		s.Percent = 100 * max(sum.Hi/sum.Center-1, 1-sum.Lo/sum.Center)
	}
	s.Noise = s.Percent > noisy
	return s
}

// median is the one of samples, of which there is at least one.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ratios divides what was measured in the same turns. Where one list is longer, the last turns
// brought no sample of the other.
func ratios(of, by []float64) (list []float64) {
	for i := range min(len(of), len(by)) {
		list = append(list, of[i]/by[i])
	}
	return list
}
