package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// trial plants mutants and counts what becomes of them.
type trial struct {
	out   io.Writer
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
		err := t.bench.build(t.bench.all.judges(m.file.dir)[0], b.files())
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
			t.print(start, m, verdict)
			continue
		}
		entry := m.entry("survives at " + m.String())
		t.list.WriteString(entry + "\n")
		t.print(start, m, "SURVIVES\n"+entry)
	}
	return nil
}

func (t *trial) print(start time.Time, m *mutant, verdict string) {
	fmt.Fprintf(t.out, "%4d of %d  %5.1fs  %-28s %s\n", t.place, t.total, time.Since(start).Seconds(), m,
		verdict)
}

// verdict is how a mutant was found, or "".
func (t *trial) verdict(b *batch, m *mutant, files map[string]string) (string, error) {
	count := t.tally[m.file.dir]
	for _, j := range t.bench.all.judges(m.file.dir) {
		err := t.bench.build(j, files)
		var failed *buildError
		if errors.As(err, &failed) && b.alone {
			count.unbuilt++
			return "does not build", nil
		}
		if err != nil {
			return "", err
		}
		if !b.alone && t.bench.rehearse(j) != "" {
			continue
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
	fmt.Fprintf(t.out, "\n%-20s %8s %8s %8s\n", "package", "found", "survive", "no build")
	for _, d := range slices.Sorted(maps.Keys(t.tally)) {
		c := t.tally[d]
		fmt.Fprintf(t.out, "%-20s %8d %8d %8d\n", d, c.found, c.survived, c.unbuilt)
		sum = tally{sum.found + c.found, sum.survived + c.survived, sum.unbuilt + c.unbuilt}
	}
	if tried := sum.found + sum.survived; tried > 0 {
		fmt.Fprintf(t.out, "%-20s %8d %8d %8d   %.1f %% found\n", "all", sum.found, sum.survived, sum.unbuilt,
			100*float64(sum.found)/float64(tried))
	}
}
