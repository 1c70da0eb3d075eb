package sim

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/test/internal/hunt"
)

// mutation is a deliberate bug in package ibverbx: text that stands there once, and what to put in its place.
type mutation struct {
	name    string
	file    string
	changes []change
}

type change struct{ old, new string }

func planted(m mutation) hunt.Mutation {
	p := hunt.Mutation{Name: m.name, File: m.file}
	for _, c := range m.changes {
		p.Changes = append(p.Changes, hunt.Change{Old: c.old, New: c.new})
	}
	return p
}

// huntSeeds is how many worlds a mutation may survive.
const huntSeeds = 8000

// TestMutations plants one bug at a time in a copy of the package, and demands that the simulation finds it.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulation once for each bug")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	list := make([]hunt.Mutation, len(mutations))
	for i, m := range mutations {
		list[i] = planted(m)
	}
	hunt.Hunt(t, &Game, list, huntSeeds)
}

// TestFailureIsShrunkAndReplays plants a bug and looks at what a person gets: a story that is much shorter than the world, and a command
// that tells the same again.
func TestFailureIsShrunkAndReplays(t *testing.T) {
	m := planted(mutations[slices.IndexFunc(mutations, func(m mutation) bool { return m.name == "fence ignored" })])
	bin := m.Build(t, &Game)
	out, err := Game.Run(bin, "-seeds", "100")
	story := regexp.MustCompile(`(?s)broken: ([^:]*):.*?(\d+) of (\d+) events are enough:\n.*\n *replay: go test ./test/sim -run 'TestSimulation\$' -args -seed (\d+)\n`).FindStringSubmatch(out)
	if err == nil || story == nil || story[1] != string(ruleFence) || atoi(story[2]) > 3 || atoi(story[3]) < 20 {
		t.Fatalf("%v\n%s", err, out)
	}
	again, err := Game.Run(bin, "-seed", story[4])
	if err == nil || !strings.Contains(again, story[1]) || !strings.Contains(again, story[2]+" of "+story[3]+" events are enough") {
		t.Fatalf("played again: %v\n%s", err, again)
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}
