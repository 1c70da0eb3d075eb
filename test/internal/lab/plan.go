package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx/test/internal/hunt"
)

// Plan is the common part of every world's plan.
type Plan struct {
	Seed     uint64
	Mood     Mood
	Hosts    []int // how many NICs each has
	Scramble bool  // completions become visible out of order
	Bias     int   // how strongly some queue pairs are preferred, 0 to 3
}

// Mood is how bad a world is.
type Mood uint8

// The moods.
const (
	Calm    Mood = iota // nothing fails; NICs may be slow, and refuse for now
	Faulty              // everything may fail
	Hostile             // the same, and some peers break the rules
)

// String names the mood.
func (m Mood) String() string { return [...]string{"calm", "faulty", "hostile"}[m] }

// Kind is a kind of event: how often it happens, by mood or by a kit's own columns, and its effect
// on an end of a connection.
type Kind[E any] struct {
	Name  string
	Often []int
	Do    func(E)
}

// Event is one event of a world. Its exact effect follows from R and from the state that it finds,
// so events can be left out and the others remain meaningful.
type Event struct {
	Kind int
	End  int // which end of a connection it concerns, modulo their number
	R    uint64
}

// DrawEvents draws events, with the frequencies of a column of the table: at least 20, and up to
// one of the lengths more. Few long lists are needed, because most bugs show soon.
func DrawEvents[E any](rng *rand.Rand, kinds []Kind[E], column int, lengths ...int) []Event {
	list := make([]Event, 20+rng.IntN(lengths[rng.IntN(len(lengths))]))
	weights := make([]int, len(kinds))
	for i, k := range kinds {
		weights[i] = k.Often[column]
	}
	for i := range list {
		list[i] = Event{Kind: DrawWeighted(rng, weights), End: rng.IntN(1 << 20), R: rng.Uint64()}
	}
	return list
}

// DrawWeighted draws an index, each in proportion to its weight.
func DrawWeighted(rng *rand.Rand, weights []int) int {
	total := 0
	for _, n := range weights {
		total += n
	}
	i := 0
	for n := rng.IntN(total); n >= weights[i]; i++ {
		n -= weights[i]
	}
	return i
}

// Schedule is the events of a plan, or the phases of a program; plans embed it.
type Schedule[E any] struct{ Events []E }

func (s *Schedule[E]) length() int { return len(s.Events) }

// keep leaves only the events with these indices, which ascend.
func (s *Schedule[E]) keep(list []int) {
	kept := make([]E, 0, len(list))
	for _, i := range list {
		kept = append(kept, s.Events[i])
	}
	s.Events = kept
}

// schedule is the interface of a plan that embeds [Schedule].
type schedule interface {
	length() int
	keep([]int)
}

// Game returns package hunt's view of the plans that newPlan draws and run plays.
func Game[P schedule](test, dir string, newPlan func(seed uint64) P,
	run func(p P, log func(string)) *hunt.Violation) hunt.Game {
	return hunt.Game{
		Test: test, Dir: dir,
		Events: func(seed uint64) int { return newPlan(seed).length() },
		Play: func(seed uint64, keep []int, log func(string)) *hunt.Violation {
			p := newPlan(seed)
			if keep != nil {
				p.keep(slices.Clone(keep))
			}
			return run(p, log)
		},
	}
}

// PlayEvents plays events one after the other on the ends of a world, with choices that follow from
// each event. look runs after each event. Afterwards choices follow from the plan's seed.
func PlayEvents[E any](t *Testbed, list []Event, kinds []Kind[E], ends *[]E, look func()) {
	for _, ev := range list {
		t.At++
		t.SeedEvent(ev.R)
		k, e := &kinds[ev.Kind], (*ends)[ev.End%len(*ends)]
		t.Logf("%d. %s %v", t.At, k.Name, e)
		k.Do(e)
		look()
	}
	t.SeedEvent(t.Plan.Seed)
}

// Rule is a promise, or another condition that must hold. Kits add their own.
type Rule string

// Rules of every kit.
const (
	Content   Rule = "what was sent is what arrives"
	Isolation Rule = "nothing fails without a cause"
	Leak      Rule = "everything can be closed, and nothing is left"
	Liveness  Rule = "nothing is lost or stuck"
	Ownership Rule = "memory is the library's until its completion is reported, and only until then"
	NICs      Rule = "the NICs themselves are sound"
	Panic     Rule = "no panic"
	Refusal   Rule = "wrong calls are refused with the right error"
)

// Violation returns a broken promise, at the event under way.
func (t *Testbed) Violation(r Rule, detail string) *hunt.Violation {
	return &hunt.Violation{Seed: t.Plan.Seed, Event: t.At, Rule: string(r), Detail: detail}
}

// Broken ends the run.
func (t *Testbed) Broken(r Rule, format string, args ...any) {
	panic(t.Violation(r, fmt.Sprintf(format, args...)))
}

// Must ends the run if err is not nil.
func (t *Testbed) Must(what string, err error) {
	if err != nil {
		t.Broken(Leak, "%s: %v", what, err)
	}
}
