package bench

import (
	"context"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/internal/tcptest"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// TestInterruptedWhenAllIsMeasured interrupts an end after its last figure, or while it says
// goodbye: the measurement is complete, whatever becomes of the goodbye.
func TestInterruptedWhenAllIsMeasured(t *testing.T) {
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

// TestRepairs counts what NICs of UDP sockets had to repair, each NIC once.
func TestRepairs(t *testing.T) {
	a, b := &repairing{}, &repairing{}
	c := &pair{nics: [2][]verbs.Device{{a}, {a}}}
	before := c.repairs()
	a.n = roce.Counters{Resent: 5, Timeouts: 4, NAKs: 3, RNRNAKs: 2, Overflowed: 1, Sent: 99}
	var of EndRepairs
	of.A.add(c.repairs()[0], before[0])
	of.Add(of)
	if want := (EndRepairs{A: Repairs{10, 8, 6, 4, 2}}); of != want || c.repairs()[1] != before[1] {
		t.Errorf("%+v, and of what end b shares %+v", of, c.repairs()[1])
	}
	if c.nics[1], b.n.NAKs = []verbs.Device{b}, 7; c.repairs()[1].NAKs != 7 {
		t.Errorf("end b: %+v", c.repairs()[1])
	}
}

type repairing struct {
	verbs.Device
	n roce.Counters
}

func (d *repairing) Counters() roce.Counters { return d.n }
