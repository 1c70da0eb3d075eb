package bench

import (
	"context"
	"maps"
	"strings"
	"testing"

	"ibverbx/internal/tcptest"
	"ibverbx/internal/units"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// TestInterruptedWhenAllIsMeasured interrupts an end after its last figure, or while it says
// goodbye: the measurement is complete, whatever becomes of the goodbye.
func TestInterruptedWhenAllIsMeasured(t *testing.T) {
	t.Parallel() // most of the time it waits
	_, nics := fabric(t, 2)
	p := func() *Params {
		p := params(func(p *Params) { p.NICs, p.Sizes = 1, []units.Size{64, 128} })
		if err := p.Complete(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, measure := range map[string]func(ctx context.Context, interrupt func()) (ends []outcome){
		"in one process": func(ctx context.Context, interrupt func()) []outcome {
			rows := 0
			report, err := Run(ctx, p(), openSoft, observer{row: func([]Result) {
				if rows++; rows == 2 {
					interrupt()
				}
			}})
			return []outcome{{report, err}}
		},
		"the leading end": func(ctx context.Context, interrupt func()) []outcome {
			ncA, ncB := tcptest.Pair(t)
			following := follow(t.Context(), ncB, apartTimeout, nics[1:])
			rows := 0
			a := <-lead(ctx, p(), ncA, apartTimeout, nics[:1], observer{row: func([]Result) {
				if rows++; rows == 2 {
					interrupt()
				}
			}})
			return []outcome{a, <-following}
		},
		"the following end": func(ctx context.Context, interrupt func()) []outcome {
			ncA, ncB := tcptest.Pair(t)
			leading := lead(t.Context(), p(), ncA, apartTimeout, nics[:1], observer{})
			conn, err := rendezvous.Start(t.Context(), ncB, rendezvous.Config{Protocol: Protocol,
				Timeout: apartTimeout})
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			report, err := Follow(ctx, &Half{Conn: conn, Provider: "there", Devices: nics[1:], Version: "v"},
				observer{row: func([]Result) {
					if rows++; rows == 2 {
						interrupt()
					}
				}})
			return []outcome{<-leading, {report, err}}
		},
		"a goodbye without answer": func(ctx context.Context, interrupt func()) []outcome {
			ncA, ncB := between(t, func(from string, _ int, frame []byte) ([]byte, bool, bool) {
				if strings.Contains(string(frame), `"bye"`) {
					interrupt()
					return nil, true, false
				}
				return frame, false, false
			})
			following := follow(t.Context(), ncB, apartTimeout, nics[1:])
			defer func() { ncB.Close(); <-following }() // it has NICs of the fabric, however it ends
			return []outcome{<-lead(ctx, p(), ncA, apartTimeout, nics[:1], observer{})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			for i, end := range measure(ctx, interrupt) {
				if end.err != nil || !end.report.OK || end.report.Interrupted || end.report.Error != "" ||
					len(end.report.Results) != 6 {
					t.Errorf("end %d: %v, interrupted %v, %q, %d figures", i, end.err, end.report.Interrupted,
						end.report.Error, len(end.report.Results))
				}
			}
			if ctx.Err() == nil {
				t.Error("nothing was interrupted")
			}
		})
	}
}

// TestRepairs counts what NICs had to repair, each NIC once, and nothing that has not changed.
func TestRepairs(t *testing.T) {
	a, b := &repairing{n: Repairs{"naks": 7, "timeouts": 1}}, &repairing{n: Repairs{}}
	c := &pair{p: &Params{}, nics: [2][]verbs.Device{{a}, {a}}}
	before := c.repairs()
	a.n = Repairs{"naks": 10, "timeouts": 1, "out_of_sequence": 2, "reset": 0}
	var of EndRepairs
	of.A.add(c.repairs()[0], before[0])
	of.Add(of)
	if want := (Repairs{"naks": 6, "out_of_sequence": 4}); !maps.Equal(of.A, want) || of.B != nil ||
		c.repairs()[1] != nil {
		t.Errorf("%+v, and of what end b shares %+v", of, c.repairs()[1])
	}
	if c.nics[1], b.n["naks"] = []verbs.Device{b}, 7; c.repairs()[1]["naks"] != 7 {
		t.Errorf("end b: %+v", c.repairs()[1])
	}
	if c.p.Conn.Port = 2; c.repairs()[1] != nil {
		t.Errorf("port 2 of end b: %+v", c.repairs()[1])
	}
}

// repairing has counted something at port 1.
type repairing struct {
	verbs.Device
	n Repairs
}

func (d *repairing) DefaultPort() int { return 1 }

func (d *repairing) Repairs(port int) map[string]uint64 {
	if port != 1 {
		return nil
	}
	return d.n
}
