package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// batch is mutants in the same test binaries.
type batch struct {
	mutants  []candidate
	alone    bool   // a single mutant, in the source without a condition
	tmp      string // has the binaries
	patience map[string]time.Duration
}

// batches numbers and divides mutants: those that overlap go into different batches, and those
// whose guarded form does not compile get one each.
func batches(code *hunt.Code, drawn []candidate) (all []*batch) {
	for i, m := range drawn {
		m.id = i + 1
		single := &batch{mutants: []candidate{m}}
		single.alone = code.Check(single.files()) != nil
		fits := -1
		if !single.alone {
			fits = slices.IndexFunc(all, func(b *batch) bool {
				return !b.alone && !slices.ContainsFunc(b.mutants, m.overlaps)
			})
		}
		if fits < 0 {
			all = append(all, single)
		} else {
			all[fits].mutants = append(all[fits].mutants, m)
		}
	}
	return all
}

func (c candidate) overlaps(other candidate) bool {
	return c.file == other.file && c.from < other.to && other.from < c.to
}

// files returns the sources with the mutants in them, by path.
func (b *batch) files() map[string]string {
	files := make(map[string]string)
	// From the last to the first: planting one does not move the next.
	last := func(x, y candidate) int { return cmp.Compare(y.from, x.from) }
	for _, m := range slices.SortedFunc(slices.Values(b.mutants), last) {
		text, planted := m.text, cmp.Or(files[m.file.path], m.file.text)
		if !b.alone {
			text = strings.ReplaceAll(m.guarded, "\x00", strconv.Itoa(m.id))
			files[filepath.Join(m.file.pkg.Dir, "mutant_chosen.go")] =
				"package " + m.file.syntax.Name.Name + support
		}
		files[m.file.path] = planted[:m.from] + text + planted[m.to:]
	}
	return files
}

// chosen is the environment variable with the number of the active mutant.
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

// verdict returns how a mutant is found, "" if it survives.
func (b *batch) verdict(m candidate, root string, judges []judge) (string, error) {
	for _, j := range judges {
		bin := filepath.Join(b.tmp, strings.ReplaceAll(j.dir+j.tags, "/", "_")+".test")
		if _, err := os.Stat(bin); err != nil {
			if err := hunt.Build(bin, root, j.dir, b.files(), "-vet=off", "-tags", j.tags); err != nil {
				return "", err
			}
		}
		patience := b.rehearse(j, root, bin)
		if patience == 0 {
			continue
		}
		if found := j.run(root, bin, m.id, patience); found != "" {
			return found, nil
		}
	}
	return "", nil
}

// unknown is the time limit of tests that have not run without a mutant.
const unknown = 3 * time.Minute

// rehearse runs the tests of a judge once without a mutant, and twice if a busy machine may have
// disturbed them. It returns their time limit with a mutant, or 0 if they fail: then they judge
// nothing.
func (b *batch) rehearse(j judge, root, bin string) time.Duration {
	key := bin + strings.Join(j.args, " ")
	patience, known := b.patience[key]
	switch {
	case b.alone:
		return unknown
	case known:
		return patience
	}
	failed := ""
	for range 2 {
		start := time.Now()
		if failed = j.run(root, bin, 0, unknown); failed == "" {
			b.patience[key] = 8*time.Second + 3*time.Since(start)
			return b.patience[key]
		}
	}
	fmt.Fprintln(os.Stderr, "judges nothing, because it fails without a mutant:", failed)
	b.patience[key] = 0
	return 0
}
