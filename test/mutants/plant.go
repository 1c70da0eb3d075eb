package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// batch is a set of mutants that are built together.
type batch struct {
	mutants []*mutant
	alone   bool // one that stands in the source without a condition
}

// batches divides mutants: those that overlap come into different batches, and those that have no
// guarded form get one each.
func batches(list []*mutant) (all []*batch) {
	for _, m := range list {
		if m.guarded == "" {
			all = append(all, &batch{[]*mutant{m}, true})
			continue
		}
		i := slices.IndexFunc(all, func(b *batch) bool {
			return !b.alone && !slices.ContainsFunc(b.mutants, m.overlaps)
		})
		if i < 0 {
			i, all = len(all), append(all, &batch{})
		}
		all[i].mutants = append(all[i].mutants, m)
	}
	return all
}

func (m *mutant) overlaps(other *mutant) bool {
	return m.file == other.file && m.from < other.to && other.from < m.to
}

// files are the sources with the mutants in them, by path.
func (b *batch) files() map[string]string {
	files := make(map[string]string)
	for _, m := range b.mutants {
		files[m.file.path] = ""
		if !b.alone {
			files[filepath.Join(filepath.Dir(m.file.path), "mutant_planted.go")] =
				strings.Replace(support, "package p", "package "+m.file.syntax.Name.Name, 1)
		}
	}
	for path, text := range files {
		if text == "" {
			files[path] = b.planted(path)
		}
	}
	return files
}

// planted is a file with its mutants.
func (b *batch) planted(path string) string {
	var here []*mutant
	for _, m := range b.mutants {
		if m.file.path == path {
			here = append(here, m)
		}
	}
	slices.SortFunc(here, func(x, y *mutant) int { return x.from - y.from })
	source := here[0].file.text
	var text strings.Builder
	at := 0
	for _, m := range here {
		text.WriteString(source[at:m.from])
		if b.alone {
			text.WriteString(m.text)
		} else {
			text.WriteString(strings.ReplaceAll(m.guarded, "\x00", fmt.Sprint(m.id)))
		}
		at = m.to
	}
	text.WriteString(source[at:])
	return text.String()
}

// blamed are the mutants of the lines that the compiler complains about.
func (b *batch) blamed(out string) (bad []*mutant) {
	for _, m := range b.mutants {
		first, last := m.file.line(m.from), m.file.line(m.to)
		for line := first; line <= last; line++ {
			if strings.Contains(out, fmt.Sprintf("%s:%d:", filepath.Base(m.file.path), line)) {
				bad = append(bad, m)
				break
			}
		}
	}
	return bad
}

// chosen is the environment's variable with the number of the mutant that acts.
const chosen = "IBVERBX_MUTANT"

// support is added to each package with guarded mutants.
const support = `package p

import (
	"os"
	"strconv"
)

var mutantPlanted, _ = strconv.Atoi(os.Getenv("` + chosen + `"))

func mutantPick[T interface{}](id int, mutant, original T) T {
	if mutantPlanted == id {
		return mutant
	}
	return original
}

func mutantLazy[T interface{}](id int, mutant, original func() T) T {
	if mutantPlanted == id {
		return mutant()
	}
	return original()
}
`
