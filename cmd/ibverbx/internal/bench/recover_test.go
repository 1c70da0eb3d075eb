package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
)

// impatient is a connection whose retries are over in 30 ms.
var impatient = ibverbx.ConnConfig{Timeout: 11, RetryCount: 3}

// faultCases are the faults, what is to be seen of each, and what is done about it.
var faultCases = []struct {
	fault  string
	op     Op
	status string // of a completion or of a first error, one of several; empty when nothing fails
	action string
}{
	{"fail-fragment@msg=10", Write, "RETRY_EXC_ERR", ActionReset},
	{"fail-fragment@msg=10,nic=0", WriteImm, "RETRY_EXC_ERR", ActionReset},
	{"fail-fragment@msg=10,rail=0", Read, "RETRY_EXC_ERR", ActionReset},
	{"fail-fragment@msg=10", FetchAdd, "RETRY_EXC_ERR", ActionReset},
	{"lose-ack@msg=10", WriteImm, "RETRY_EXC_ERR", ActionReset},
	{"lose-ack@msg=10", CmpSwap, "RETRY_EXC_ERR", ActionReset},
	{"fail-recv@msg=10", Send, "REM_OP_ERR", ActionReset},
	{"fail-recv@msg=10", WriteImm, "REM_OP_ERR", ActionReset},
	{"kill-qp@msg=10", Write, "WR_FLUSH_ERR", ActionReset},
	{"kill-qp@msg=10,end=b", Send, "WR_FLUSH_ERR", ActionReset},
	{"kill-qp@msg=10,end=b", Write, "RETRY_EXC_ERR|WR_FLUSH_ERR", ActionReset},
	{"nic-down@msg=10", Write, "device gone", ActionRebuilt},
	{"nic-down@msg=10", Send, "device gone", ActionRebuilt},
	{"nic-down@msg=10,end=b", WriteImm, "WR_FLUSH_ERR", ActionRebuilt},
	{"nic-down@msg=10,end=b", Read, "RETRY_EXC_ERR|device gone", ActionRebuilt},
	{"nic-down@msg=10,for=5ms", WriteImm, "device gone|WR_FLUSH_ERR", ActionReset},
	{"link-down@msg=10", Write, "RETRY_EXC_ERR", ActionRebuilt},
	{"link-down@msg=10,end=b", WriteImm, "RETRY_EXC_ERR", ActionRebuilt},
	{"link-flap@msg=10,for=250ms", Send, "RETRY_EXC_ERR", ActionReset},
	{"link-flap@msg=10,for=2ms", WriteImm, "", ""},
	{"delay@msg=10,for=2ms", Write, "", ""},
	{"stall@msg=10,for=2ms", WriteImm, "", ""},
}

// TestFaults injects each fault into each scheme: the run survives it or goes on after it, and
// everything is accounted for.
func TestFaults(t *testing.T) {
	for _, tt := range faultCases {
		for _, how := range []string{"bw", "events", "both directions", "lat"} {
			t.Run(fmt.Sprintf("%s/%s/%s", tt.fault, tt.op, how), func(t *testing.T) {
				t.Parallel() // most of the time is retries
				p := params(func(p *Params) {
					p.Op, p.Faults, p.Sizes = tt.op, faults(t, tt.fault), []units.Size{20000}
					if tt.status != "" {
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
				if err != nil || !report.OK || len(report.Results) != 3 {
					t.Fatalf("error %v, %d results", err, len(report.Results))
				}
				for i := range report.Results {
					r := &report.Results[i]
					checkResult(t, p, r, true)
					if len(r.Faults) != 1 || !r.Faults[0].Struck {
						t.Errorf("%s: fault did not strike: %+v", r.Scheme, r.Faults)
					}
					if tt.status == "" {
						if r.Failure != nil || r.Recovery != nil {
							t.Errorf("%s: failed: %+v", r.Scheme, r.Failure)
						}
						continue
					}
					checkSetback(t, r, tt.status, tt.action)
				}
			})
		}
	}
}

// checkSetback looks whether the result of a cell that was struck has all of it.
func checkSetback(t *testing.T, r *Result, status, action string) {
	t.Helper()
	f, rec := r.Failure, r.Recovery
	if f == nil || rec == nil || len(r.Further) != 0 || len(f.Ends) != 2 || len(f.Faults) != 1 {
		t.Fatalf("%s: failure %+v, recovery %+v, further %v", r.Scheme, f, rec, r.Further)
	}
	if !f.Kept || f.Broken != "" || f.Compared < max(f.Acknowledged, f.Notified)/2 {
		t.Errorf("%s: promises: %+v", r.Scheme, f)
	}
	said := fmt.Sprint(r.Statuses)
	unsuccessful := uint64(0)
	for _, e := range f.Ends {
		if e.Sends.Accepted != e.Sends.Completed() || e.Recvs.Accepted != e.Recvs.Completed() {
			t.Errorf("%s: end %s: sends %+v, receives %+v", r.Scheme, e.End, e.Sends, e.Recvs)
		}
		unsuccessful += e.Sends.Failed + e.Sends.Flushed + e.Recvs.Failed + e.Recvs.Flushed
		if e.Error != nil {
			said += e.Error.Text
		}
	}
	seen := slices.ContainsFunc(strings.Split(status, "|"),
		func(s string) bool { return strings.Contains(said, s) })
	if f.Ends[0].Error == nil && f.Ends[1].Error == nil || !seen {
		t.Errorf("%s: no %s: %s, ends %+v", r.Scheme, status, said, f.Ends)
	}
	if f.Faults[0].Hits > 0 && unsuccessful == 0 {
		t.Errorf("%s: nothing failed: %+v", r.Scheme, f.Ends)
	}
	if rec.Action != action || rec.Messages == 0 || rec.Verified != rec.Messages || rec.Seconds <= 0 ||
		rec.What == "" {
		t.Errorf("%s: recovery %+v, want %s", r.Scheme, rec, action)
	}
	if rec.Rails != r.Rails || len(rec.NICs["a"]) == 0 || len(rec.NICs["a"]) != len(rec.NICs["b"]) {
		t.Errorf("%s: rails %d of %d, NICs %v", r.Scheme, rec.Rails, r.Rails, rec.NICs)
	}
}

// TestRebuiltOn shows which NICs are used after one has failed at either end.
func TestRebuiltOn(t *testing.T) {
	p := params(func(p *Params) {
		p.Faults, p.Sizes = faults(t, "nic-down@msg=10,nic=0", "link-down@msg=10,nic=1,end=b"),
			[]units.Size{20000, 30000}
		p.NICs, p.Iterations, p.Conn = 3, 100, impatient
	})
	report, err := measure(t, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Size != 20000 {
			if r.Failure != nil || r.Messages != p.Iterations || len(r.Faults) != 0 {
				t.Errorf("%s %v: %+v, faults %v", r.Scheme, r.Size, r.Failure, r.Faults)
			}
			continue
		}
		all := r.Setbacks()
		got := fmt.Sprint(all[len(all)-1].Recovery.NICs)
		want := "map[a:[soft1 soft2] b:[soft3 soft5]]"
		if r.Scheme == Single {
			want = "map[a:[soft1] b:[soft3]]"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", r.Scheme, got, want)
		}
	}
}

// TestLeftWithOne rebuilds on a single queue pair, which has limits of its own.
func TestLeftWithOne(t *testing.T) {
	for _, op := range []Op{Write, Send, WriteImm} {
		p := params(func(p *Params) {
			p.Op, p.QPs, p.Depth, p.TxDepth = op, 1, 8, 64
			p.Faults, p.Sizes, p.Schemes = faults(t, "nic-down@msg=10"), []units.Size{2000},
				[]Scheme{Spray, DQPLB}
		})
		report, err := measure(t, p)
		if err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		for i := range report.Results {
			checkResult(t, p, &report.Results[i], true)
			if rec := report.Results[i].Recovery; rec == nil || rec.Rails != 1 {
				t.Errorf("%s: %+v", op, rec)
			}
		}
	}
}

// TestSeveralFailures continues after each of several failures in one cell.
func TestSeveralFailures(t *testing.T) {
	p := params(func(p *Params) {
		p.Op, p.Sizes, p.Iterations, p.TxDepth = WriteImm, []units.Size{2000}, 200, 8
		p.Faults = faults(t, "kill-qp@msg=20", "fail-fragment@msg=40,count=3", "fail-recv@msg=60")
	})
	report, err := measure(t, p)
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Results {
		r := &report.Results[i]
		checkResult(t, p, r, true)
		if n := len(r.Setbacks()); n < 3 || n > 5 {
			t.Errorf("%s: %d failures", r.Scheme, n)
		}
		for _, s := range r.Setbacks() {
			if s.Recovery == nil || !s.Failure.Kept || len(s.Failure.Faults) == 0 {
				t.Errorf("%s: %+v, %+v", r.Scheme, s.Failure, s.Recovery)
			}
		}
	}
}

// TestCellThatCannotContinue checks how a run ends that has no NICs left,
// or that a permanent fault strikes.
func TestCellThatCannotContinue(t *testing.T) {
	for fault, want := range map[string]string{
		"nic-down@msg=10": "could not go on without soft0 (end a): end a has no other NIC",
		"link-down@msg=10,end=b": "could not go on without the link of soft1 (end b): end b has no " +
			"other NIC",
		"fail-fragment@msg=10,count=all": "strikes again and again",
		"fail-fragment@msg=10,count=99":  "gave up: 17 failures in this column at this size",
	} {
		p := params(func(p *Params) {
			p.NICs, p.Faults, p.Sizes, p.TxDepth = 1, faults(t, fault), []units.Size{2000, 3000}, 1
			p.Schemes, p.Conn = []Scheme{Single, DQPLB}, impatient
		})
		report, err := measure(t, p)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "injected fault "+fault) || report.OK {
			t.Errorf("%s: error %v, want %q", fault, err, want)
		}
		if len(report.Results) != 2 {
			t.Errorf("%s: %d results: a column that could not go on must end", fault, len(report.Results))
		}
		for _, r := range report.Results {
			all, counted, recorded := r.Setbacks(), 0, 0
			for _, s := range all {
				for _, e := range s.Failure.Ends {
					recorded += int(e.Sends.Failed + e.Sends.Flushed + e.Recvs.Failed + e.Recvs.Flushed)
				}
			}
			for _, n := range r.Statuses {
				counted += n
			}
			if counted != recorded {
				t.Errorf("%s: %s: %v, recorded are %d", fault, r.Scheme, r.Statuses, recorded)
			}
			if !r.Failed || len(all) == 0 || all[len(all)-1].Recovery != nil ||
				!all[len(all)-1].Failure.Kept {
				t.Errorf("%s: %s: failed %v, %+v", fault, r.Scheme, r.Failed, all)
			}
		}
	}
}

// TestFailureOfItsOwn checks that a failure without a fault as its cause ends the cell, though
// faults were injected that do no harm, or whose harm is over.
func TestFailureOfItsOwn(t *testing.T) {
	for _, injected := range [][]string{{"delay@msg=5,for=1ms", "nic-down@nic=1,msg=6",
		"link-flap@msg=7,for=1ms"}, {"fail-fragment@msg=3"}} {
		p := params(func(p *Params) {
			p.Sizes, p.Faults, p.Schemes = []units.Size{2000}, faults(t, injected...), []Scheme{Single}
		})
		run := openRunner(t, p)
		defer run.stop()
		defer run.close()
		c := newCell(run, run.columns[0], 2000)
		if err := c.figures(); err != nil {
			t.Fatal(err)
		}
		before := len(c.result.Setbacks())
		if _, err := killQP(c.pair, &Fault{End: "a"}); err != nil {
			t.Fatal(err)
		}
		_, err := c.try(10, true)
		all := c.result.Setbacks()
		if err == nil || len(all) != before+1 || all[before].Recovery != nil {
			t.Fatalf("%v: error %v, %+v", injected, err, all)
		}
		c.result.Err = err
		c.giveUp()
		if f := all[before].Failure; f.Ends[0].Sends.Flushed == 0 ||
			f.Ends[0].Sends.Accepted != f.Ends[0].Sends.Completed() || !f.Kept {
			t.Errorf("%v: %+v", injected, f)
		}
	}
}

// TestBrokenPromises shows that a completion too many, too few or in the wrong place, and data that
// is not there, end the cell.
func TestBrokenPromises(t *testing.T) {
	for name, tt := range map[string]struct {
		tamper func(c *cell)
		want   string
	}{
		"lost": {func(c *cell) { c.pair.queuePairs()[0].Ledger.Sends.Accepted++ }, "sends"},
		"twice": {func(c *cell) {
			c.pair.queuePairs()[1].Ledger.Count(&ibverbx.WC{ID: 1 << 63})
		}, "receives"},
		"not stopped": {func(c *cell) {
			l := &c.pair.queuePairs()[0].Ledger
			l.Sends.Accepted += 2
			l.Count(&ibverbx.WC{Status: verbs.StatusWRFlushErr})
			l.Count(&ibverbx.WC{})
		}, "end a"},
		"data":    {func(c *cell) { c.pair.ends[1].Target()[17] ^= 1 }, "message 0 of round"},
		"counted": {func(c *cell) { c.pair.ends[1].Target()[3*2000+1] ^= 1 }, "message 3 of round"},
	} {
		t.Run(name, func(t *testing.T) {
			p := params(func(p *Params) {
				p.Op, p.Schemes, p.Faults = WriteImm, []Scheme{DQPLB},
					faults(t, "kill-qp@msg=0")
			})
			run := newRunner(t.Context(), p, bothHere(), observer{})
			defer run.stop()
			if err := run.open(openSoft); err != nil {
				t.Fatal(err)
			}
			c := newCell(run, run.columns[0], 2000)
			if _, err := c.runRound(10, true); err != nil {
				t.Fatal(err)
			}
			if err := c.pair.faults.strike(0); err != nil {
				t.Fatal(err)
			}
			tt.tamper(c)
			err := c.survive(errFailed)
			if !errors.Is(err, ErrVerify) || !strings.Contains(err.Error(), tt.want) ||
				c.result.Recovery != nil {
				t.Errorf("error %v", err)
			}
			if f := c.result.Failure; f.Kept || !strings.Contains(f.Broken, tt.want) {
				t.Errorf("%+v", f)
			}
			_ = run.close()
		})
	}
}

// TestInterruptedWaiting interrupts a run that waits for a link to come back.
func TestInterruptedWaiting(t *testing.T) {
	p := params(func(p *Params) {
		p.Sizes, p.Faults, p.Schemes = []units.Size{2000}, faults(t, "nic-down@msg=10,for=1h"),
			[]Scheme{DQPLB}
	})
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	report, err := Run(ctx, p, openSoft, observer{})
	if !errors.Is(err, ErrInterrupted) || report.OK || !report.Interrupted ||
		time.Since(start) > 10*time.Second {
		t.Errorf("error %v after %v", err, time.Since(start))
	}
}

// TestInterruptedStall interrupts a run that a stalled queue pair holds up:
// it goes on at once, and ends.
func TestInterruptedStall(t *testing.T) {
	p := params(func(p *Params) {
		p.Sizes, p.Faults, p.Schemes = []units.Size{2000}, faults(t, "stall@msg=10,for=1h"), []Scheme{DQPLB}
	})
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	report, err := Run(ctx, p, openSoft, observer{})
	if !errors.Is(err, ErrInterrupted) || !report.Interrupted || len(report.Results) != 1 {
		t.Fatalf("error %v, %+v", err, report)
	}
	if r := &report.Results[0]; r.Failed || len(r.Faults) != 1 || r.Faults[0].Hits != 1 ||
		!strings.Contains(r.Faults[0].What, "cut short") {
		t.Errorf("what was under way did not go on: %v, %+v", r.Err, r.Faults)
	}
}

// TestLatencyFault fails a ping-pong in the middle: what was measured before and after it counts.
func TestLatencyFault(t *testing.T) {
	for _, wait := range []Wait{Adaptive, Events} {
		p := params(func(p *Params) {
			p.Op, p.Mode, p.Wait, p.Faults = Send, Latency, wait, faults(t, "fail-fragment@msg=10")
		})
		report, err := measure(t, p)
		if err != nil {
			t.Fatal(err)
		}
		first := slices.IndexFunc(report.Results, func(r Result) bool { return r.Failure != nil })
		if first < 0 {
			t.Fatal("no failure")
		}
		for _, r := range report.Results {
			if r.Failed || r.Latency == nil || r.Latency.Samples != int64(p.Iterations) {
				t.Errorf("%s %v: failed %v, latency %+v, want %d samples", wait, r.Scheme, r.Failed,
					r.Latency, p.Iterations)
			}
		}
	}
}
