package main

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"ibverbx/test/internal/hunt"
)

// mutant is a candidate that was drawn.
type mutant struct {
	candidate
	id int // what the environment calls it: 1, 2, 3, ...
}

// batch is a set of mutants that are built together.
type batch struct {
	mutants []*mutant
	alone   bool // one that stands in the source without a condition
}

// batches divides mutants: those that overlap come into different batches, and those whose guarded
// form does not compile get one each.
func batches(code *hunt.Code, drawn []candidate) (all []*batch) {
	for i, c := range drawn {
		m := &mutant{c, i + 1}
		single := &batch{mutants: []*mutant{m}}
		if single.alone = code.Check(single.files()) != nil; single.alone {
			all = append(all, single)
			continue
		}
		fits := slices.IndexFunc(all, func(b *batch) bool {
			return !b.alone && !slices.ContainsFunc(b.mutants, m.overlaps)
		})
		if fits < 0 {
			all = append(all, single)
		} else {
			all[fits].mutants = append(all[fits].mutants, m)
		}
	}
	return all
}

func (m *mutant) overlaps(other *mutant) bool {
	return m.file == other.file && m.from < other.to && other.from < m.to
}

// files are the sources with the mutants in them, by path.
func (b *batch) files() map[string]string {
	files := make(map[string]string)
	for _, m := range slices.SortedFunc(slices.Values(b.mutants), lastFirst) {
		text, planted := m.text, files[m.file.path]
		if planted == "" {
			planted = m.file.text
		}
		if !b.alone {
			text = strings.ReplaceAll(m.guarded, "\x00", strconv.Itoa(m.id))
			files[filepath.Join(m.file.pkg.Dir, "mutant_chosen.go")] =
				"package " + m.file.syntax.Name.Name + support
		}
		files[m.file.path] = planted[:m.from] + text + planted[m.to:]
	}
	return files
}

// lastFirst puts mutants in an order in which planting one does not move the next.
func lastFirst(x, y *mutant) int { return y.from - x.from }

// chosen is the environment's variable with the number of the mutant that acts.
const chosen = "IBVERBX_MUTANT"

// support is added to each package with guarded mutants.
const support = `

import (
	"os"
	"strconv"
)

var mutantChosen, _ = strconv.Atoi(os.Getenv("` + chosen + `"))

func mutantOr[T any](id int, mutant, original func() T) T {
	if mutantChosen == id {
		return mutant()
	}
	return original()
}
`
