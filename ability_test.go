package ibverbx

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// hand gives the next fragment to a rail, if one can take it.
func (s *stations) hand(size uint64) (ok bool) {
	var rl *rail
	if s.set.abilities == nil {
		rl = s.set.pick()
	} else {
		rl = s.set.pickAble(size)
	}
	if rl == nil {
		return false
	}
	s.set.takeData(rl)
	if c := s.set.abilities; c != nil {
		rl.ability.add(size, c.clock)
	}
	i := rl.index()
	s.given[i]++
	if s.queue[i] = append(s.queue[i], float64(size)); len(s.queue[i]) == 1 {
		s.head[i] = s.now + float64(size)/s.speed[i]
	}
	return true
}

// complete lets the time pass until a fragment is complete, and says on which rail.
func (s *stations) complete() int {
	first := -1
	for i := range s.queue {
		if len(s.queue[i]) != 0 && (first < 0 || s.head[i] < s.head[first]) {
			first = i
		}
	}
	at := s.head[first]
	if s.queue[first] = s.queue[first][1:]; len(s.queue[first]) != 0 {
		s.head[first] = at + s.queue[first][0]/s.speed[first]
	}
	if s.now = max(s.now, at); s.now >= s.away && s.now < s.back {
		s.now = s.back
	}
	s.set.giveData(s.set.data[first], false, true)
	s.set.check()
	return first
}

// stream sends messages of so many fragments, at most window of them not yet reported, and returns
// how many bytes a nanosecond were carried. Each rail completes its fragments in order, so counting
// is enough to know when a message is complete.
func (s *stations) stream(messages, fragments, window int) float64 {
	type message struct{ left int }
	began, live, next := s.now, []*message{}, 0
	on := make([][]*message, len(s.speed)) // whose fragments wait on each rail
	waiting := 0                           // fragments of the newest message that are not handed out
	for next < messages || len(live) != 0 {
		for {
			if waiting == 0 {
				if next == messages || len(live) == window {
					break
				}
				live, waiting, next = append(live, &message{fragments}), fragments, next+1
			}
			before := slices.Clone(s.given)
			if !s.hand(stationFragment) {
				break
			}
			for i := range on {
				if s.given[i] != before[i] {
					on[i] = append(on[i], live[len(live)-1])
				}
			}
			waiting--
		}
		i := s.complete()
		on[i][0].left--
		on[i] = on[i][1:]
		for len(live) != 0 && live[0].left == 0 {
			live = live[1:]
		}
	}
	return float64(messages) * float64(fragments) * stationFragment / (s.now - began)
}

// What has failed tells nothing about its rail.
func TestAbilityOfFailures(t *testing.T) {
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Microsecond); return now }
	a := ability{least: largeFragment}
	for range 8 {
		a.add(1<<20, clock)
	}
	a.fail()
	a.done(clock) // the time of a failure may lie in what it took
	for range 6 {
		a.fail()
	}
	a.add(100, clock)
	a.add(1<<20, clock)
	if a.fail(); a.large != 1 {
		t.Errorf("%d large fragments are left, want 1", a.large)
	}
	a.fail()
	if a.cost != 0 || a.load != 0 || a.large != 0 || a.sizes.Len() != 0 {
		t.Errorf("%+v", a)
	}
}

// The clock is read for few fragments, however short they are and however many are outstanding.
func TestAbilitySeldomReadsTheClock(t *testing.T) {
	for _, window := range []int{1, 4, 32} {
		s := newStations(t, ByAbility, 1000, 1000, 1000, 1000)
		s.stream(2000, 4, window)
		if s.looks == 0 || s.looks > 2000*4/7 {
			t.Errorf("%d messages of 4 fragments at a time: the clock was read %d times", window, s.looks)
		}
	}
}

// Whatever is added and done, in any order of completion, leaves nothing behind.
func TestAbilityLeavesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(0, 0)
	a := ability{least: largeFragment}
	clock := func() time.Time { now = now.Add(time.Duration(rng.IntN(100_000))); return now }
	for range 10_000 {
		if a.sizes.Len() == 0 || rng.IntN(2) == 0 {
			a.add(uint64(rng.IntN(2*largeFragment)), clock)
		} else {
			a.done(clock)
		}
	}
	for a.sizes.Len() != 0 {
		a.done(clock)
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
			a := ability{least: largeFragment}
			for _, s := range slices.Concat(c.steps...) {
				now = time.Unix(0, int64(s.at)*1000)
				for range s.times {
					a.add(s.add, clock)
				}
				if s.times == 0 {
					a.done(clock)
				}
			}
			if math.Abs(a.cost-c.cost) > 1e-9 {
				t.Errorf("a byte costs %v, want %v", a.cost, c.cost)
			}
		})
	}
}

// The clock is read the less often the shorter fragments take, and again more often when they take
// longer.
func TestAbilityLooksAsOftenAsNeeded(t *testing.T) {
	s := newStations(t, ByAbility, 10_000, 10_000)
	s.stream(3000, 16, 8)
	a := s.set.data[0].ability
	if a.every < 8 {
		t.Errorf("fragments of 52 ns: the clock is read after %d", a.every)
	}
	s.speed[0], s.speed[1] = 0.1, 0.1
	s.stream(100, 16, 8)
	if a.every != 1 {
		t.Errorf("fragments of 5 ms: the clock is read after %d", a.every)
	}
}

// A sample that told nothing is followed by a rest as well.
func TestAbilityRestsAfterNothing(t *testing.T) {
	looks := 0
	clock := func() time.Time { looks++; return time.Unix(0, 0) }
	a := ability{least: largeFragment}
	for range 17 {
		a.add(largeFragment, clock)
		a.done(clock)
	}
	if looks != 2 {
		t.Errorf("the clock was read %d times for 17 fragments", looks)
	}
}

// Which of several rails gets the next fragment, and what the others learn from that.
func TestAbilityPicks(t *testing.T) {
	type rails []ability
	for _, c := range []struct {
		name  string
		rails rails
		size  uint64
		want  int // -1: none
		turns bool
	}{
		{"alike", rails{{cost: 3}, {cost: 4}}, 1 << 20, 0, true},
		{"alike, and slower than a nanosecond a byte", rails{{cost: 5}, {cost: 6}}, 1 << 20, 0, true},
		{"not alike", rails{{cost: 4.01}, {cost: 3}}, 1 << 20, 1, false},
		{"the fast one, though it has something",
			rails{{cost: 1, load: 50_000}, {cost: 10}}, 10_000, 0, false},
		{"the slow one, which has less", rails{{cost: 1, load: 200_000}, {cost: 10}}, 10_000, 1, false},
		{"a message costs something", rails{{cost: 1, load: 3000}, {cost: 2}}, 1000, 0, false},
		{"unknown ones are as fast as the fastest",
			rails{{cost: 2}, {cost: 1, load: 1}, {load: 1 << 20, large: 1}}, 1000, 1, false},
		{"nothing is known of small ones", rails{{}, {}}, 100, 0, true},
		{"nothing is known", rails{{load: 1 << 20, large: 1}, {}}, 1 << 20, 1, false},
		{"all are on trial", rails{{large: 2}, {large: 2}}, 1 << 20, -1, false},
		{"one is on trial", rails{{large: 2}, {cost: 1, load: 1 << 20}}, 1 << 20, 1, false},
		{"one is to be tried once more", rails{{large: 1}, {cost: 1, load: 1 << 20}}, 1 << 20, 0, false},
		{"idle for long", rails{{cost: 1, load: 8 << 20}, {cost: 1.5}, {cost: 20, idle: 40 * forget}},
			1 << 20, 2, false},
		{"as slow as can be", rails{{cost: 1, load: 200 << 20}, {cost: 1e9}}, 1 << 20, 1, false},
		{"idle for as long as counts", rails{{cost: 1}, {cost: 1.5, idle: slowest * forget}},
			1 << 20, 0, false},
		{"idle for very long, not faster than the fastest",
			rails{{cost: 1}, {cost: 20, idle: 4000 * forget, load: 1}}, 1 << 20, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStations(t, ByAbility, make([]float64, len(c.rails))...)
			for i := range c.rails {
				c.rails[i].least = largeFragment
				*s.set.data[i].ability = c.rails[i]
			}
			s.set.compare()
			last := s.set.data[len(c.rails)-1]
			s.set.lastFreed = last
			got := s.set.pickAble(c.size)
			if c.turns {
				if got != last {
					t.Error("the one that was freed last does not go first")
				}
				return
			}
			if s.set.lastFreed != nil {
				t.Error("the one that was freed last is remembered beyond this fragment")
			}
			switch {
			case got == nil && c.want >= 0, got != nil && got.index() != c.want:
				t.Fatalf("%v gets it, want %d", got, c.want)
			case got == nil:
				return
			}
			for i, rl := range s.set.data {
				want := c.rails[i].idle
				if i != c.want && c.rails[i].load == 0 && want < slowest*forget {
					want++
				}
				if rl.ability.idle != want {
					t.Errorf("rail %d was idle for %d fragments, want %d", i, rl.ability.idle, want)
				}
			}
		})
	}
}

// A rail that was idle for long is believed at once if it has become faster. Whatever else a sample
// says is believed by and by, and that it has become slower not beyond twice.
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
		a := ability{least: largeFragment, cost: c.cost, idle: c.idle}
		a.add(1<<20, clock)
		now = now.Add(time.Duration(c.seen * (1 << 20)))
		a.done(clock)
		if math.Abs(a.cost-c.want) > 1e-6 || a.idle != 0 {
			t.Errorf("idle for %d fragments, %v and then %v: a byte costs %v, want %v", c.idle, c.cost,
				c.seen, a.cost, c.want)
		}
	}
}
