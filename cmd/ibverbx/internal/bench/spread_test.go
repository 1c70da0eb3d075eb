package bench

import (
	"math"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
)

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		name      string
		values    []float64
		low, high float64
		percent   float64
		noise     bool
	}{
		{"all the same", []float64{5, 5, 5, 5, 5, 5}, 5, 5, 0, false},
		{"close together", []float64{100, 104, 98, 101, 102, 96}, 96, 104, 4.5, false},
		{"one far away", []float64{100, 101, 99, 100, 100, 40}, 40, 101, 60, true},
		{"one of many far away", []float64{10, 10, 10, 10, 10, 10, 10, 10, 10, 99}, 10, 10, 0, false},
	} {
		s := spreadOf(tt.values)
		if s == nil || s.Low != tt.low || s.High != tt.high || s.Noise != tt.noise ||
			math.Abs(s.Percent-tt.percent) > 0.1 || s.Confidence < 0.95 || len(s.Samples) != len(tt.values) ||
			s.Samples[0] != tt.values[0] {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
	if s := spreadOf([]float64{1, 2, 3, 4, 5}); s != nil {
		t.Errorf("five samples say nothing of the median with 95 %%: %+v", s)
	}
}

// TestSamples measures each cell several times, in turn with the others, and gives the median.
func TestSamples(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		p := params(func(p *Params) {
			// A cell that takes four times as long as asked for has fewer samples: a busy machine
			// must stop it for more than half a second.
			p.Mode, p.Iterations, p.Duration, p.Op = mode, 0, Seconds(200*time.Millisecond), WriteImm
			p.Sizes = []units.Size{64}
		})
		if err := p.Complete(); err != nil {
			t.Fatal(err)
		}
		report, err := Run(t.Context(), p, openSoft, observer{})
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Results) != 3 {
			t.Errorf("%s: %d results", mode, len(report.Results))
		}
		for i := range report.Results {
			checkSpread(t, p, &report.Results[i])
		}
	}
}

// countedSamples asks for samples of so many messages: however long they take, each turn gives one.
func countedSamples(p *Params) { p.Samples, p.Iterations = defaultSamples, 64*defaultSamples }

// TestSamplesApart does so between two ends that know only their own.
func TestSamplesApart(t *testing.T) {
	_, nics := fabric(t, 4)
	for _, layer := range []layers.Layer{QP, layers.Transport} {
		p := params(func(p *Params) {
			countedSamples(p)
			p.NICs, p.Bidirectional = 0, layer == QP
			p.Layer, p.Sizes = layer, []units.Size{64, 2000}
			if layer != QP {
				p.Op = layers.Put
			}
		})
		a, b := apart(t, p, nics[:2], nics[2:])
		if a.err != nil || b.err != nil {
			t.Fatalf("end a: %v; end b: %v", a.err, b.err)
		}
		for _, o := range []outcome{a, b} {
			if len(o.report.Results) != 6 {
				t.Fatalf("%d results", len(o.report.Results))
			}
			for i := range o.report.Results {
				r := &o.report.Results[i]
				checkSpread(t, a.report.Params, r)
				// What the following end counted is of all samples, and not of the last one.
				if layer == QP && (r.Stats.B.Sends < uint64(r.Messages/2) ||
					r.Stats.A.Sends < uint64(r.Messages/2)) {
					t.Errorf("%s %v: ends counted %d and %d sends of %d", r.Scheme, r.Size, r.Stats.A.Sends,
						r.Stats.B.Sends, r.Messages)
				}
			}
		}
	}
}

// checkSpread looks whether a figure is the median of its samples.
func checkSpread(t *testing.T, p *Params, r *Result) {
	t.Helper()
	s, figure := r.Spread, r.MsgPerSecond
	if p.Mode == Latency {
		figure = float64(r.Latency.P50)
	}
	if s == nil || len(s.Samples) != defaultSamples || s.Low > s.High {
		t.Fatalf("%s %v: spread %+v", r.Scheme, r.Size, s)
	}
	if p.Mode == Bandwidth && (figure < s.Low || figure > s.High ||
		math.Abs(r.GBPerSecond*1e9-figure*float64(r.Size)) > 1e-6*figure*float64(r.Size)) {
		t.Errorf("%s %v: %g messages a second, %g GB/s of %+v", r.Scheme, r.Size, figure, r.GBPerSecond, s)
	}
}
