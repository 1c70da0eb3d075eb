package ability

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// What has failed tells nothing about its rail.
func TestAbilityOfFailures(t *testing.T) {
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Microsecond); return now }
	a := NewRails(1, 1<<20, clock).Rail(0)
	for range 8 {
		a.Add(1 << 20)
	}
	a.End(false)
	a.End(true) // the time of a failure may lie in what it took
	for range 6 {
		a.End(false)
	}
	a.Add(100)
	a.Add(1 << 20)
	if a.End(false); a.large != 1 {
		t.Errorf("%d large fragments are left, want 1", a.large)
	}
	a.End(false)
	if a.cost != 0 || a.load != 0 || a.large != 0 || a.sizes.Len() != 0 {
		t.Errorf("%+v", a)
	}
}

// Whatever is added and done, in any order of completion, leaves nothing behind.
func TestAbilityLeavesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Duration(rng.IntN(100_000))); return now }
	a := NewRails(1, 1<<20, clock).Rail(0)
	for range 10_000 {
		if a.sizes.Len() == 0 || rng.IntN(2) == 0 {
			a.Add(uint64(rng.IntN(2 * largeFragment)))
		} else {
			a.End(true)
		}
	}
	for a.sizes.Len() != 0 {
		a.End(true)
	}
	if a.load != 0 || a.large != 0 || a.cost <= 0 {
		t.Errorf("left: %+v", a)
	}
}

// A rate is the bytes of a sample over its time. What each case does with a rail, at which
// microsecond, and what a byte costs then, in nanoseconds; 0 is not known.
func TestAbilityMeasures(t *testing.T) {
	const k = 1 << 10
	type step struct {
		at    int // microseconds
		add   uint64
		times int // how many are added; 0: one is done
	}
	give := func(at int, size uint64, times int) step { return step{at, size, times} }
	done := func(at int) step { return step{at: at} }
	burst := func(at, times int) (steps []step) { return slices.Repeat([]step{done(at)}, times) }
	for _, c := range []struct {
		name  string
		steps [][]step
		cost  float64
	}{
		{"one fragment", [][]step{{give(0, 64*k, 1), done(64)}}, 64000.0 / (64 * k)},
		{"the least that tells", [][]step{{give(0, 16*k, 1), done(16)}}, 16000.0 / (16 * k)},
		{"a byte less", [][]step{{give(0, 16*k-1, 1), done(16)}}, 0},
		{"in no time", [][]step{{give(5, 64*k, 1), done(5)}}, 0},
		{"in no time, with more to come", [][]step{{give(5, 64*k, 9)}, burst(5, 3)}, 0},
		{"short, with more to come", [][]step{{give(0, 64*k, 9), done(20), done(40)}}, 0},
		{"long enough, with more to come", [][]step{{give(0, 64*k, 9), done(20), done(60), done(60)}},
			60000.0 / (3 * 64 * k)},
		{"from when there was work", [][]step{{give(0, 64*k, 1), give(30, 64*k, 1), done(64), done(128)}},
			64000.0 / (64 * k)},
		// The next sample begins with the 17th fragment behind the first one, in the middle of a
		// burst that was complete before: its end tells nothing.
		{"no burst of one poll", [][]step{{give(0, 64*k, 20)}, burst(60, 16), burst(61, 1), burst(62, 3)},
			60000.0 / (64 * k)},
		{"a sample of no time after another", [][]step{{give(0, 64*k, 1), done(64), give(100, 64*k, 16)},
			burst(100, 16), {give(200, 64*k, 1), done(200)}}, 64000.0 / (64 * k)},
		{"a mean of samples", [][]step{{give(0, 64*k, 1), done(64), give(100, 64*k, 16)}, burst(100, 16),
			{give(200, 64*k, 1), done(328)}}, 0.75*64000/(64*k) + 0.25*128000/(64*k)},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(0, 0)
			clock := func() time.Time { return now }
			a := NewRails(1, 1<<20, clock).Rail(0)
			for _, s := range slices.Concat(c.steps...) {
				now = time.Unix(0, int64(s.at)*1000)
				for range s.times {
					a.Add(s.add)
				}
				if s.times == 0 {
					a.End(true)
				}
			}
			if math.Abs(a.cost-c.cost) > 1e-9 {
				t.Errorf("a byte costs %v, want %v", a.cost, c.cost)
			}
		})
	}
}

// A sample that told nothing is followed by a rest as well.
func TestAbilityRestsAfterNothing(t *testing.T) {
	looks := 0
	clock := func() time.Time { looks++; return time.Unix(0, 0) }
	a := NewRails(1, 1<<20, clock).Rail(0)
	for range 17 {
		a.Add(largeFragment)
		a.End(true)
	}
	if looks != 2 {
		t.Errorf("the clock was read %d times for 17 fragments", looks)
	}
}

// If a rail that was idle for long has become faster, a single sample sets its cost. Any other
// sample changes the cost a little at a time, and at most doubles it.
func TestAbilityBelieves(t *testing.T) {
	for _, c := range []struct {
		idle             uint32
		cost, seen, want float64
	}{
		{0, 10, 1, 10 - 9.0/4}, {forget - 1, 10, 1, 10 - 9.0/4}, {forget, 10, 1, 1},
		{0, 10, 18, 12}, {0, 10, 1000, 12.5}, {forget, 10, 1000, 12.5}, {0, 0, 1000, 1000},
	} {
		now := time.Unix(0, 0)
		clock := func() time.Time { return now }
		a := NewRails(1, 1<<20, clock).Rail(0)
		a.cost, a.idle = c.cost, c.idle
		a.Add(1 << 20)
		now = now.Add(time.Duration(c.seen * (1 << 20)))
		a.End(true)
		if math.Abs(a.cost-c.want) > 1e-6 || a.idle != 0 {
			t.Errorf("idle for %d fragments, %v and then %v: a byte costs %v, want %v", c.idle, c.cost,
				c.seen, a.cost, c.want)
		}
	}
}
