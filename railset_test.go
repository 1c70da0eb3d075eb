package ibverbx

import (
	"math/rand/v2"
	"testing"
	"time"
)

// newTestRailSet is three data rails with unlike queues, and a notify rail.
func newTestRailSet(t *testing.T) *railSet {
	r := newRecorded(t, 1, 3, Config{Scheme: Spray, MaxMsgCntPerQP: 8})
	s := &r.send.rails
	for i, rl := range s.data {
		rl.slots, rl.limit = 3+2*i, 3+2*i
	}
	s.recount()
	return s
}

// railSetModel counts what a railSet must say: the slots in use on each rail, and which data rail
// comes next.
type railSetModel struct {
	limit, inUse [4]int // of the data rails and the notify rail
	next, freed  int    // freed is -1 for none
}

func (m *railSetModel) free() (n int) {
	for i := range 3 {
		n += m.limit[i] - m.inUse[i]
	}
	return n
}

// pick is the index of the data rail for the next fragment; -1 for none.
func (m *railSetModel) pick() int {
	if m.free() == 0 {
		return -1
	}
	if i := m.freed; i >= 0 {
		m.freed = -1
		if m.inUse[i] < m.limit[i] {
			return i
		}
	}
	for {
		i := m.next
		m.next = (m.next + 1) % 3
		if m.inUse[i] < m.limit[i] {
			return i
		}
	}
}

// At random, every legal move leaves the set in the state of the model, and the invariant intact.
func TestRailSetFollowsItsModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		s := newTestRailSet(t)
		m := railSetModel{freed: -1}
		for i, rl := range s.all {
			m.limit[i] = rl.limit
		}
		for step := range 2000 {
			i, op := rng.IntN(4), rng.IntN(100)
			switch {
			case op < 40: // a fragment
				got, want := s.pick(), m.pick()
				if (got == nil) != (want < 0) || got != nil && got.index() != want {
					t.Fatalf("seed %d step %d: picked %v, want %d", seed, step, got, want)
				}
				if got != nil {
					s.takeData(got)
					m.inUse[want]++
				}
			case op < 50: // a final message on any rail
				if rl := s.all[i]; rl.hasRoom() {
					s.take(rl)
					m.inUse[i]++
				}
			case op < 98: // a completion
				if m.inUse[i] == 0 {
					continue
				}
				waiting := rng.IntN(2) == 0
				s.give(s.all[i], waiting)
				m.inUse[i]--
				if waiting && i < 3 {
					m.freed = i
				}
			case op < 99: // a connection ends, the next one begins with a peer of few credits
				s.abandon()
				s.restart()
				credits := 1 + rng.IntN(8)
				s.limitTo(credits)
				m = railSetModel{freed: -1}
				for j, rl := range s.all {
					m.limit[j] = rl.slots
					if j < 3 {
						m.limit[j] = min(rl.slots, credits)
					}
				}
			default: // and the next one with one of many
				s.abandon()
				s.restart()
				m = railSetModel{freed: -1}
				for j, rl := range s.all {
					m.limit[j] = rl.slots
				}
			}
			s.check()
			if s.free != m.free() {
				t.Fatalf("seed %d step %d: %d slots are free, want %d", seed, step, s.free, m.free())
			}
			for i, rl := range s.all {
				if rl.inUse != m.inUse[i] || rl.limit != m.limit[i] {
					t.Fatalf("seed %d step %d: rail %d has %d of %d slots in use, want %d of %d", seed, step,
						i, rl.inUse, rl.limit, m.inUse[i], m.limit[i])
				}
			}
		}
	}
}

// A new connection draws new packet sequence numbers and forgets what the last one has done.
func TestRailSetRestart(t *testing.T) {
	s := newTestRailSet(t)
	var before []uint32
	for _, rl := range s.all {
		before = append(before, rl.psn)
		rl.dirty, rl.recvsRefused, rl.peerDev = true, true, 9
	}
	s.peerDevs, s.nextRail, s.lastFreed = 0, 2, s.data[1]
	s.restart()
	same := 0
	for i, rl := range s.all {
		if rl.dirty || rl.recvsRefused || rl.peerDev != rl.device || rl.limit != rl.slots {
			t.Errorf("rail %d: %+v", i, rl.railConn)
		}
		if rl.psn == before[i] {
			same++
		}
	}
	if same == len(s.all) || s.peerDevs != s.localDevs || s.nextRail != 0 || s.lastFreed != nil {
		t.Errorf("%d packet sequence numbers stay, %+v", same, s)
	}
}

func TestRailSetWidth(t *testing.T) {
	s := newTestRailSet(t)
	for _, c := range []struct {
		widths [3]int
		least  int
		same   bool
	}{
		{[3]int{4, 4, 4}, 4, true}, {[3]int{4, 4, 2}, 2, false}, {[3]int{1, 4, 4}, 1, false},
	} {
		for i, w := range c.widths {
			s.data[i].maxSGE = w
		}
		if least, same := s.width(); least != c.least || same != c.same {
			t.Errorf("%v: %d, %v", c.widths, least, same)
		}
	}
}

// By ability a full rail is not passed over for a slower one: the fragment waits. Rails that are
// alike take turns as in round robin, the one that was freed last first.
func TestPickAble(t *testing.T) {
	s := newTestRailSet(t)
	now := time.Unix(0, 0)
	s.measure(func() time.Time { return now })
	if s.lastFreed = s.data[2]; s.pickAble(1) != s.data[2] {
		t.Error("nothing is known: the rail that was freed last does not go first")
	}
	took := []time.Duration{time.Millisecond, 9 * time.Millisecond, 9 * time.Millisecond}
	for i, rl := range s.data {
		s.takeData(rl)
		rl.ability.Add(1 << 20)
		now = now.Add(took[i])
		s.giveData(rl, false, true)
	}
	s.lastFreed = s.data[2]
	for range s.data[0].limit {
		rl := s.pickAble(100)
		if rl != s.data[0] {
			t.Fatalf("%v gets the fragment, want the fast rail", rl)
		}
		s.takeData(rl)
		rl.ability.Add(100)
	}
	if s.lastFreed != nil {
		t.Error("the one that was freed last is remembered beyond this fragment")
	}
	if rl := s.pickAble(100); rl != nil {
		t.Errorf("rail %d gets the fragment that waits for the fast one", rl.index())
	}
	s.check()
}
