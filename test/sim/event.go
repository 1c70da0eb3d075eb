package sim

import (
	"fmt"
	"math/rand/v2"
)

// Event is one thing that happens to a world. What exactly it does follows from R and from the
// state that it finds, so events can be left out and the others still mean something.
type Event struct {
	Kind EventKind
	End  int // which virtual queue pair it concerns, modulo how many there are
	R    uint64
}

// EventKind says what an event is about.
type EventKind uint8

// The kinds of events.
const (
	Step     EventKind = iota // the fabric moves
	PostSend                  // a batch of sends, perhaps with one that must be refused
	PostRecv                  // a batch of receives
	Burst                     // more sends than any queue or ring holds
	Poll                      // take completions, in one of the ways there are
	Look                      // ask for state, counters, cards
	Slow                      // a fault that must not fail anything: delay, stall, refused for now
	Strike                    // a fault that may
	Heal                      // end a fault
	Reset
	Connect // both ends, when both are in RESET
	Renew   // both ends reset, and connected again; what was closed is made anew
	Drain
	Close
	Invade // a peer that breaks the rules
	Replay // completions of a former life, and invented ones
	kinds
)

var kindNames = [kinds]string{"step", "post send", "post recv", "burst", "poll", "look", "slow", "strike",
	"heal", "reset", "connect", "renew", "drain", "close", "invade", "replay"}

// String names the kind.
func (k EventKind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// weights are how often each kind happens in each mood.
var weights = [...][kinds]int{
	calm: {Step: 400, PostSend: 160, PostRecv: 130, Burst: 3, Poll: 180, Look: 8, Slow: 12, Heal: 12,
		Reset: 5, Connect: 40, Renew: 3, Drain: 3, Close: 1, Replay: 3},
	faulty: {Step: 400, PostSend: 160, PostRecv: 130, Burst: 3, Poll: 180, Look: 8, Slow: 8, Strike: 14,
		Heal: 14, Reset: 10, Connect: 40, Renew: 8, Drain: 5, Close: 3, Replay: 4},
	hostile: {Step: 400, PostSend: 160, PostRecv: 130, Burst: 3, Poll: 180, Look: 8, Slow: 5, Strike: 4,
		Heal: 10, Reset: 10, Connect: 40, Renew: 8, Drain: 3, Close: 2, Invade: 14, Replay: 10},
}

// makeEvents draws what happens. Seldom is it much: most bugs need little.
func makeEvents(rng *rand.Rand, m mood) []Event {
	total := 0
	for _, n := range weights[m] {
		total += n
	}
	list := make([]Event, 20+rng.IntN([]int{40, 150, 400}[rng.IntN(3)]))
	for i := range list {
		n := rng.IntN(total)
		kind := EventKind(0)
		for n >= weights[m][kind] {
			n -= weights[m][kind]
			kind++
		}
		list[i] = Event{Kind: kind, End: rng.IntN(1 << 20), R: rng.Uint64()}
	}
	return list
}
