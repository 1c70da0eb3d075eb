package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// options are the flags.
type options struct {
	n                          int
	seed                       uint64
	packages, again, survivors string
}

func main() {
	var o options
	flag.IntVar(&o.n, "n", 150, "how many mutants to draw")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()),
		"which ones; equal seeds draw equally from equal sources")
	flag.StringVar(&o.packages, "packages", "",
		"`directories` of the packages, separated by commas; all but tests and examples if empty")
	flag.StringVar(&o.again, "again", "", "instead of drawing, plant those listed in this `file`")
	flag.StringVar(&o.survivors, "survivors", "", "write those that survive to this `file`")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func (o *options) run() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	packages, err := hunt.List(root, "./...")
	if err != nil {
		return err
	}
	drawn, err := o.choose(packages)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	t := trial{out: os.Stdout, bench: bench{root, tmp, packages, map[string]time.Duration{}}}
	err = errors.Join(t.judgeAll(drawn), os.RemoveAll(tmp))
	t.report()
	if o.survivors != "" {
		err = errors.Join(err, os.WriteFile(o.survivors, []byte(t.list.String()), 0o600))
	}
	return err
}

// equivalents are mutants that behave as the original does, which are not drawn.
const equivalents = "test/mutants/testdata/equivalent.txt"

// choose draws the mutants, or finds those that are listed.
func (o *options) choose(m module) ([]candidate, error) {
	packages := m.product()
	if o.packages != "" {
		packages = strings.Split(o.packages, ",")
	}
	var all []candidate
	for _, path := range slices.Sorted(maps.Keys(m)) {
		if slices.Contains(packages, m[path].Rel) {
			more, err := candidates(m[path])
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
	}
	judged, err := entries(equivalents)
	if err != nil {
		return nil, err
	}
	all, left := without(all, judged)
	for _, c := range left {
		if slices.Contains(packages, c.Dir) {
			fmt.Printf("judged, but not there any more: %s %s: %s\n", c.Dir, c.Decl, strings.TrimSpace(c.Old))
		}
	}
	fmt.Printf("%d mutants of %s\n", len(all), strings.Join(packages, " "))
	if o.again == "" {
		return draw(all, o.n, o.seed), nil
	}
	listed, err := entries(o.again)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c candidate) bool { return among(&c, listed) < 0 }), nil
}

// draw draws n of the candidates. Equal seeds draw equally from equal sources.
func draw(list []candidate, n int, seed uint64) []candidate {
	random := rand.New(rand.NewPCG(seed, 0))
	list = slices.Clone(list)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	fmt.Printf("%d drawn with seed %d\n", min(n, len(list)), seed)
	return list[:min(n, len(list))]
}

// without leaves out the candidates that are among the changes, and returns the changes that fit
// none.
func without(all []candidate, changes []hunt.Change) (rest []candidate, unused []hunt.Change) {
	used := make(map[int]bool)
	for _, c := range all {
		i := among(&c, changes)
		if used[i] = true; i < 0 {
			rest = append(rest, c)
		}
	}
	for i, c := range changes {
		if !used[i] {
			unused = append(unused, c)
		}
	}
	return rest, unused
}

// entries reads a list of mutants from a file.
func entries(path string) (changes []hunt.Change, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := hunt.Parse("mutant", string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range list {
		changes = append(changes, e.Changes...)
	}
	return changes, nil
}

// among finds which of the changes a candidate is, or returns -1.
func among(c *candidate, changes []hunt.Change) int {
	return slices.IndexFunc(changes, func(e hunt.Change) bool {
		if e.Decl != c.decl || e.Dir != c.file.dir {
			return false
		}
		self := c.change()
		return hunt.SameCode(self.Old, e.Old) && hunt.SameCode(self.New, e.New)
	})
}

// trial plants mutants and counts what becomes of them.
type trial struct {
	out   io.Writer
	bench bench
	tally map[string]*tally // by package
	list  strings.Builder   // those that survive
}

type tally struct{ found, survived, unbuilt int }

func (t *trial) judgeAll(drawn []candidate) error {
	t.tally = make(map[string]*tally)
	for i, c := range drawn {
		start := time.Now()
		found, compiles, err := t.bench.verdict(&c)
		if err != nil {
			return err
		}
		count := t.tally[c.file.dir]
		if count == nil {
			count = &tally{}
			t.tally[c.file.dir] = count
		}
		place := fmt.Sprintf("%s:%d", strings.TrimPrefix(c.file.path, t.bench.root+"/"), c.line())
		switch {
		case !compiles:
			count.unbuilt++
			found = "does not compile"
		case found != "":
			count.found++
		default:
			count.survived++
			entry := entry(place, c.change())
			t.list.WriteString(entry + "\n")
			found = "SURVIVES\n" + entry
		}
		fmt.Fprintf(t.out, "%4d of %d  %5.1fs  %-28s %s\n", i+1, len(drawn), time.Since(start).Seconds(),
			place, found)
	}
	return nil
}

// entry is a mutant as an entry of a list.
func entry(place string, c hunt.Change) string {
	text := fmt.Sprintf("mutant survives at %s\nin %s %s\n-%s\n", place, c.Dir, c.Decl,
		strings.ReplaceAll(c.Old, "\n", "\n-"))
	if strings.TrimSpace(c.New) != "" {
		text += "+" + strings.ReplaceAll(c.New, "\n", "\n+") + "\n"
	}
	return text
}

// report prints the counts.
func (t *trial) report() {
	var sum tally
	row := func(name string, c tally) {
		fmt.Fprintf(t.out, "%-24s %8d %8d %8d\n", name, c.found, c.survived, c.unbuilt)
	}
	fmt.Fprintf(t.out, "\n%-24s %8s %8s %8s\n", "package", "found", "survive", "no build")
	for _, d := range slices.Sorted(maps.Keys(t.tally)) {
		c := *t.tally[d]
		row(d, c)
		sum = tally{sum.found + c.found, sum.survived + c.survived, sum.unbuilt + c.unbuilt}
	}
	row("all", sum)
	if tried := sum.found + sum.survived; tried > 0 {
		fmt.Fprintf(t.out, "%.1f %% found\n", 100*float64(sum.found)/float64(tried))
	}
}
