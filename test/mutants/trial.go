package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// trial plants mutants and counts what becomes of them.
type trial struct {
	root  string
	all   module
	out   io.Writer
	tally map[string]tally // by package
	list  strings.Builder  // those that survive
}

type tally struct{ found, survived, unbuilt int }

func (t *trial) judgeAll(code *hunt.Code, drawn []candidate) error {
	t.tally = make(map[string]tally)
	for _, b := range batches(code, drawn) {
		tmp, err := os.MkdirTemp("", "mutants")
		if err != nil {
			return err
		}
		bench := bench{t.root, tmp, b, b.files(), make(map[string]time.Duration)}
		if err := errors.Join(t.judgeBatch(&bench), os.RemoveAll(tmp)); err != nil {
			return err
		}
	}
	return nil
}

// judgeBatch asks the judges about each mutant of a batch.
func (t *trial) judgeBatch(b *bench) error {
	for _, m := range b.mutants {
		start, dir := time.Now(), m.file.pkg.Rel
		count := t.tally[dir]
		verdict, err := b.verdict(m, t.all.judges(dir))
		switch {
		case err != nil && b.alone:
			count.unbuilt++
			verdict = "does not build"
		case err != nil:
			return err
		case verdict != "":
			count.found++
		default:
			count.survived++
			entry := "mutant survives at " + m.place() + "\n" + m.entry()
			t.list.WriteString(entry + "\n")
			verdict = "SURVIVES\n" + entry
		}
		t.tally[dir] = count
		fmt.Fprintf(t.out, "%4d  %5.1fs  %-28s %s\n", m.id, time.Since(start).Seconds(), m.place(), verdict)
	}
	return nil
}

// report prints the counts.
func (t *trial) report() {
	var sum tally
	row := func(name string, c tally) {
		fmt.Fprintf(t.out, "%-24s %8d %8d %8d\n", name, c.found, c.survived, c.unbuilt)
	}
	fmt.Fprintf(t.out, "\n%-24s %8s %8s %8s\n", "package", "found", "survive", "no build")
	for _, d := range slices.Sorted(maps.Keys(t.tally)) {
		c := t.tally[d]
		row(d, c)
		sum = tally{sum.found + c.found, sum.survived + c.survived, sum.unbuilt + c.unbuilt}
	}
	row("all", sum)
	if tried := sum.found + sum.survived; tried > 0 {
		fmt.Fprintf(t.out, "%.1f %% found\n", 100*float64(sum.found)/float64(tried))
	}
}
