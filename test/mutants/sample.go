package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"ibverbx/test/internal/hunt"
)

// mutant is a candidate that was drawn.
type mutant struct {
	candidate
	id int // what the environment calls it: 1, 2, 3, ...
}

func (m *mutant) String() string {
	path := m.file.path[strings.LastIndexByte(m.file.path, '/')+1:]
	if m.file.dir != "." {
		path = m.file.dir + "/" + path
	}
	return fmt.Sprintf("%s:%d", path, m.file.line(m.from))
}

// draw draws n of the candidates. Equal seeds draw equally from equal sources.
func draw(list []candidate, n int, seed uint64) []candidate {
	random := rand.New(rand.NewPCG(seed, 0))
	list = slices.Clone(list)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

// entries reads a list of mutants from a file.
func entries(path string) ([]hunt.Change, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := hunt.Parse("mutant", string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var changes []hunt.Change
	for _, e := range list {
		changes = append(changes, e.Changes...)
	}
	return changes, nil
}

// among finds which of the changes a candidate is, or returns -1.
func among(c *candidate, changes []hunt.Change) int {
	var self hunt.Change
	return slices.IndexFunc(changes, func(e hunt.Change) bool {
		if e.Decl != c.decl || e.Dir != c.file.dir {
			return false
		}
		if self.Decl == "" {
			self = c.change()
		}
		return hunt.SameCode(self.Old, e.Old) && hunt.SameCode(self.New, e.New)
	})
}

// entry is the mutant as an entry of a list.
func (m *mutant) entry(name string) string {
	c := m.change()
	var b strings.Builder
	fmt.Fprintf(&b, "mutant %s\nin %s %s\n", name, c.Dir, c.Decl)
	for line := range strings.SplitSeq(c.Old, "\n") {
		b.WriteString("-" + line + "\n")
	}
	if strings.TrimSpace(c.New) != "" {
		for line := range strings.SplitSeq(c.New, "\n") {
			b.WriteString("+" + line + "\n")
		}
	}
	return b.String()
}
