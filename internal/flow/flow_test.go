package flow

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestEveryPlaceIsSomewhere plays two ends with messages and grants on the way between them. After
// each step the room of the sender, the messages on their way, those that the receiver holds, the
// places that are due and the grants on their way add up to all places; and a sender without room
// waits only for messages that the receiver holds, or for something that is on its way.
func TestEveryPlaceIsSomewhere(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(20)
		a, b := New(0), New(n)
		a.Connect(n)
		// messages on their way to b; held by it; and those whose place goes back with a notice
		coming, held, notices := 0, 0, 0
		var grants []uint16 // on their way to a
		for step := range 2000 {
			switch rng.IntN(5) {
			case 0:
				if a.Room() != 0 {
					a.Sent(1)
					coming++
				}
			case 1:
				if coming != 0 {
					coming--
					if !b.Arrive() {
						t.Fatalf("seed %d, step %d: no place for a message that had one: %+v", seed, step, b)
					}
					held++
				}
			case 2:
				if held != 0 {
					if held--; rng.IntN(2) == 0 {
						notices++
					} else {
						b.Free(1)
					}
				}
			case 3:
				if extra := min(notices, 1); extra != 0 || b.MustGrant() {
					grant := b.Grant(extra)
					b.Free(extra)
					b.Granted(grant)
					notices -= extra
					grants = append(grants, grant)
				}
			case 4:
				if len(grants) != 0 {
					if !a.Regain(grants[0]) {
						t.Fatalf("seed %d, step %d: a grant of %d refused: %+v", seed, step, grants[0], a)
					}
					grants = grants[1:]
				}
			}
			sum := a.Room() + coming + held + notices + b.Due()
			for _, grant := range grants {
				sum += int(grant)
			}
			if sum != n || a.Check() != nil || b.Check() != nil {
				t.Fatalf("seed %d, step %d: %d places of %d: %+v, %+v: %v, %v", seed, step, sum, n, a, b,
					a.Check(), b.Check())
			}
			if a.Room() == 0 && coming+held+notices+len(grants) == 0 && !b.MustGrant() {
				t.Fatalf("seed %d, step %d: the sender waits for ever: %+v, %+v", seed, step, a, b)
			}
		}
	}
}

// TestMustGrant fixes when a grant goes out by itself.
func TestMustGrant(t *testing.T) {
	for _, test := range []struct {
		name              string
		places, open, due int
		want              bool
	}{
		{"nothing due, the peer has all places", 8, 8, 0, false},
		{"nothing due, the peer has none left", 8, 0, 0, false},
		{"one due", 8, 7, 1, false},
		{"one due, the peer has none left", 8, 0, 1, true},
		{"less than half due", 8, 3, 3, false},
		{"half due", 8, 3, 4, true},
		{"half of an odd number due", 7, 2, 3, false},
		{"more than half of an odd number due", 7, 2, 4, true},
		{"the only place due", 1, 0, 1, true},
	} {
		l := Ledger{places: test.places, open: test.open, due: test.due}
		if got := l.MustGrant(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestViolations shows that a peer that sends without a place, or grants places that it does not
// have, is found out, and that the account stays as it was.
func TestViolations(t *testing.T) {
	l := New(1)
	l.Connect(2)
	if !l.Arrive() || l.Arrive() || l.open != 0 {
		t.Errorf("two messages for one place: %+v", l)
	}
	l.Sent(1)
	if l.Regain(2) || l.Room() != 1 || !l.Regain(1) || l.Regain(math.MaxUint16) {
		t.Errorf("more places granted than the peer has: %+v", l)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
}

// TestGrantHoldsTwoBytes grants more places than a grant has bits for in two steps.
func TestGrantHoldsTwoBytes(t *testing.T) {
	const places = math.MaxUint16 + 1
	l := New(places)
	for range places {
		l.Arrive()
	}
	l.Free(places - 1)
	first := l.Grant(1)
	l.Free(1)
	l.Granted(first)
	if first != math.MaxUint16 || l.Grant(0) != 1 || l.Check() != nil {
		t.Errorf("%d, then %d: %+v: %v", first, l.Grant(0), l, l.Check())
	}
}

// TestCheck finds each way in which the invariant can be broken.
func TestCheck(t *testing.T) {
	for _, l := range []Ledger{
		{room: -1, most: 1}, {room: 2, most: 1}, {open: -1, places: 1}, {due: -1, places: 1},
		{open: 2, due: 2, places: 3},
	} {
		if l.Check() == nil {
			t.Errorf("%+v passes", l)
		}
	}
}
