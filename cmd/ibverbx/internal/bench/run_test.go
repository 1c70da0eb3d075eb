package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they mostly wait
	goleak.VerifyTestMain(m)
}

func openSoft(nics int) (verbs.Provider, error) { return soft.New(soft.Config{Devices: 2 * nics}) }

// observer calls row for each row.
type observer struct{ row func([]Result) }

func (observer) Start(*Params, *Peer) {}
func (o observer) Row(r []Result) {
	if o.row != nil {
		o.row(r)
	}
}

func measure(t *testing.T, p *Params) (*Report, error) {
	t.Helper()
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), p, openSoft, observer{})
	if report == nil {
		t.Fatalf("no report: %v", err)
	}
	return report, err
}

// TestRun measures every operation of every layer in every way, and verifies it.
func TestRun(t *testing.T) {
	for _, s := range layers.Shapes() {
		waits := []Wait{Adaptive}
		if s.Layer == QP {
			waits = []Wait{Adaptive, Poll, Events}
		}
		for _, wait := range waits {
			for _, word := range modes(s) {
				t.Run(fmt.Sprintf("%s/%s/%s/%s", s.Layer, s.Op, wait, word), func(t *testing.T) {
					p := layerParams(s.Layer, s.Op, Bandwidth, func(p *Params) {
						p.Wait = wait
						how(p, word)
					})
					report, err := measure(t, p)
					if err != nil {
						t.Fatal(err)
					}
					if want := len(p.Sizes) * 3; len(report.Results) != want || !report.OK {
						t.Fatalf("%d results, want %d; ok %v", len(report.Results), want, report.OK)
					}
					for i := range report.Results {
						checkResult(t, p, &report.Results[i])
					}
				})
			}
		}
	}
}

// checkResult looks whether a cell is what was asked for.
func checkResult(t *testing.T, p *Params, r *Result) {
	t.Helper()
	want := p.Iterations
	if p.Bidirectional || p.Answered() {
		want *= 2
	}
	if r.Messages != want || r.Bytes != uint64(want)*uint64(r.Size) || r.Verified <= want || r.Failed ||
		r.Layer != p.Layer {
		t.Errorf("%s %v: %d messages of %d, %d bytes, %d verified, failed %v", r.Scheme, r.Size, r.Messages,
			want, r.Bytes, r.Verified, r.Failed)
	}
	if r.Seconds <= 0 || r.GBPerSecond <= 0 || r.MsgPerSecond <= 0 {
		t.Errorf("%s %v: no figures: %+v", r.Scheme, r.Size, r)
	}
	if p.Mode == Latency {
		if l := r.Latency; l == nil || l.Samples != int64(p.Iterations) || l.Min > l.P50 || l.P50 > l.P99 ||
			l.P999 > l.Max {
			t.Errorf("%s %v: latency %+v", r.Scheme, r.Size, l)
		}
	}
	if rails := r.Stats.A.Rails; !p.Layered() && (r.Stats.A.Sends == 0 || len(rails) == 0) {
		t.Errorf("%s %v: stats %+v", r.Scheme, r.Size, r.Stats.A)
	}
}

func TestByDuration(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		p := params(func(p *Params) {
			p.Mode, p.Iterations, p.Duration, p.Op = mode, 0, Seconds(5*time.Millisecond), WriteImm
		})
		report, err := measure(t, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			if r.Seconds < 0.005 || r.Seconds > 2 {
				t.Errorf("%s %s %v: took %.4f s, asked for were 0.005", mode, r.Scheme, r.Size, r.Seconds)
			}
		}
	}
}

func TestSlowNICs(t *testing.T) {
	p := params(func(p *Params) {
		p.Sizes, p.Iterations, p.Schemes = []units.Size{64 << 10}, 64, []Scheme{DQPLB}
		p.Speeds, p.Latencies = []units.Rate{50e6, 150e6}, []Seconds{Seconds(10 * time.Microsecond)}
	})
	report, err := measure(t, p)
	if err != nil {
		t.Fatal(err)
	}
	if gb := report.Results[0].GBPerSecond; gb > 0.2 {
		t.Errorf("%.3f GB/s over NICs of 0.2 in all", gb)
	}
}

// TestInterrupt ends a run that would take long after its first row.
func TestInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	p := params(func(p *Params) {
		p.Iterations, p.Duration, p.Sizes = 0, Seconds(time.Millisecond), []units.Size{64, 128, 256}
	})
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	report, err := Run(ctx, p, openSoft, observer{row: func([]Result) { interrupt() }})
	if !errors.Is(err, ErrInterrupted) || !report.Interrupted || report.OK || len(report.Results) != 3 {
		t.Errorf("error %v, interrupted %v, %d results; want the first row", err, report.Interrupted,
			len(report.Results))
	}
}

// TestLongest shows how many messages a round has at most where memory has room for 16: many more
// on NICs, unless somebody compares them.
func TestLongest(t *testing.T) {
	for _, tt := range []struct {
		change func(*Params)
		want   int
	}{
		{func(p *Params) {}, maxRound},
		{func(p *Params) { p.Provider = Soft }, 16},
		{func(p *Params) { p.Verify = true }, 16},
		{func(p *Params) { p.Mode = Latency }, 16},
		{func(p *Params) { p.Layer = layers.SHMEM }, 16},
		{func(p *Params) { p.Op = FetchAdd }, 16},
	} {
		p := params(func(p *Params) { p.Provider, p.Verify = "rdmacore", false }, tt.change)
		c := &cell{runner: &runner{p: p, mem: &memory{window: 64 << 10}}, size: 4096}
		if got := c.longest(); got != tt.want {
			t.Errorf("%s %s %s %s, verified: %v: %d messages, want %d", p.Provider, p.Layer, p.Op, p.Mode,
				p.Verify, got, tt.want)
		}
	}
}

// TestVerifyFinds shows that a wrong byte, and a message that never came, do not go unnoticed.
func TestVerifyFinds(t *testing.T) {
	m := newMemory(params(), bothHere())
	const size, round = 4096, 3
	src, dst := m.ends[0].src, m.ends[1].dst
	fill := func(round uint64) {
		for slot := range m.slots(size) {
			from := m.round(round, size).Source(slot)
			copy(dst[slot*size:(slot+1)*size], src[from:from+size])
		}
	}
	fill(round)
	if err := m.verify(dst, src, round, m.slots(size), size); err != nil {
		t.Fatal(err)
	}
	dst[5*size+17] ^= 1
	err := m.verify(dst, src, round, m.slots(size), size)
	if !errors.Is(err, ErrVerify) || !strings.Contains(err.Error(), "message 5 of round 3 (4 KiB): 1 bytes "+
		"differ, the first at offset 17") {
		t.Errorf("wrong byte: error %v", err)
	}
	if err := wrongBytes(src[:size], src[:size], round, 5); !errors.Is(err, ErrVerify) ||
		!strings.Contains(err.Error(), "right a moment later") {
		t.Errorf("bytes that came between two looks: error %v", err)
	}
	fill(round)
	for _, later := range []uint64{round + 1, round + 2, round + 1000} {
		if err := m.verify(dst, src, later, m.slots(size), size); !errors.Is(err, ErrVerify) {
			t.Errorf("the content of round %d passes for round %d: %v", round, later, err)
		}
	}
}

// openRunner makes a runner over software NICs of this process, and opens it. The test stops and
// closes it.
func openRunner(t *testing.T, p *Params) *runner {
	t.Helper()
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	run := newRunner(t.Context(), p, bothHere(), observer{})
	if err := run.open(openSoft); err != nil {
		t.Fatal(err)
	}
	return run
}

// TestRoundsOfRun shows that no round of a run has the number of another one, in whatever cell:
// what one left would be right for the other.
func TestRoundsOfRun(t *testing.T) {
	p := params()
	run := openRunner(t, p)
	defer run.close()
	seen := map[uint64]string{}
	note := func(who string) {
		t.Helper()
		if before, twice := seen[run.mem.rounds]; twice {
			t.Errorf("%s has the round %d of %s", who, run.mem.rounds, before)
		}
		seen[run.mem.rounds] = who
	}
	for _, c := range run.columns {
		cell := newCell(run, c, 64)
		if err := cell.runRound(4, true); err != nil {
			t.Fatal(err)
		}
		note(string(c.scheme))
		if cell.number != run.mem.rounds {
			t.Errorf("%s: round %d, and %d of the run", c.scheme, cell.number, run.mem.rounds)
		}
	}
}

func TestTooFewNICs(t *testing.T) {
	p := params()
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	few := func(int) (verbs.Provider, error) { return soft.New(soft.Config{Devices: 1}) }
	report, err := Run(t.Context(), p, few, observer{})
	var usage *UsageError
	if report != nil || !errors.As(err, &usage) || !strings.Contains(err.Error(), "provider soft has 1") {
		t.Errorf("report %v, error %v", report, err)
	}
}

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
