package ability

import (
	"math"
	"slices"
	"testing"
	"time"
)

// stations is a model of NICs: each carries one fragment after the other at its own speed, and a
// message is reported when it and all before it are complete, as by a virtual queue pair.
type stations struct {
	t     *testing.T
	rails *Rails    // nil: they take turns
	turn  int       // whose it is
	now   float64   // nanoseconds
	speed []float64 // bytes a nanosecond, of each rail
	queue [][]float64
	head  []float64 // when the first of the queue will be complete
	given []int     // fragments that each rail was given
	looks int       // at the clock
	// The program does not poll between two times.
	away, back float64
}

const (
	stationFragment = 512 << 10
	stationRoom     = 128 // fragments that a rail holds
)

func newTurns(t *testing.T, speed ...float64) *stations {
	return &stations{t: t, speed: slices.Clone(speed), queue: make([][]float64, len(speed)),
		head: make([]float64, len(speed)), given: make([]int, len(speed))}
}

func newStations(t *testing.T, speed ...float64) *stations {
	s := newTurns(t, speed...)
	s.rails = NewRails(len(speed), stationFragment, func() time.Time {
		s.looks++
		return time.Unix(0, int64(s.now))
	})
	return s
}

func (s *stations) hasRoom(i int) bool { return len(s.queue[i]) < stationRoom }

// pick chooses the rail for the next fragment, as a virtual queue pair does; -1: it waits.
func (s *stations) pick(size uint64) int {
	if s.rails != nil && !s.rails.Alike(size) {
		i := s.rails.Soonest(size)
		if i < 0 || !s.hasRoom(i) {
			return -1
		}
		s.rails.Passed(i)
		return i
	}
	for range s.queue {
		i := s.turn
		if s.turn = (i + 1) % len(s.queue); s.hasRoom(i) {
			return i
		}
	}
	return -1
}

// hand gives the next fragment to a rail, if one can take it.
func (s *stations) hand(size uint64) (ok bool) {
	i := s.pick(size)
	if i < 0 {
		return false
	}
	if s.rails != nil {
		s.rails.Rail(i).Add(size)
	}
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
	if s.rails != nil {
		r := s.rails.Rail(first)
		r.End(true)
		if err := r.Check(len(s.queue[first])); err != nil {
			s.t.Fatal(err)
		}
	}
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
			got := newStations(t, c.speed...).stream(4000, 16, 8)
			turns := newTurns(t, c.speed...).stream(400, 16, 8)
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
	s := newStations(t, 10, 1)
	if got := s.stream(2000, 2, 1); got < 8.5 {
		t.Errorf("%.2f bytes a nanosecond; the fast rail alone carries 10", got)
	}
	if s.given[1] == 0 || s.given[1] > 100 {
		t.Errorf("the slow rail was given %d of 4000 fragments: it is to be tried now and then", s.given[1])
	}
}

// A rail that becomes slow in the middle loses its share, and has it back when it recovers.
func TestAbilityFollowsChanges(t *testing.T) {
	s := newStations(t, 10, 10)
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
			s := newStations(t, 10, 9.7)
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
		s := newStations(t, 10, slow)
		s.stream(100, 16, 8)
		s.stream(40_000, 1, 1)
		before := s.given[1]
		s.stream(1, 128, 1)
		if n := s.given[1] - before; n > 1 && float64(n) > 128*slow/(10+slow)+1 {
			t.Errorf("a rail of %v of 10 is given %d of 128 fragments", slow, n)
		}
	}
}

// A rail that is full and fast is waited for; one that stands still keeps what it has, and the
// others go on.
func TestAbilityBeyondTheQueues(t *testing.T) {
	s := newStations(t, 1000, 1)
	s.stream(50, 8, 4)
	handed := 0
	for s.hand(stationFragment) {
		handed++
	}
	const fast, slow = 0, 1
	if s.hasRoom(fast) || !s.hasRoom(slow) || handed < stationRoom {
		t.Errorf("%d handed out; room on the fast rail: %v, on the slow one: %v", handed, s.hasRoom(fast),
			s.hasRoom(slow))
	}
	for s.complete() != fast {
	}
	if !s.hand(stationFragment) {
		t.Error("the fast rail has room again, and is not given more")
	}
}

// Small fragments tell nothing, and are shared by number and load.
func TestAbilityOfSmallFragments(t *testing.T) {
	s := newStations(t, 10, 1)
	for range 1000 {
		s.hand(64)
		s.complete()
	}
	if a, b := s.rails.Rail(0), s.rails.Rail(1); a.cost != 0 || b.cost != 0 {
		t.Errorf("%v and %v are known", a.cost, b.cost)
	}
	if s.given[0] != s.given[1] {
		t.Errorf("%v small fragments, not in turns", s.given)
	}
}

// A slow rail is tried again and again, not only at the beginning.
func TestAbilityTriesAgain(t *testing.T) {
	s := newStations(t, 10, 1)
	s.stream(1000, 2, 1)
	before := s.given[1]
	s.stream(3000, 2, 1)
	if s.given[1] == before {
		t.Error("the slow rail was not tried again within 6000 fragments")
	}
}

// The clock is read for few fragments, however short they are and however many are outstanding.
func TestAbilitySeldomReadsTheClock(t *testing.T) {
	for _, window := range []int{1, 4, 32} {
		s := newStations(t, 1000, 1000, 1000, 1000)
		s.stream(2000, 4, window)
		if s.looks == 0 || s.looks > 2000*4/7 {
			t.Errorf("%d messages of 4 fragments at a time: the clock was read %d times", window, s.looks)
		}
	}
}

// The clock is read the less often the shorter fragments take, and again more often when they take
// longer.
func TestAbilityLooksAsOftenAsNeeded(t *testing.T) {
	s := newStations(t, 10_000, 10_000)
	s.stream(3000, 16, 8)
	a := s.rails.Rail(0)
	if a.every < 8 {
		t.Errorf("fragments of 52 ns: the clock is read after %d", a.every)
	}
	s.speed[0], s.speed[1] = 0.1, 0.1
	s.stream(100, 16, 8)
	if a.every != 1 {
		t.Errorf("fragments of 5 ms: the clock is read after %d", a.every)
	}
}
