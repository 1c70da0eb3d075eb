package ability

import "testing"

// Which of several rails gets the next fragment, and what the others learn from that.
func TestAbilityPicks(t *testing.T) {
	type rails []Rail
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
			s := newStations(t, make([]float64, len(c.rails))...).rails
			for i, r := range c.rails {
				r.rails, r.least = s, s.least
				*s.Rail(i) = r
			}
			s.compare()
			if turns := s.Alike(c.size); turns != c.turns {
				t.Fatalf("they take turns: %v", turns)
			}
			if c.turns {
				return
			}
			got := s.Soonest(c.size)
			if got != c.want {
				t.Fatalf("%v gets it, want %d", got, c.want)
			}
			if got < 0 {
				return
			}
			s.Passed(got)
			for i, r := range c.rails {
				want := r.idle
				if i != got && r.load == 0 && want < slowest*forget {
					want++
				}
				if got := s.Rail(i).idle; got != want {
					t.Errorf("rail %d was idle for %d fragments, want %d", i, got, want)
				}
			}
		})
	}
}

// A rail that is out of service gets nothing, and its rate does not count among the others'. When
// it returns, and when a connection begins, nothing is known of it.
func TestRailsOutOfService(t *testing.T) {
	s := newStations(t, 1, 1, 1).rails
	for i, cost := range []float64{1, 10, 12} {
		s.Rail(i).cost = cost
	}
	s.Rail(0).Add(1 << 20)
	s.Rail(0).TakeOut()
	if err := s.Rail(0).Check(0); err != nil {
		t.Errorf("taken out: %v", err)
	}
	if !s.Alike(1<<20) || s.fastest != 10 {
		t.Errorf("without the fast rail the others are alike: %v, a byte costs %v", s.alike, s.fastest)
	}
	s.Rail(2).cost = 20
	s.compare()
	if got := s.Soonest(1 << 20); got != 1 {
		t.Errorf("rail %d gets the next fragment, want 1", got)
	}
	if s.Rail(0).Return(); s.Rail(0).Rate() != 0 || s.Alike(1<<20) || s.Soonest(1<<20) != 0 {
		t.Errorf("a rail that is back is not tried: %+v", s.Rail(0))
	}
	if s.Rail(1).Rate() != 1e8 {
		t.Errorf("%d bytes a second, want %d", s.Rail(1).Rate(), int(1e8))
	}
	s.Rail(1).TakeOut()
	s.Rail(2).Add(1 << 20)
	s.Abandon()
	for i := range 3 {
		if err := s.Rail(i).Check(0); err != nil {
			t.Errorf("abandoned: rail %d: %v", i, err)
		}
	}
	if s.Restart(); s.known || s.Rail(1).out {
		t.Errorf("a new connection begins with %+v", s)
	}
}
