package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/guard"
	"ibverbx/internal/units"
	"ibverbx/verbs/soft"
)

// layerParams are params through a layer.
func layerParams(layer layers.Layer, op layers.Op, mode Mode, change ...func(*Params)) *Params {
	return params(append([]func(*Params){func(p *Params) {
		p.Layer, p.Op, p.Mode = layer, op, mode
		if p.Op.Atomic() {
			p.Sizes = nil
		}
		if op == layers.AM || op == "" {
			p.Sizes = []units.Size{64, 2000}
		}
	}}, change...)...)
}

// modes are how a shape can be measured.
func modes(s layers.Shape) []string {
	if s.LatencyOnly {
		return []string{"lat"}
	}
	return []string{"bw", "lat", "both directions"}
}

// how applies a word of modes.
func how(p *Params, word string) {
	switch word {
	case "lat":
		p.Mode = Latency
	case "both directions":
		p.Bidirectional = true
	}
}

// aboveQPs are the operations of the layers above queue pairs, without those of which a message
// carries less than the usual tests send.
func aboveQPs() (list []layers.Shape) {
	for _, s := range layers.Shapes() {
		if s.Layer != QP {
			list = append(list, s)
		}
	}
	return list
}

// TestLayerStopsWithinRound ends a run in the middle of a measurement that would take an hour.
func TestLayerStopsWithinRound(t *testing.T) {
	for _, layer := range []layers.Layer{layers.Transport, layers.Tagged, layers.SHMEM} {
		ctx, interrupt := context.WithCancel(t.Context())
		p := layerParams(layer, "", Bandwidth, func(p *Params) {
			p.Iterations, p.Duration, p.Sizes = 0, Seconds(time.Hour), []units.Size{64}
		})
		if err := p.Complete(); err != nil {
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
// last message gets its answer, so nothing has to wait until a deadline ends the round. On a busy
// machine a round may take that long; one that waits for an answer does whenever it is interrupted.
func TestAnsweredSeriesStopsAtOnce(t *testing.T) {
	for name, fill := range map[string]func(*Params){
		"qp send":              func(p *Params) { p.Op = Send },
		"qp write-imm":         func(p *Params) { p.Op = WriteImm },
		"tagged send":          func(p *Params) { p.Layer, p.Op = layers.Tagged, "" },
		"transport am":         func(p *Params) { p.Layer, p.Op = layers.Transport, "" },
		"shmem put and signal": func(p *Params) { p.Layer, p.Op = layers.SHMEM, "put-signal" },
	} {
		t.Run(name, func(t *testing.T) {
			const tries = 5
			for range tries {
				ctx, interrupt := context.WithCancel(t.Context())
				p := params(fill, func(p *Params) {
					p.Mode, p.Iterations, p.Duration, p.Sizes = Latency, 0, Seconds(time.Hour),
						[]units.Size{8}
				})
				if err := p.Complete(); err != nil {
					t.Fatal(err)
				}
				var asked time.Time
				began := time.AfterFunc(50*time.Millisecond, func() { asked = time.Now(); interrupt() })
				_, err := Run(ctx, p, openSoft, observer{})
				began.Stop()
				if !errors.Is(err, ErrInterrupted) {
					t.Fatal(err)
				}
				if time.Since(asked) < lastRound {
					return
				}
			}
			t.Errorf("each of %d rounds ended when it had to", tries)
		})
	}
}

// TestLayerFault strikes a NIC: the column fails and says why, and the run ends.
func TestLayerFault(t *testing.T) {
	for _, s := range aboveQPs() {
		t.Run(fmt.Sprintf("%s/%s", s.Layer, s.Op), func(t *testing.T) {
			p := layerParams(s.Layer, s.Op, Latency, func(p *Params) { p.Schemes = []Scheme{DQPLB} })
			run := openRunner(t, p)
			column := run.columns[0]
			c := newCell(run, column, int(p.Sizes[0]))
			if err := c.runRound(4, true); err != nil {
				t.Fatal(err)
			}
			fabric := column.provider.(*soft.Fabric)
			for i := range 4 {
				fabric.Device(i).Kill()
			}
			err := c.runRound(4, true)
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
	for _, s := range aboveQPs() {
		p := layerParams(s.Layer, s.Op, Latency, func(p *Params) { p.Schemes = []Scheme{DQPLB} })
		run := openRunner(t, p)
		column := run.columns[0]
		c := newCell(run, column, int(p.Sizes[0]))
		if err := c.runRound(4, true); err != nil {
			t.Fatal(err)
		}
		if s.Op.Atomic() {
			c.tasks[0].Round.Number++
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
	for _, s := range aboveQPs() {
		p := layerParams(s.Layer, s.Op, Latency, func(p *Params) {
			p.Schemes, p.Verify, p.Wait = []Scheme{DQPLB}, false, Poll
			if !s.Op.Atomic() {
				p.Sizes = []units.Size{64}
			}
		})
		run := openRunner(t, p)
		c := newCell(run, run.columns[0], int(p.Sizes[0]))
		const many, few = 1010, 10
		round := func(n int) float64 {
			return testing.AllocsPerRun(5, func() {
				if err := c.runRound(n, true); err != nil {
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
