package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/internal/units"
)

// What was added is spread over the time since the last reading. The last interval has the rest.
func TestSpreadOverIntervals(t *testing.T) {
	for name, tt := range map[string]struct {
		at   []int // milliseconds
		mb   []uint64
		want []float64 // GB/s
	}{
		"one at a time":      {[]int{5, 15, 25}, []uint64{10, 20, 30}, []float64{1.5, 1}},
		"over a boundary":    {[]int{8, 12, 20}, []uint64{8, 12, 20}, []float64{1, 1}},
		"over several":       {[]int{10, 40}, []uint64{10, 70}, []float64{1, 2, 2, 2}},
		"a standstill":       {[]int{10, 20, 30, 40}, []uint64{10, 10, 10, 20}, []float64{1, 0, 0, 1}},
		"less than one":      {[]int{4}, []uint64{4}, []float64{1}},
		"a part of the last": {[]int{10, 20, 29}, []uint64{10, 20, 29}, []float64{1, 1}},
	} {
		watch := &stopwatch{}
		r := &recorder{watch: watch, interval: 10 * time.Millisecond}
		for i, ms := range tt.at {
			watch.elapsed = time.Duration(ms) * time.Millisecond
			r.note(tally{bytes: tt.mb[i] * 1e6})
		}
		line := r.timeline()
		if !slices.EqualFunc(line.Total, tt.want, func(a, b float64) bool { return math.Abs(a-b) < 0.1 }) {
			t.Errorf("%s: %v, want %v", name, line.Total, tt.want)
		}
		if end := intervalOf(line, line.Length); end != len(tt.want)-1 || intervalOf(line, 0) != 0 {
			t.Errorf("%s: it ends in interval %d of %d", name, end, len(tt.want))
		}
	}
}

// A cell that takes many times as long as its warm-up let expect has no more intervals than others.
func TestIntervalsAreBounded(t *testing.T) {
	watch := &stopwatch{}
	r := &recorder{watch: watch, interval: time.Millisecond}
	for _, at := range []time.Duration{mostIntervals - 1, mostIntervals + 9, 3 * mostIntervals} {
		watch.elapsed = at * time.Millisecond
		r.note(tally{bytes: uint64(at) * 1e6})
	}
	line := r.timeline()
	last := len(line.Total) - 1
	if last != mostIntervals-1 || len(r.total) > mostIntervals || math.Abs(line.Total[last]-1) > 0.01 ||
		line.Took(last) != (2*mostIntervals+1)*time.Millisecond || intervalOf(line, line.Length) != last {
		t.Errorf("%d intervals, the last one %v of %v GB/s", last+1, line.Took(last), line.Total[last])
	}
}

// What a rail completes while it is down is not its work, and no byte counts twice.
func TestRailThatIsDown(t *testing.T) {
	watch := &stopwatch{}
	r := &recorder{watch: watch, interval: time.Millisecond, rails: make([][]float64, 1),
		last: tally{rails: []railTally{{}}}}
	for _, rail := range []railTally{{bytes: 5e6}, {bytes: 4e6}, {bytes: 6e6}, {bytes: 9e6, down: true},
		{bytes: 9e6}, {bytes: 10e6}} {
		watch.elapsed += time.Millisecond
		r.note(tally{rails: []railTally{rail}})
	}
	if got, want := r.timeline().Rails[0].Total, []float64{5, 0, 1, 0, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("%v GB/s, want %v", got, want)
	}
}

// The watch stands between the rounds, and a fault that lasts for a while with it.
func TestFaultsLastInTheTimeOfTheColumn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &pair{}
		c.faults = newFaultPlan(c, nil)
		state := &faultState{struck: &struck{undo: func() {}}, fault: Fault{For: 100 * time.Millisecond}}
		c.faults.faults = append(c.faults.faults, state)
		for range 3 {
			c.watch.start()
			time.Sleep(30 * time.Millisecond)
			if err := c.faults.look(0, nil); err != nil {
				t.Fatal(err)
			}
			c.watch.stop()
			time.Sleep(time.Second)
		}
		if now := c.watch.now(); now != 90*time.Millisecond || state.over {
			t.Errorf("at %v, over: %v", now, state.over)
		}
		c.watch.start()
		time.Sleep(10 * time.Millisecond)
		if err := c.faults.look(0, nil); err != nil || !state.over {
			t.Errorf("%v, over: %v", err, state.over)
		}
	})
}

// Without a fault a line has all bytes of the cell, in total and on the rails.
func TestTimelineHasEveryByte(t *testing.T) {
	for _, how := range []string{"one direction", "both directions", "reads"} {
		p := params(func(p *Params) {
			p.Interval, p.Bidirectional, p.Sizes = Seconds(2*time.Millisecond), how == "both directions",
				[]units.Size{1 << 16}
			p.Iterations, p.Memory = 400, 1<<20
			if how == "reads" {
				p.Op = Read
			}
		})
		report, err := measure(t, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range report.Results {
			r := &report.Results[i]
			line := r.Timeline
			if line == nil || len(line.Total) == 0 || len(line.Marks) != 0 {
				t.Fatalf("%s, %s: %+v", how, r.Scheme, line)
			}
			lines := [][]float64{line.Total}
			if wanted := p.rails(); r.Scheme == Single {
				if len(line.Rails) != 0 {
					t.Errorf("%s: rails of a single queue pair: %+v", how, line.Rails)
				}
			} else if len(line.Rails) != wanted {
				t.Errorf("%s, %s: %d rails, want %d", how, r.Scheme, len(line.Rails), wanted)
			} else {
				lines = append(lines, make([]float64, len(line.Total)))
				for k := range line.Rails {
					for at, v := range line.Rails[k].Total {
						lines[1][at] += v
					}
				}
			}
			for k, of := range lines {
				bytes := 0.0
				for at, v := range of {
					bytes += v * 1e9 * line.Took(at).Seconds()
				}
				if math.Abs(bytes-float64(r.Bytes)) > 1 {
					t.Errorf("%s, %s: line %d has %.0f bytes of %d", how, r.Scheme, k, bytes, r.Bytes)
				}
			}
		}
	}
}

// The interval follows from the speed and the length of the cell.
func TestInterval(t *testing.T) {
	for _, tt := range []struct {
		p    Params
		pace float64
		want time.Duration
	}{
		{Params{Interval: AutoInterval, Duration: Seconds(time.Second)}, 1e6, autoInterval},
		{Params{Interval: AutoInterval, Duration: Seconds(time.Second)}, 100, 80 * time.Millisecond},
		{Params{Interval: AutoInterval, Duration: Seconds(time.Minute)}, 1e6, 150 * time.Millisecond},
		{Params{Interval: AutoInterval, Iterations: 60e6}, 1e6, 150 * time.Millisecond},
		{Params{Interval: LeastInterval, Duration: Seconds(time.Second)}, 1, time.Millisecond},
		{Params{Interval: LeastInterval, Duration: Seconds(time.Minute)}, 1e6, 6 * time.Millisecond},
	} {
		c := cell{runner: &runner{p: &tt.p}, pace: tt.pace}
		if got := c.interval(); got != tt.want {
			t.Errorf("%+v at %v messages a second: %v, want %v", tt.p, tt.pace, got, tt.want)
		}
	}
}

// Both ends of the link are slow, until the fault is taken back.
func TestSlowIsTakenBack(t *testing.T) {
	p := params(func(p *Params) { p.Speeds = []units.Rate{1 << 30, 1 << 20} })
	run := newRunner(t.Context(), p, bothHere(), observer{})
	column, err := newPair(p, openSoft, Spray, run.mem)
	if err != nil {
		t.Fatal(err)
	}
	column.faults = newFaultPlan(column, faults(t, "slow@nic=1,by=4,msg=7"))
	speeds := func() (list []uint64) {
		for _, devices := range column.devices {
			for _, d := range devices {
				port, err := d.QueryPort(1)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, port.Speed/8)
			}
		}
		return list
	}
	if err := column.faults.look(6, nil); err != nil {
		t.Error(err)
	}
	before := speeds()
	if err := column.faults.look(7, nil); err != nil {
		t.Error(err)
	}
	if got, want := speeds(), []uint64{1 << 30, 1 << 18, 1 << 30, 1 << 18}; !slices.Equal(got, want) {
		t.Errorf("%d B/s, want %d", got, want)
	}
	column.faults.end()
	if got := speeds(); !slices.Equal(got, before) {
		t.Errorf("%d B/s in the end, at first %d", got, before)
	}
	column.faults = newFaultPlan(column, faults(t, "slow@nic=1,at=1ns"))
	for i, run := range []func(){func() {}, column.watch.start} {
		if run(); i > 0 {
			time.Sleep(time.Microsecond)
		}
		err := column.faults.look(1000, nil)
		if struck := !slices.Equal(speeds(), before); err != nil || struck != (i > 0) {
			t.Errorf("watch started: %v; %v, has struck: %v", i > 0, err, struck)
		}
	}
	if err := column.close(); err != nil {
		t.Error(err)
	}
}

// A NIC without a speed gets slower than what it carried; what no column uses is left alone.
func TestSlowOfUnlimited(t *testing.T) {
	p := params(func(p *Params) {
		p.Faults, p.Sizes = faults(t, "slow@nic=1,by=4,msg=10,for=5ms"), []units.Size{1 << 16}
		p.Memory, p.Interval = 1<<20, AutoInterval
		p.Schemes = []Scheme{Single, Spray}
	})
	report, err := measure(t, p)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		unused := r.Scheme == Single
		if len(r.Faults) != 1 || r.Faults[0].Struck == unused {
			t.Errorf("%s: %+v", r.Scheme, r.Faults)
		}
		if unused != (len(r.Timeline.Marks) == 0) {
			t.Errorf("%s: marks %+v", r.Scheme, r.Timeline.Marks)
		}
	}
}

// A fault strikes at its time, however messages are sent; one whose time has not come has not.
func TestFaultsByTime(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		for _, wait := range []Wait{Adaptive, Events} {
			p := params(func(p *Params) {
				p.Op, p.Mode, p.Wait, p.Sizes = Send, mode, wait, []units.Size{64}
				p.Iterations, p.Duration, p.Schemes = 0, Seconds(60*time.Millisecond), []Scheme{DQPLB}
				p.Faults = faults(t, "slow@at=1h", "slow@at=4ms,for=1ms", "kill-qp@at=2ms")
				p.Failover = true
			})
			report, err := measure(t, p)
			if err == nil || report.OK ||
				!strings.HasPrefix(err.Error(), "--fault slow@at=1h has not struck") {
				t.Fatal(err)
			}
			got := report.Results[0].Faults
			if len(got) != 3 || !got[0].Struck || got[0].Fault.Kind != "kill-qp" || !got[1].Struck ||
				got[2].Struck ||
				got[2].What != "has not struck: the column has not been measured for 1h0m0s" {
				t.Errorf("%s, %s: %+v", mode, wait, got)
			}
		}
	}
}

// intervalOf is the interval of a line in which something happened.
func intervalOf(t *Timeline, at Seconds) int { return min(int(at/t.Interval), len(t.Total)-1) }
