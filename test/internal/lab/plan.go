package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx/test/internal/hunt"
)

// Plan is what every world is made of.
type Plan struct {
	Seed     uint64
	Mood     Mood
	Hosts    []int // how many NICs each has
	Scramble bool  // completions become visible out of order
	Bias     int   // how strongly some queue pairs are preferred, 0 to 3
}

// Mood says how bad a world is.
type Mood uint8

// The moods.
const (
	Calm    Mood = iota // nothing fails; NICs may be slow, and refuse for now
	Faulty              // everything fails that can
	Hostile             // and there are peers that break the rules
)

// String names the mood.
func (m Mood) String() string { return [...]string{"calm", "faulty", "hostile"}[m] }

// Kind is a kind of event: how often it happens, by mood or by what else a kit distinguishes, and
// what it does to an end of a connection.
type Kind[E any] struct {
	Name  string
	Often []int
	Do    func(E)
}

// Event is one thing that happens to a world. What exactly it does follows from R and from the
// state that it finds, so events can be left out and the others still mean something.
type Event struct {
	Kind int
	End  int // which end of a connection it concerns, modulo how many there are
	R    uint64
}

// DrawEvents draws what happens, with the frequencies of a column of the table: at least 20 events,
// and up to one of the lengths more. Few long lists are needed: most bugs need little to show.
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

// DrawWeighted draws an index, each as often as its weight says.
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

// Schedule is what happens in a plan, which embeds it: events, or phases of a program.
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

// schedule is what [Schedule] gives a plan.
type schedule interface {
	length() int
	keep([]int)
}

// Game is the hunt's view of the plans that newPlan draws and run plays.
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

// PlayEvents has events happen one after the other to the ends of a world, with choices that follow
// from each. look runs after each event. Afterwards choices follow from the plan's seed.
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

// Rule is a promise, or something else that must hold. Kits have more of them.
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

// Violation is a broken promise, at the event under way.
func (t *Testbed) Violation(r Rule, detail string) *hunt.Violation {
	return &hunt.Violation{Seed: t.Plan.Seed, Event: t.At, Rule: string(r), Detail: detail}
}

// Broken ends the run.
func (t *Testbed) Broken(r Rule, format string, args ...any) {
	panic(t.Violation(r, fmt.Sprintf(format, args...)))
}

// Must ends the run when something fails that must not.
func (t *Testbed) Must(what string, err error) {
	if err != nil {
		t.Broken(Leak, "%s: %v", what, err)
	}
}
