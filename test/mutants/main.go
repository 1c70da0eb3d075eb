package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

const core = ".,internal/dqplb,internal/flow,internal/list,internal/ring,tagged,transport,verbs/soft"

func main() {
	var (
		n         = flag.Int("n", 150, "how many mutants to draw")
		seed      = flag.Uint64("seed", uint64(time.Now().Unix()), "which ones; equal seeds draw equally from equal sources")
		packages  = flag.String("packages", core, "directories of the packages, separated by commas")
		again     = flag.String("again", "", "instead of drawing, plant those listed in this `file`")
		survivors = flag.String("survivors", "", "write those that survive to this `file`")
		known     = flag.String("equivalent", "test/mutants/testdata/equivalent.txt",
			"mutants that behave as the original does, which are not drawn")
	)
	flag.Parse()
	if err := run(*n, *seed, strings.Split(*packages, ","), *again, *survivors, *known); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(n int, seed uint64, packages []string, again, survivors, known string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	files, err := load(root, packages)
	if err != nil {
		return err
	}
	var all []candidate
	for _, f := range files {
		all = append(all, candidates(f)...)
	}
	equivalent, err := entries(filepath.Join(root, known))
	if err != nil {
		return err
	}
	all, judged := without(all, equivalent, packages)
	fmt.Printf("%d mutants of %s; %d more are judged to behave as the original\n", len(all),
		strings.Join(packages, " "), judged)
	var drawn []candidate
	if again != "" {
		listed, err := entries(again)
		if err != nil {
			return err
		}
		drawn = slices.DeleteFunc(all, func(c candidate) bool { return among(&c, listed) < 0 })
		fmt.Printf("%d of the %d in %s\n", len(drawn), len(listed), again)
	} else {
		drawn = draw(all, n, seed)
		fmt.Printf("%d drawn with seed %d\n", len(drawn), seed)
	}
	t := trial{}
	if t.bench.tmp, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	t.bench.root, t.bench.usual, t.bench.rehearsed = root, make(map[string]time.Duration), make(map[string]bool)
	err = errors.Join(t.judgeAll(drawn), os.RemoveAll(t.bench.tmp))
	t.report()
	if survivors != "" {
		err = errors.Join(err, os.WriteFile(survivors, []byte(t.list.String()), 0o644))
	}
	return err
}

// without leaves out the candidates that are among the changes, and reports changes that fit no
// candidate of these packages.
func without(all []candidate, changes []hunt.Change, packages []string) (rest []candidate, left int) {
	used := make([]bool, len(changes))
	for _, c := range all {
		if i := among(&c, changes); i >= 0 {
			used[i] = true
			left++
			continue
		}
		rest = append(rest, c)
	}
	for i, c := range changes {
		if !used[i] && slices.Contains(packages, c.Dir) {
			fmt.Printf("judged, but not there any more: %s %s: %s\n", c.Dir, c.Decl, strings.TrimSpace(c.Old))
		}
	}
	return rest, left
}

// trial plants mutants and counts what becomes of them.
type trial struct {
	bench bench
	tally map[string]*tally // by package
	list  strings.Builder   // those that survive
	place int
	total int
}

type tally struct{ found, survived, unbuilt int }

func (t *trial) judgeAll(drawn []candidate) error {
	t.tally, t.total = make(map[string]*tally), len(drawn)
	list := make([]*mutant, len(drawn))
	for i, c := range drawn {
		list[i] = &mutant{c, i + 1}
		if t.tally[c.file.dir] == nil {
			t.tally[c.file.dir] = &tally{}
		}
	}
	for queue := batches(list); len(queue) > 0; queue = queue[1:] {
		b := queue[0]
		apart, err := t.build(b)
		if err != nil {
			return err
		}
		queue = append(queue, apart...)
		if err := t.judgeBatch(b); err != nil {
			return err
		}
		if err := t.bench.forget(); err != nil {
			return err
		}
	}
	return nil
}

// build builds the packages that a batch changes, with their own tests. A mutant whose guarded form
// does not compile is taken out and returned as a batch of its own.
func (t *trial) build(b *batch) (apart []*batch, err error) {
	for i := 0; i < len(b.mutants); {
		m := b.mutants[i]
		err := t.bench.build(own(m.file.dir), b.files())
		var failed *buildError
		switch {
		case err == nil:
			i++
			continue
		case !errors.As(err, &failed):
			return nil, err
		case b.alone:
			return nil, nil
		}
		bad := b.blamed(failed.out)
		if len(bad) == 0 {
			return nil, err
		}
		for _, m := range bad {
			apart = append(apart, &batch{[]*mutant{m}, true})
			b.mutants = slices.DeleteFunc(b.mutants, func(x *mutant) bool { return x == m })
		}
		i = 0
		if err := t.bench.forget(); err != nil {
			return nil, err
		}
	}
	return apart, nil
}

// judgeBatch builds a batch and asks the judges about each mutant.
func (t *trial) judgeBatch(b *batch) error {
	files := b.files()
	for _, m := range b.mutants {
		t.place++
		start := time.Now()
		verdict, err := t.verdict(b, m, files)
		if err != nil {
			return err
		}
		if verdict != "" {
			fmt.Printf("%4d of %d  %5.1fs  %-28s %.100s\n", t.place, t.total, time.Since(start).Seconds(), m, verdict)
			continue
		}
		entry := m.entry("survives at " + m.String())
		t.list.WriteString(entry + "\n")
		fmt.Printf("%4d of %d  %5.1fs  %-28s SURVIVES\n%s", t.place, t.total, time.Since(start).Seconds(), m, entry)
	}
	return nil
}

// verdict is how a mutant was found, or "".
func (t *trial) verdict(b *batch, m *mutant, files map[string]string) (string, error) {
	count := t.tally[m.file.dir]
	for _, j := range judges(m.file.dir) {
		err := t.bench.build(j, files)
		var failed *buildError
		if errors.As(err, &failed) && b.alone {
			count.unbuilt++
			return "does not build", nil
		}
		if err != nil {
			return "", err
		}
		if !b.alone {
			if err := t.bench.rehearse(j); err != nil {
				return "", err
			}
		}
		if found := t.bench.run(j, m.id); found != "" {
			count.found++
			return found, nil
		}
	}
	count.survived++
	return "", nil
}

// report prints the counts.
func (t *trial) report() {
	var sum tally
	fmt.Printf("\n%-20s %8s %8s %8s\n", "package", "found", "survive", "no build")
	dirs := make([]string, 0, len(t.tally))
	for d := range t.tally {
		dirs = append(dirs, d)
	}
	slices.Sort(dirs)
	for _, d := range dirs {
		c := t.tally[d]
		fmt.Printf("%-20s %8d %8d %8d\n", d, c.found, c.survived, c.unbuilt)
		sum = tally{sum.found + c.found, sum.survived + c.survived, sum.unbuilt + c.unbuilt}
	}
	if tried := sum.found + sum.survived; tried > 0 {
		fmt.Printf("%-20s %8d %8d %8d   %.1f %% found\n", "all", sum.found, sum.survived, sum.unbuilt,
			100*float64(sum.found)/float64(tried))
	}
}
