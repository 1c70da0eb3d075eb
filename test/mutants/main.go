package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	flag.StringVar(&o.survivors, "survivors", "survivors.txt", "write those that survive to this `file`")
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
	dirs := module(packages).product()
	if o.packages != "" {
		dirs = strings.Split(o.packages, ",")
	}
	code, all, err := load(root, dirs)
	if err != nil {
		return err
	}
	drawn, err := o.choose(all, filepath.Join(root, "test/mutants/testdata/equivalent.txt"))
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d mutants of %s, with seed %d\n", len(drawn), len(all), strings.Join(dirs, " "),
		o.seed)
	t := trial{root: root, all: packages, out: os.Stdout}
	err = t.judgeAll(code, drawn)
	return errors.Join(err, os.WriteFile(o.survivors, []byte(t.list.String()), 0o600))
}

// trial plants mutants and counts their fates.
type trial struct {
	root                     string
	all                      module
	out                      io.Writer
	found, survived, unbuilt int
	list                     strings.Builder // those that survive
}

func (t *trial) judgeAll(code *hunt.Code, drawn []candidate) error {
	for _, b := range batches(code, drawn) {
		var err error
		if b.tmp, err = os.MkdirTemp("", "mutants"); err != nil {
			return err
		}
		b.patience = make(map[string]time.Duration)
		for i := 0; err == nil && i < len(b.mutants); i++ {
			err = t.judge(b, b.mutants[i])
		}
		if err := errors.Join(err, os.RemoveAll(b.tmp)); err != nil {
			return err
		}
	}
	fmt.Fprintf(t.out, "%d found, %d survive, %d do not build\n", t.found, t.survived, t.unbuilt)
	return nil
}

// judge runs the judges on a mutant.
func (t *trial) judge(b *batch, m candidate) error {
	start := time.Now()
	verdict, err := b.verdict(m, t.root, t.all.judges(m.file.pkg.Rel))
	switch {
	case err != nil && b.alone:
		t.unbuilt++
		verdict = "does not build"
	case err != nil:
		return err
	case verdict != "":
		t.found++
	default:
		t.survived++
		entry := "mutant survives at " + m.place() + "\n" + m.entry()
		t.list.WriteString(entry + "\n")
		verdict = "SURVIVES\n" + entry
	}
	fmt.Fprintf(t.out, "%4d  %5.1fs  %-28s %s\n", m.id, time.Since(start).Seconds(), m.place(), verdict)
	return nil
}

// load finds all mutants of packages, named by their directories.
func load(root string, dirs []string) (code *hunt.Code, all []candidate, err error) {
	if code, err = hunt.Load(root, dirs); err != nil {
		return nil, nil, err
	}
	for _, p := range code.Packages {
		more, err := candidates(code, p)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, more...)
	}
	return code, all, nil
}

// choose draws from the mutants that are not judged equivalent, or finds those that are listed.
func (o *options) choose(all []candidate, equivalents string) ([]candidate, error) {
	judged, err := entries(equivalents)
	if err != nil {
		return nil, err
	}
	_, rest := divide(all, judged)
	if o.again == "" {
		return draw(rest, o.n, o.seed), nil
	}
	listed, err := entries(o.again)
	again, _ := divide(rest, listed)
	return again, err
}

// draw draws n of the candidates. Equal seeds draw equally from equal sources.
func draw(list []candidate, n int, seed uint64) []candidate {
	random := rand.New(rand.NewPCG(seed, 0))
	list = slices.Clone(list)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

// entries reads a list of mutants from a file: "mutant" with a reason, and an entry.
func entries(path string) (list []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, e := range strings.Split("\n"+string(text), "\nmutant ")[1:] {
		_, entry, _ := strings.Cut(e, "\n")
		list = append(list, squeezed(entry))
	}
	return list, nil
}

// squeezed replaces each run of white space with one space.
func squeezed(text string) string { return strings.Join(strings.Fields(text), " ") }

// divide separates the listed candidates from the rest. It prints entries of the candidates'
// packages that match no candidate.
func divide(all []candidate, list []string) (listed, rest []candidate) {
	used, dirs := make(map[string]bool), make(map[string]bool)
	for _, c := range all {
		entry := squeezed(c.entry())
		dirs[c.file.pkg.Rel], used[entry] = true, true
		if slices.Contains(list, entry) {
			listed = append(listed, c)
		} else {
			rest = append(rest, c)
		}
	}
	for _, entry := range list {
		if dir := strings.Fields(entry)[1]; dirs[dir] && !used[entry] {
			fmt.Println("listed, but not there any more:", entry)
		}
	}
	return listed, rest
}
