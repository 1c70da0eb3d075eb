package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/internal/guard"
	"ibverbx/verbs/soft"
)

// layerParams are params through a layer.
func layerParams(layer layers.Layer, op layers.Op, mode Mode, change ...func(*Params)) *Params {
	return params(append([]func(*Params){func(p *Params) {
		p.Layer, p.Op, p.Mode = layer, op, mode
		if p.Op.Atomic() {
			p.Sizes = nil
		}
	}}, change...)...)
}

// modes are how a shape can be measured.
func modes(s layers.Shape) []string {
	if s.LatencyOnly {
		return []string{"lat"}
	}
	return []string{"bw", "rate", "lat", "both directions"}
}

// how applies a word of modes.
func how(p *Params, word string) {
	switch word {
	case "lat":
		p.Mode = Latency
	case "rate":
		p.Mode = Rate
	case "both directions":
		p.Bidirectional = true
	}
}

// TestLayers measures every operation of every layer in every way, and verifies it.
func TestLayers(t *testing.T) {
	for _, s := range layers.Shapes() {
		for _, wait := range []Wait{Adaptive, Poll, Events} {
			for _, word := range modes(s) {
				if wait == Poll && word != "lat" {
					continue // two ends of one process that never pause share its cores badly
				}
				t.Run(fmt.Sprintf("%s/%s/%s/%s", s.Layer, s.Op, wait, word), func(t *testing.T) {
					p := layerParams(s.Layer, s.Op, Bandwidth,
						func(p *Params) { p.Wait = wait; how(p, word) })
					report, err := measure(t, p)
					if err != nil {
						t.Fatal(err)
					}
					if want := len(p.Sizes) * 3; len(report.Results) != want || !report.OK {
						t.Fatalf("%d results, want %d; ok %v", len(report.Results), want, report.OK)
					}
					for i := range report.Results {
						checkLayerResult(t, p, &report.Results[i], true)
					}
				})
			}
		}
	}
}

// checkLayerResult looks whether a cell is what was asked for. here says that both ends are in this
// process, so that there is a comparison.
func checkLayerResult(t *testing.T, p *Params, r *Result, here bool) {
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
	copied, compared := here && p.Mode == Bandwidth && !p.Op.Atomic(), here && p.compared()
	if copied != (r.CopyGB > 0) || compared != (r.Comparison != nil) || compared &&
		(r.Comparison.With != OneQueuePair || r.Comparison.Ratio <= 0) {
		t.Errorf("%s %v: copy() %.2f GB/s, comparison %+v", r.Scheme, r.Size, r.CopyGB, r.Comparison)
	}
	if kinds := p.Shape().Kinds; (len(kinds) > 0) != (r.Kind != "") || r.Kind == layers.Auto {
		t.Errorf("%s %v: kind %q of %v", r.Scheme, r.Size, r.Kind, kinds)
	}
	if s := r.Transport; s == nil || s.A.AMSent+s.A.Puts+s.A.Gets+s.A.Atomics == 0 && s.B.Gets == 0 {
		t.Errorf("%s %v: transport %+v", r.Scheme, r.Size, s)
	}
}

// TestKinds moves messages in each way that there is: the result says which, and it is chosen by
// the size where none is named.
func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		layer layers.Layer
		op    layers.Op
		kind  layers.Kind
		size  units.Size
		want  layers.Kind
	}{
		{layers.Transport, layers.AM, layers.Short, 8, layers.Short},
		{layers.Transport, layers.AM, layers.Bcopy, 8, layers.Bcopy},
		{layers.Transport, layers.AM, layers.Zcopy, 8, layers.Zcopy},
		{layers.Transport, layers.AM, "", 8, layers.Short},
		{layers.Transport, layers.AM, "", 4096, layers.Bcopy},
		{layers.Transport, layers.AM, "", 64 << 10, layers.Zcopy},
		{layers.Transport, layers.Put, "", 8, layers.Short},
		{layers.Transport, layers.Put, "", 8192, layers.Bcopy},
		{layers.Transport, layers.Put, "", 8193, layers.Zcopy},
		{layers.Transport, layers.Get, "", 8, layers.Bcopy},
		{layers.Transport, layers.Get, layers.Zcopy, 8, layers.Zcopy},
		{layers.Tagged, layers.Send, layers.Eager, 40000, layers.Eager},
		{layers.Tagged, layers.Send, layers.Rendezvous, 8, layers.Rendezvous},
		{layers.Tagged, layers.Send, "", 200000, layers.Rendezvous},
	} {
		for _, mode := range []Mode{Bandwidth, Latency} {
			p := layerParams(tt.layer, tt.op, mode, func(p *Params) {
				p.Kind, p.Sizes, p.Schemes = tt.kind, []units.Size{tt.size}, []Scheme{DQPLB}
			})
			report, err := measure(t, p)
			if err != nil {
				t.Fatalf("%+v: %v", tt, err)
			}
			if got := report.Results[0].Kind; got != tt.want {
				t.Errorf("%+v: moved as %s", tt, got)
			}
		}
	}
}

// TestTooLongForNIC shows that a size that a kind does not take over the NICs at hand is a wrong
// use, whose error says what it takes.
func TestTooLongForNIC(t *testing.T) {
	p := layerParams(layers.Transport, layers.AM, Bandwidth, func(p *Params) {
		p.Kind, p.Sizes = layers.Short,
			[]units.Size{8, 128}
	})
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), p, openSoft, observer{})
	var unusable *UsageError
	if report != nil || !errors.As(err, &unusable) ||
		!strings.Contains(err.Error(), "--kind short takes at most 12") {
		t.Errorf("report %v, error %v", report, err)
	}
}

// TestEndpoints serves several endpoints round robin, and compares that with one of them.
func TestEndpoints(t *testing.T) {
	for _, s := range layers.Shapes() {
		if s.Layer == layers.SHMEM {
			continue
		}
		for _, word := range modes(s) {
			p := layerParams(s.Layer, s.Op, Bandwidth, func(p *Params) {
				p.Endpoints, p.Schemes = 5, []Scheme{DQPLB}
				if how(p, word); !s.Atomic {
					p.Sizes = []units.Size{64}
				}
			})
			report, err := measure(t, p)
			if err != nil {
				t.Fatalf("%s/%s %s: %v", s.Layer, s.Op, word, err)
			}
			r := &report.Results[0]
			if c := r.Comparison; r.Endpoints != 5 || c == nil || c.With != OneEndpoint || c.Ratio <= 0 ||
				r.Messages < p.Iterations || r.Verified < 2*r.Messages {
				t.Errorf("%s/%s %s: %+v, comparison %+v", s.Layer, s.Op, word, r, c)
			}
		}
	}
}

func TestLayerByDuration(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Rate, Latency} {
		p := layerParams(layers.Transport, layers.AM, mode, func(p *Params) {
			p.Iterations, p.Duration, p.Sizes = 0, Seconds(5*time.Millisecond), []units.Size{64}
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

// TestLayerInterrupt ends a run that would take long after its first row.
func TestLayerInterrupt(t *testing.T) {
	for _, layer := range []layers.Layer{layers.Transport, layers.Tagged, layers.SHMEM} {
		for _, mode := range []Mode{Bandwidth, Latency} {
			ctx, interrupt := context.WithCancel(t.Context())
			p := layerParams(layer, "", mode, func(p *Params) {
				p.Iterations, p.Duration, p.Sizes = 0, Seconds(time.Millisecond), []units.Size{64, 128, 256}
			})
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			report, err := Run(ctx, p, openSoft, observer{row: func([]Result) { interrupt() }})
			if !errors.Is(err, ErrInterrupted) || !report.Interrupted || report.OK ||
				len(report.Results) != 3 {
				t.Errorf("%s %s: error %v, interrupted %v, %d results; want the first row", layer, mode, err,
					report.Interrupted, len(report.Results))
			}
		}
	}
}

// TestLayerStopsWithinRound ends a run in the middle of a measurement that would take an hour.
func TestLayerStopsWithinRound(t *testing.T) {
	for _, layer := range []layers.Layer{layers.Transport, layers.Tagged, layers.SHMEM} {
		ctx, interrupt := context.WithCancel(t.Context())
		p := layerParams(layer, "", Bandwidth, func(p *Params) {
			p.Iterations, p.Duration, p.Sizes = 0, Seconds(time.Hour), []units.Size{64}
			p.copyTime = time.Microsecond
		})
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		began := time.AfterFunc(50*time.Millisecond, interrupt)
		report, err := Run(ctx, p, openSoft, observer{})
		began.Stop()
		if !errors.Is(err, ErrInterrupted) || !report.Interrupted || len(report.Results) > 1 {
			t.Errorf("%s: error %v, %d results", layer, err, len(report.Results))
		}
	}
}

// TestAnsweredSeriesStopsAtOnce interrupts measurements of latency whose messages are answered. The
// last message gets its answer, so nothing has to wait until a deadline ends the round.
func TestAnsweredSeriesStopsAtOnce(t *testing.T) {
	for name, fill := range map[string]func(*Params){
		"qp send":              func(p *Params) { p.Op = Send },
		"qp write-imm":         func(p *Params) { p.Op = WriteImm },
		"tagged send":          func(p *Params) { p.Layer, p.Op = layers.Tagged, "" },
		"transport am":         func(p *Params) { p.Layer, p.Op = layers.Transport, "" },
		"shmem put and signal": func(p *Params) { p.Layer, p.Op = layers.SHMEM, "put-signal" },
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				ctx, interrupt := context.WithCancel(t.Context())
				p := params(fill, func(p *Params) {
					p.Mode, p.Iterations, p.Duration, p.Sizes = Latency, 0, Seconds(time.Hour),
						[]units.Size{8}
					p.copyTime = time.Microsecond
				})
				if err := p.Validate(); err != nil {
					t.Fatal(err)
				}
				var asked time.Time
				began := time.AfterFunc(50*time.Millisecond, func() { asked = time.Now(); interrupt() })
				_, err := Run(ctx, p, openSoft, observer{})
				began.Stop()
				if took := time.Since(asked); !errors.Is(err, ErrInterrupted) || took > lastRound/2 {
					t.Fatalf("error %v, %v after the interruption", err, took)
				}
			}
		})
	}
}

// TestLayerFault strikes a NIC: the column fails and says why, and the run ends.
func TestLayerFault(t *testing.T) {
	for _, s := range layers.Shapes() {
		t.Run(fmt.Sprintf("%s/%s", s.Layer, s.Op), func(t *testing.T) {
			p := layerParams(s.Layer, s.Op, Latency, func(p *Params) { p.Schemes = []Scheme{DQPLB} })
			run := openRunner(t, p)
			defer run.stop()
			column := run.columns[0]
			c := newCell(run, column, int(p.Sizes[0]))
			if _, err := c.runRound(4, true); err != nil {
				t.Fatal(err)
			}
			fabric := column.provider.(*soft.Fabric)
			for i := range 4 {
				fabric.Device(i).Kill()
			}
			_, err := c.runRound(4, true)
			if err == nil {
				t.Error("a round over NICs that are gone has gone well")
			}
			t.Log(err)
			if c.giveUp(); !column.failed {
				t.Error("the column goes on")
			}
			if err := run.close(); err != nil {
				t.Errorf("something was left open: %v", err)
			}
		})
	}
}

// TestLayerVerifyFinds shows that a wrong byte does not go unnoticed.
func TestLayerVerifyFinds(t *testing.T) {
	for _, s := range layers.Shapes() {
		p := layerParams(s.Layer, s.Op, Latency, func(p *Params) { p.Schemes = []Scheme{DQPLB} })
		run := openRunner(t, p)
		defer run.stop()
		column := run.columns[0]
		c := newCell(run, column, int(p.Sizes[0]))
		if _, err := c.runRound(4, true); err != nil {
			t.Fatal(err)
		}
		if s.Atomic {
			column.ends[0].Results()[2]++
		} else {
			column.ends[c.compares(0)].Target()[c.size+7] ^= 1
		}
		if err := c.compare(0, 4); !errors.Is(err, ErrVerify) {
			t.Errorf("%s/%s: wrong result: error %v", s.Layer, s.Op, err)
		}
		if err := run.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLayerAllocates shows that the loops that are timed allocate nothing for a message.
func TestLayerAllocates(t *testing.T) {
	if guard.Race {
		t.Skip("with the race detector pools forget what they hold")
	}
	for _, s := range layers.Shapes() {
		p := layerParams(s.Layer, s.Op, Latency, func(p *Params) {
			p.Schemes, p.Verify, p.Wait = []Scheme{DQPLB}, false, Poll
			if !s.Atomic {
				p.Sizes = []units.Size{64}
			}
		})
		run := openRunner(t, p)
		defer run.stop()
		c := newCell(run, run.columns[0], int(p.Sizes[0]))
		const many, few = 1010, 10
		round := func(n int) float64 {
			return testing.AllocsPerRun(5, func() {
				if _, err := c.runRound(n, true); err != nil {
					t.Fatal(err)
				}
			})
		}
		round(many)
		if each := (round(many) - round(few)) / (many - few); each > 0.01 {
			t.Errorf("%s/%s: %.2f allocations a message", s.Layer, s.Op, each)
		}
		if err := run.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestValidateLayers(t *testing.T) {
	for _, tt := range []struct {
		change func(*Params)
		want   string
	}{
		{func(p *Params) { p.Layer = "moon" }, `--layer "moon": have qp, transport, tagged, shmem`},
		{func(p *Params) { p.Layer, p.Op = layers.Transport, "send" },
			`--op "send": --layer transport has am, put, put-poll, get, fetch-add`},
		{func(p *Params) { p.Layer, p.Op = layers.Tagged, "write" },
			`--op "write": --layer tagged has send, send-sync`},
		{func(p *Params) { p.Layer, p.Op, p.Kind = layers.Transport, "get", layers.Short },
			"has auto, bcopy, zcopy"},
		{func(p *Params) { p.Layer, p.Op, p.Kind = layers.SHMEM, "put", layers.Short },
			"has no kinds: drop --kind"},
		{func(p *Params) { p.Layer, p.Op, p.Kind = layers.Tagged, "send", layers.Zcopy },
			"has auto, eager, rendezvous"},
		{func(p *Params) { p.Kind = layers.Short },
			"use --layer transport or --layer tagged, or drop --kind"},
		{func(p *Params) { p.Endpoints = 2 }, "drop --endpoints"},
		{func(p *Params) { p.Layer, p.Op, p.Endpoints = layers.SHMEM, "put", 2 },
			"have one connection to each other"},
		{func(p *Params) { p.Layer, p.Op, p.Endpoints = layers.Transport, "am", -1 }, "must be 1 to 256"},
		{func(p *Params) { p.Layer, p.Op, p.TxDepth = layers.Transport, "am", 5000 },
			"at most 4096 on each endpoint"},
		{func(p *Params) { p.Layer, p.Op, p.TxDepth, p.Endpoints = layers.Transport, "am", 4096, 200 },
			"at most 262144 in all"},
		{func(p *Params) { p.Layer, p.Op, p.Endpoints = layers.Transport, "am", 100 },
			"at most 64 endpoints"},
		{func(p *Params) { p.Layer, p.Op, p.Sizes = layers.Transport, "am", []units.Size{1 << 20} },
			"use --layer tagged, or --op put"},
		{func(p *Params) { p.Layer, p.Op, p.Kind = layers.Transport, "put", layers.Short },
			"--kind short takes at most 128 B; use --kind auto"},
		{func(p *Params) { p.Layer, p.Op, p.Kind = layers.Transport, "get", layers.Bcopy },
			"--kind bcopy takes at most 8 KiB"},
		{func(p *Params) { p.Layer, p.Op = layers.Transport, "put-poll" }, "use --mode lat, or --op put"},
		{func(p *Params) { p.Layer, p.Op = layers.Transport, "fetch-add" }, "works on 8 bytes, not 64 B"},
		{func(p *Params) { p.Layer, p.Op, p.Mode = layers.Transport, "put", "fast" },
			"have bw and lat and rate"},
		{func(p *Params) { p.Layer, p.Op, p.Mode, p.Bidirectional = layers.Tagged, "send", Latency, true },
			"drop -b"},
		{func(p *Params) { p.Mode = Rate }, "--mode bw shows the rate of --layer qp"},
		{func(p *Params) { p.Layer, p.Op, p.Faults = layers.Tagged, "send", faults(t, "slow@msg=1") },
			"use --layer qp, or drop --fault"},
		{func(p *Params) { p.Layer, p.Op, p.Sizes = layers.Tagged, "", nil }, ""},
		{func(p *Params) { p.Layer, p.Op, p.Sizes = layers.SHMEM, "fetch-add", nil }, ""},
	} {
		p := params(tt.change)
		err := p.Validate()
		var unusable *UsageError
		if tt.want == "" && err == nil {
			continue
		}
		if !errors.As(err, &unusable) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}
