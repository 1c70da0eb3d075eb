package ibverbx

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// stations is a model of NICs: each carries one fragment after the other at its own speed,
// and a message is reported when it and all
// before it are complete, as by a virtual queue pair.
type stations struct {
	t     *testing.T
	set   railSet
	now   float64   // nanoseconds
	speed []float64 // bytes a nanosecond, of each rail
	queue [][]float64
	head  []float64 // when the first of the queue will be complete
	given []int     // fragments that each rail was given
	looks int       // at the clock
	// The program does not poll between two times.
	away, back float64
}

const stationFragment = 512 << 10

func newStations(t *testing.T, balance Balance, speed ...float64) *stations {
	s := &stations{t: t, speed: slices.Clone(speed), queue: make([][]float64, len(speed)),
		head: make([]float64, len(speed)), given: make([]int, len(speed))}
	s.set.maxFragment = stationFragment
	for i := range speed {
		s.set.data = append(s.set.data, &rail{idBits: uint64(i) << wridRailShift, slots: 128,
			railConn: railConn{limit: 128}})
	}
	s.set.all = s.set.data
	if balance == ByAbility {
		s.set.measure(func() time.Time {
			s.looks++
			return time.Unix(0, int64(s.now))
		})
	}
	s.set.recount()
	return s
}

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

// Rails of different speed carry together nearly what they carry alone, and more than the fastest;
// in turns the slowest decides.
func TestSharingByAbility(t *testing.T) {
	for _, c := range []struct {
		name  string
		speed []float64
		least float64 // of the sum of all
	}{
		{"one a tenth", []float64{10, 1}, 0.95},
		{"one a tenth, first", []float64{1, 10}, 0.95},
		{"one a hundredth", []float64{10, 0.1}, 0.9},
		{"half", []float64{10, 5}, 0.95},
		{"two fast, two slow", []float64{10, 1, 10, 1}, 0.95},
		{"all different", []float64{1, 2, 4, 8}, 0.95},
		{"nearly alike", []float64{10, 9}, 0.9},
		{"alike", []float64{10, 10, 10, 10}, 0.99},
	} {
		t.Run(c.name, func(t *testing.T) {
			sum, fastest := 0.0, 0.0
			for _, v := range c.speed {
				sum, fastest = sum+v, max(fastest, v)
			}
			got := newStations(t, ByAbility, c.speed...).stream(4000, 16, 8)
			turns := newStations(t, RoundRobin, c.speed...).stream(400, 16, 8)
			t.Logf("%.2f of %.2f bytes a nanosecond, %.2f in turns", got, sum, turns)
			if got < c.least*sum || got < 0.99*turns {
				t.Errorf("%.2f bytes a nanosecond of %.2f, in turns %.2f", got, sum, turns)
			}
			if sum > 1.1*fastest && got <= fastest {
				t.Errorf("%.2f bytes a nanosecond; the fastest alone carries %.2f", got, fastest)
			}
		})
	}
}

// A short message is not held up by a slow rail: with one message of two fragments at a time the
// fast rail carries nearly all.
func TestAbilityOfShortMessages(t *testing.T) {
	s := newStations(t, ByAbility, 10, 1)
	if got := s.stream(2000, 2, 1); got < 8.5 {
		t.Errorf("%.2f bytes a nanosecond; the fast rail alone carries 10", got)
	}
	if s.given[1] == 0 || s.given[1] > 100 {
		t.Errorf("the slow rail was given %d of 4000 fragments: it is to be tried now and then", s.given[1])
	}
}

// A rail that becomes slow in the middle loses its share, and has it back when it recovers.
func TestAbilityFollowsChanges(t *testing.T) {
	s := newStations(t, ByAbility, 10, 10)
	share := func() float64 {
		before := slices.Clone(s.given)
		s.stream(300, 16, 8)
		a, b := s.given[0]-before[0], s.given[1]-before[1]
		return float64(b) / float64(a+b)
	}
	if got := share(); math.Abs(got-0.5) > 0.02 {
		t.Errorf("of two equal rails the second carried %.2f", got)
	}
	s.speed[1] = 1
	share() // learned meanwhile
	if got := share(); got > 0.12 {
		t.Errorf("a rail of a tenth of the speed carries %.2f", got)
	}
	s.speed[1] = 10
	share()
	if got := share(); math.Abs(got-0.5) > 0.02 {
		t.Errorf("the recovered rail carries %.2f", got)
	}
}

// A program that does not poll for a while sees all rails stand still, but only the one that is
// being measured is measured so: its share stays.
func TestAbilityOfAProgramThatPauses(t *testing.T) {
	for _, pause := range []float64{1e6, 10e6, 100e6, 10e9} {
		for phase := range 40 {
			s := newStations(t, ByAbility, 10, 9.7)
			s.stream(40+phase, 16, 1)
			s.away = s.now + float64(phase)*7e3
			s.back = s.away + pause
			s.stream(20, 16, 1)
			before, began := slices.Clone(s.given), s.now
			s.stream(500, 16, 1)
			share := float64(s.given[1]-before[1]) / 8000
			took := (s.now - began) / (8000 * stationFragment / 19.7)
			if share < 0.45 || share > 0.55 || took > 1.1 {
				t.Fatalf("after a pause of %v ns in phase %d one of two equal rails carries %.2f, and all "+
					"takes %.2f of what it should", pause, phase, share, took)
			}
		}
	}
}

// A slow rail that was idle for long is tried with one fragment, whatever is sent next.
func TestAbilityTriesWithLittle(t *testing.T) {
	for _, slow := range []float64{0.1, 1} {
		s := newStations(t, ByAbility, 10, slow)
		s.stream(100, 16, 8)
		s.stream(40_000, 1, 1)
		before := s.given[1]
		s.stream(1, 128, 1)
		if n := s.given[1] - before; n > 1 && float64(n) > 128*slow/(10+slow)+1 {
			t.Errorf("a rail of %v of 10 is given %d of 128 fragments", slow, n)
		}
	}
}

// What has failed tells nothing about its rail.
func TestAbilityOfFailures(t *testing.T) {
	now := time.Unix(0, 0)
	clock := func() time.Time { now = now.Add(time.Microsecond); return now }
	a := ability{least: largeFragment}
	for range 8 {
		a.add(1<<20, clock)
	}
	for range 8 {
		a.fail()
	}
	if a.cost != 0 || a.load != 0 || a.large != 0 || a.sizes.Len() != 0 {
		t.Errorf("%+v", a)
	}
}

// A rail that is full and fast is waited for; one that stands still keeps what it has, and the
// others go on.
func TestAbilityBeyondTheQueues(t *testing.T) {
	s := newStations(t, ByAbility, 1000, 1)
	s.stream(50, 8, 4)
	handed := 0
	for s.hand(stationFragment) {
		handed++
	}
	fast, slow := s.set.data[0], s.set.data[1]
	if fast.hasRoom() || !slow.hasRoom() || handed < 128 {
		t.Errorf("%d handed out; room on the fast rail: %v, on the slow one: %v", handed, fast.hasRoom(),
			slow.hasRoom())
	}
	for s.complete() != fast.index() {
	}
	if !s.hand(stationFragment) {
		t.Error("the fast rail has room again, and is not given more")
	}
}

// Small fragments tell nothing, and are shared by number and load.
func TestAbilityOfSmallFragments(t *testing.T) {
	s := newStations(t, ByAbility, 10, 1)
	for range 1000 {
		s.hand(64)
		s.complete()
	}
	if a, b := s.set.data[0].ability, s.set.data[1].ability; a.cost != 0 || b.cost != 0 {
		t.Errorf("%v and %v are known", a.cost, b.cost)
	}
	if s.given[0] != s.given[1] {
		t.Errorf("%v small fragments, not in turns", s.given)
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
				if i != c.want && c.rails[i].load == 0 {
					want++
				}
				if rl.ability.idle != want {
					t.Errorf("rail %d was idle for %d fragments, want %d", i, rl.ability.idle, want)
				}
			}
		})
	}
}

// A rail that was idle for long is believed at once; one that was not, by and by.
func TestAbilityOfARailThatWasIdle(t *testing.T) {
	for idle, want := range map[uint32]float64{0: 10 - 9.0/4, forget - 1: 10 - 9.0/4, forget: 1} {
		now := time.Unix(0, 0)
		clock := func() time.Time { return now }
		a := ability{least: largeFragment, cost: 10, idle: idle}
		a.add(1<<20, clock)
		now = now.Add(1 << 20)
		a.done(clock)
		if math.Abs(a.cost-want) > 1e-9 || a.idle != 0 {
			t.Errorf("idle for %d fragments, a byte costs %v, want %v", idle, a.cost, want)
		}
	}
}

// A slow rail is tried again and again, not only at the beginning.
func TestAbilityTriesAgain(t *testing.T) {
	s := newStations(t, ByAbility, 10, 1)
	s.stream(1000, 2, 1)
	before := s.given[1]
	s.stream(3000, 2, 1)
	if s.given[1] == before {
		t.Error("the slow rail was not tried again within 6000 fragments")
	}
}
