package bench

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/cmd/ibverbx/internal/units"
)

// What was added is spread over the time since the last change, but over an interval at most.
func TestCurve(t *testing.T) {
	const interval = 10 * time.Millisecond
	for name, tt := range map[string]struct {
		at    []int // milliseconds
		count []uint64
		want  []float64
	}{
		"one at a time":       {[]int{5, 15, 25}, []uint64{10, 20, 30}, []float64{15, 10, 5}},
		"over a boundary":     {[]int{8, 12}, []uint64{8, 12}, []float64{10, 2}},
		"after a standstill":  {[]int{10, 50}, []uint64{10, 50}, []float64{10, 0, 0, 0, 40}},
		"in the middle of it": {[]int{10, 45}, []uint64{10, 50}, []float64{10, 0, 0, 20, 20}},
		"a counter that falls": {[]int{10, 20, 30}, []uint64{10, 5, 20},
			[]float64{10, 0, 10}},
	} {
		var c curve
		for i, ms := range tt.at {
			c.move(time.Duration(ms)*time.Millisecond, interval, tt.count[i])
		}
		for i := range max(len(tt.want), len(c.bytes)) {
			got, want := 0.0, 0.0
			if i < len(c.bytes) {
				got = c.bytes[i]
			}
			if i < len(tt.want) {
				want = tt.want[i]
			}
			if math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: %v, want %v", name, c.bytes, tt.want)
				break
			}
		}
	}
	c := curve{bytes: []float64{1, 2, 3, 4, 5}}
	if c.halve(); !slices.Equal(c.bytes, []float64{3, 7, 5}) {
		t.Errorf("halved: %v", c.bytes)
	}
}

// The last interval is longer or shorter than the others, and never so short that its bandwidth
// says nothing.
func TestLastInterval(t *testing.T) {
	for length, intervals := range map[int]int{1: 1, 14: 1, 15: 2, 20: 2, 24: 2, 26: 3} {
		r := &recorder{watch: &stopwatch{elapsed: time.Duration(length) * time.Millisecond},
			interval: 10 * time.Millisecond}
		for ms := range length { // 1 GB/s all the time
			r.total.move(time.Duration(ms+1)*time.Millisecond, r.interval, uint64(ms+1)*1e6)
		}
		line := r.timeline()
		if len(line.Total) != intervals || slices.ContainsFunc(line.Total,
			func(v float64) bool { return math.Abs(v-1) > 1e-9 }) {
			t.Errorf("%d ms: %v, want %d intervals of 1 GB/s", length, line.Total, intervals)
		}
		if end := line.At(line.Length); end != intervals-1 || line.At(0) != 0 {
			t.Errorf("%d ms: it ends in interval %d of %d", length, end, intervals)
		}
	}
}

// What a line shows of a fault: the level before it, how deep and how long the dip was, what was
// left.
func TestDips(t *testing.T) {
	repeat := func(n int, v float64) []float64 { return slices.Repeat([]float64{v}, n) }
	const ms = Seconds(time.Millisecond)
	struck := func(at Seconds) Mark { return Mark{at, FaultStruck, "f"} }
	for name, tt := range map[string]struct {
		total []float64
		marks []Mark
		want  []Dip
	}{
		"there and back": {
			slices.Concat(repeat(10, 2), []float64{1, 0.5, 1.9, 0.4}, repeat(10, 2)),
			[]Mark{struck(105 * ms)},
			[]Dip{{"f", 105 * ms, 2, 0.4, 130 * ms, 40 * ms, true, 2, 35 * ms}},
		},
		"half of it is lost": {
			slices.Concat(repeat(10, 2), []float64{0.1, 0.2}, repeat(10, 1)), []Mark{struck(100 * ms)},
			[]Dip{{"f", 100 * ms, 2, 0.1, 100 * ms, 120 * ms, false, 1, 20 * ms}},
		},
		"no harm": {repeat(10, 2), []Mark{struck(50 * ms)},
			[]Dip{{"f", 50 * ms, 2, 2, 50 * ms, 0, true, 2, 0}}},
		"at once": {repeat(10, 2), []Mark{struck(0)}, []Dip{{"f", 0, 0, 2, 0, 0, true, 2, 0}}},
		"two": {
			slices.Concat(repeat(5, 2), []float64{1}, repeat(4, 2), []float64{0.5}, repeat(9, 2)),
			[]Mark{struck(50 * ms), {60 * ms, FaultEnded, "f"}, struck(100 * ms)},
			[]Dip{{"f", 50 * ms, 2, 1, 50 * ms, 10 * ms, true, 2, 10 * ms},
				{"f", 100 * ms, 2, 0.5, 100 * ms, 10 * ms, true, 2, 10 * ms}},
		},
		"in the last interval, which is too short": {repeat(3, 2), []Mark{struck(25 * ms)}, nil},
	} {
		line := &Timeline{Interval: 10 * ms, Length: Seconds(len(tt.total)) * 10 * ms, Total: tt.total,
			Marks: tt.marks}
		if tt.want == nil {
			line.Length -= 3 * ms
		}
		if line.findDips(); !slices.Equal(line.Dips, tt.want) {
			t.Errorf("%s:\n%+v, want\n%+v", name, line.Dips, tt.want)
		}
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
			if line == nil || len(line.Total) == 0 || len(line.Marks) != 0 || len(line.Dips) != 0 {
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

// A line that grows has fewer intervals, which are longer.
func TestTimelineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRunner(t.Context(), params(), bothHere(), observer{})
		column, err := newPair(run.p, openSoft, DQPLB, run.mem)
		if err != nil {
			t.Fatal(err)
		}
		run.p.Interval = AutoInterval
		c := newCell(run, column, 64)
		c.pace = 100 // messages a second
		c.recorder = newRecorder(c)
		if d := c.recorder.interval; d != 40*time.Millisecond {
			t.Errorf("%d messages take %v, the interval is %v", autoMessages, 40*time.Millisecond, d)
		}
		column.watch.start()
		for range 3 * autoIntervals {
			time.Sleep(50 * time.Millisecond)
			if err := c.look(0); err != nil {
				t.Fatal(err)
			}
		}
		c.read()
		column.watch.stop()
		line := c.recorder.timeline()
		if n := len(line.Total); line.Interval != Seconds(160*time.Millisecond) || n > autoIntervals ||
			line.Length != 3*autoIntervals*Seconds(50*time.Millisecond) {
			t.Errorf("%d intervals of %v, %v in all", n, line.Interval, line.Length)
		}
		if err := column.close(); err != nil {
			t.Error(err)
		}
	})
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
		if len(r.Faults) != 1 || !r.Faults[0].Struck {
			t.Errorf("%s: %+v", r.Scheme, r.Faults)
		}
		if idle := r.Scheme == Single; idle != (len(r.Timeline.Marks) == 0) {
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
			if err != nil {
				t.Fatal(err)
			}
			got := report.Results[0].Faults
			if len(got) != 3 || !got[0].Struck || got[0].Fault.Kind != "kill-qp" || !got[1].Struck ||
				got[2].Struck ||
				got[2].What != "has not struck: the column was not measured for 1h0m0s" {
				t.Errorf("%s, %s: %+v", mode, wait, got)
			}
		}
	}
}
