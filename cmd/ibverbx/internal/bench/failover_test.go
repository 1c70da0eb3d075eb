package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/units"
	"ibverbx/verbs/soft"
)

// impatient is a connection whose retries are over in 30 ms.
var impatient = ibverbx.ConnConfig{Timeout: 11, RetryCount: 3}

// down counts the rails of an end that are out of service.
func down(s *QPStats) (n int) {
	for i := range s.Rails {
		if s.Rails[i].Down {
			n++
		}
	}
	return n
}

// With failover a run goes through what would have ended its connection: no request fails, and all
// arrives.
func TestFailover(t *testing.T) {
	for _, tt := range []struct {
		fault string
		data  int // rails lost that carry data
	}{
		{"kill-qp@msg=10,rail=1", 1},
		{"kill-qp@msg=10,rail=1,end=b", 1},
		{"nic-down@msg=10,nic=0", 2},
		{"nic-down@msg=10,nic=1,end=b", 2},
		{"link-down@msg=10,nic=1", 2},
	} {
		for _, op := range []Op{Write, WriteImm, Read, Send} {
			for _, mode := range []Mode{Bandwidth, Latency} {
				t.Run(fmt.Sprintf("%s/%s/%s", tt.fault, op, mode), func(t *testing.T) {
					t.Parallel() // most of the time is retries
					p := params(func(p *Params) {
						p.Op, p.Mode, p.Failover, p.Faults = op, mode, true, faults(t, tt.fault)
						p.Sizes, p.Schemes, p.Conn = []units.Size{20000}, []Scheme{Spray, DQPLB}, impatient
						if mode == Bandwidth {
							p.Interval = Seconds(time.Millisecond)
						}
					})
					report, err := measure(t, p)
					if err != nil {
						t.Fatal(err)
					}
					for i := range report.Results {
						r := &report.Results[i]
						checkResult(t, p, r)
						a, b := &r.Stats.A, &r.Stats.B
						if len(r.Faults) != 1 || !r.Faults[0].Struck {
							t.Errorf("%s: faults %+v", r.Scheme, r.Faults)
						}
						if op == Send && !strings.HasPrefix(tt.fault, "nic-down") {
							continue // they do not carry SENDs, and nothing else shows that they fail
						}
						if int(a.RailsLost) < tt.data || down(a) != int(a.RailsLost) ||
							int(b.RailsLost) < tt.data {
							t.Errorf("%s: end a lost %d rails, %d are down; end b lost %d", r.Scheme,
								a.RailsLost, down(a), b.RailsLost)
						}
						if mode == Bandwidth {
							checkLost(t, r)
						}
					}
				})
			}
		}
	}
}

// checkLost looks whether the time line says when rails were lost, and whether they carried nothing
// afterwards.
func checkLost(t *testing.T, r *Result) {
	t.Helper()
	line, last := r.Timeline, Seconds(-1)
	for _, m := range line.Marks {
		if m.Kind == RailsLost {
			last = m.At
		}
	}
	if last < 0 {
		t.Errorf("%s: no rail is lost: %+v", r.Scheme, line.Marks)
		return
	}
	for _, of := range line.Rails {
		after := of.Total[intervalOf(line, last)+1:]
		if rest := slices.Max(append(after, 0)); rest > 0 && r.Stats.A.Rails[of.Rail].Down {
			t.Errorf("%s: rail %d carries %.3f GB/s after it was lost at %v", r.Scheme, of.Rail, rest,
				time.Duration(last))
		}
	}
	checkCarried(t, r)
}

// checkCarried looks whether the rails carried no more than was sent, and sent again: what a rail
// had not completed when it was lost is that of another one.
func checkCarried(t *testing.T, r *Result) {
	t.Helper()
	line, carried := r.Timeline, 0.0
	for _, of := range line.Rails {
		for i, v := range of.Total {
			carried += v * 1e9 * line.Took(i).Seconds()
		}
	}
	again := (r.Stats.A.Reposted + r.Stats.B.Reposted) * uint64(params().Fragment)
	if carried > float64(r.Bytes+again)+1 {
		t.Errorf("%s: the rails have %.0f bytes, all messages %d, sent again were up to %d", r.Scheme,
			carried, r.Bytes, again)
	}
}

// Both of two processes have failover when the connecting one asks for it.
func TestFailoverApart(t *testing.T) {
	f, nics := fabric(t, 4)
	for _, scheme := range []Scheme{Spray, DQPLB} {
		p := params(func(p *Params) {
			p.Failover, p.NICs, p.Schemes, p.Sizes = true, 0, []Scheme{scheme}, []units.Size{40000}
		})
		fault := f.Inject(soft.Fault{Device: f.Device(1), Kind: soft.FailQP, Skip: 30})
		a, b := apart(t, p, nics[:2], nics[2:])
		if a.err != nil || b.err != nil || fault.Hits() != 1 {
			t.Fatalf("%s: end a: %v; end b: %v; struck %d", scheme, a.err, b.err, fault.Hits())
		}
		for end, s := range map[string]ibverbx.Stats{"a": a.report.Results[0].Stats.A.Stats,
			"b": a.report.Results[0].Stats.B.Stats} {
			if s.RailsLost != 1 {
				t.Errorf("%s: end %s lost %d rails", scheme, end, s.RailsLost)
			}
		}
	}
}

// What has failed for a while is back afterwards, and carries its share again. On a busy machine
// that may take longer than is measured: then it is measured for longer.
func TestFailback(t *testing.T) {
	for took := 300 * time.Millisecond; ; took *= 4 {
		p := params(func(p *Params) {
			p.Failover, p.Failback = true, Seconds(5*time.Millisecond)
			p.Faults = faults(t, "kill-qp@at=10ms,rail=1")
			p.Iterations, p.Duration, p.Samples = 0, Seconds(took), 1
			p.Sizes, p.Interval = []units.Size{40000}, Seconds(took/60)
			p.Schemes = []Scheme{DQPLB}
		})
		report, err := measure(t, p)
		if err != nil {
			t.Fatal(err)
		}
		r := &report.Results[0]
		problem := lacksFailback(r)
		if problem == nil {
			checkCarried(t, r)
			return
		}
		if took > 10*time.Second {
			t.Fatalf("in %v: %v", took, problem)
		}
	}
}

// lacksFailback says why rail 1 was not lost, back, and in use again.
func lacksFailback(r *Result) error {
	if a := &r.Stats.A; a.RailsLost != 1 || a.RailsBack != 1 || down(a) != 0 {
		return fmt.Errorf("%d rails lost, %d back, %d down", a.RailsLost, a.RailsBack, down(a))
	}
	at := slices.IndexFunc(r.Timeline.Marks, func(m Mark) bool { return m.Kind == RailsBack })
	if at < 0 {
		return fmt.Errorf("marks %+v", r.Timeline.Marks)
	}
	rail, back := r.Timeline.Rails[1].Total, intervalOf(r.Timeline, r.Timeline.Marks[at].At)
	if back+2 >= len(rail) || slices.Max(rail[back+1:]) == 0 {
		return fmt.Errorf("it carries nothing after interval %d: %v", back, rail)
	}
	return nil
}

// Without failover a fault ends its column with the errors of the ends that have noticed it, each
// request has its completion, and the other sizes of the column are left out.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		fault string
		op    Op
		want  string // in the error, one of several; empty where nothing fails
	}{
		{"kill-qp@msg=10", Write, "WR_FLUSH_ERR|RETRY_EXC_ERR"},
		{"kill-qp@msg=10,end=b", Send, "WR_FLUSH_ERR|RETRY_EXC_ERR"},
		{"kill-qp@msg=10", CmpSwap, "WR_FLUSH_ERR|RETRY_EXC_ERR"},
		{"nic-down@msg=10", Write, "RETRY_EXC_ERR|device gone|WR_FLUSH_ERR"},
		{"nic-down@msg=10,end=b", Read, "RETRY_EXC_ERR|device gone|WR_FLUSH_ERR"},
		{"nic-down@msg=10,for=5ms", WriteImm, "RETRY_EXC_ERR|device gone|WR_FLUSH_ERR"},
		{"link-down@msg=10,end=b", WriteImm, "RETRY_EXC_ERR"},
		{"link-flap@msg=10,for=1m", Send, "RETRY_EXC_ERR"}, // it ends with the column
		{"link-flap@msg=10,for=2ms", WriteImm, ""},
		{"slow@msg=10,for=2ms", Write, ""},
	} {
		for _, how := range []string{"bw", "events", "both directions", "lat"} {
			t.Run(fmt.Sprintf("%s/%s/%s", tt.fault, tt.op, how), func(t *testing.T) {
				t.Parallel() // most of the time is retries
				p := params(func(p *Params) {
					p.Op, p.Faults, p.Sizes = tt.op, faults(t, tt.fault), []units.Size{20000, 30000}
					if tt.want != "" {
						p.Conn = impatient
					}
					if tt.op.Atomic() {
						p.Sizes = nil
					}
					switch how {
					case "events":
						p.Wait = Events
					case "both directions":
						p.Bidirectional = true
					case "lat":
						p.Mode = Latency
					}
				})
				report, err := measure(t, p)
				if tt.want == "" {
					if err != nil || len(report.Results) != 6 || !report.Results[0].Faults[0].Struck {
						t.Fatalf("error %v, %d results", err, len(report.Results))
					}
					return
				}
				if err == nil || report.OK || len(report.Results) != 3 {
					t.Fatalf("error %v, %d results", err, len(report.Results))
				}
				for _, r := range report.Results {
					said := slices.ContainsFunc(strings.Split(tt.want, "|"),
						func(s string) bool { return strings.Contains(r.Error, s) })
					if !r.Failed || !said || !strings.Contains(r.Error, "end ") ||
						errors.Is(r.Err, ErrVerify) {
						t.Errorf("%s: %v", r.Scheme, r.Err)
					}
					if len(r.Faults) != 1 || !r.Faults[0].Struck {
						t.Errorf("%s: faults %+v", r.Scheme, r.Faults)
					}
				}
			})
		}
	}
}

// Losses are counted by NIC and cause, for each cell those of its time, and only so many causes.
func TestLosses(t *testing.T) {
	var c pair
	lose := func(end int, device, cause string) {
		c.noteLoss(end, ibverbx.RailEvent{Device: device, Down: true, Cause: errors.New(cause)})
	}
	lose(0, "nic0", "port down")
	lose(1, "nic2", "peer")
	if len(c.losses) != 2 {
		t.Errorf("before: %v", c.losses)
	}
	c.losses = nil
	lose(0, "nic0", "port down")
	lose(0, "nic0", "port down")
	lose(0, "nic1", "port down")
	c.noteLoss(0, ibverbx.RailEvent{Device: "nic0"}) // it is back
	got := c.losses
	want := []Loss{{"a", "nic0", "port down", 2}, {"a", "nic1", "port down", 1}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c.losses = nil
	for i := range 2 * maxLosses {
		lose(1, "nic2", fmt.Sprint(i))
	}
	if n := len(c.losses); n != maxLosses {
		t.Errorf("%d causes are kept, want %d", n, maxLosses)
	}
}

// TestNoSuchRail shows that a fault of a queue pair which a column does not have says so.
func TestNoSuchRail(t *testing.T) {
	p := params(func(p *Params) {
		p.Failover, p.Schemes, p.Faults = true, []Scheme{Single, Spray}, faults(t, "kill-qp@rail=3,msg=1")
	})
	report, err := measure(t, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results[:2] {
		f := r.Faults[0]
		if lacks := strings.Contains(f.What, "does not have queue pair 3"); f.Struck == lacks ||
			lacks != (r.Scheme == Single) {
			t.Errorf("%s: %+v", r.Scheme, f)
		}
	}
}
