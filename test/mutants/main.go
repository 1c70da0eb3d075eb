package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// options are the flags.
type options struct {
	n                           int
	seed                        uint64
	packages                    string
	again, survivors, judgement string
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
	flag.StringVar(&o.judgement, "equivalent", "test/mutants/testdata/equivalent.txt",
		"`file` of mutants that behave as the original does, which are not drawn")
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
	drawn, err := o.draw(root, packages)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	t := trial{out: os.Stdout, bench: newBench(root, tmp, packages)}
	err = errors.Join(t.judgeAll(drawn), os.RemoveAll(tmp))
	t.report()
	if o.survivors != "" {
		err = errors.Join(err, os.WriteFile(o.survivors, []byte(t.list.String()), 0o600))
	}
	return err
}

// draw chooses the mutants.
func (o *options) draw(root string, m module) ([]candidate, error) {
	packages := m.product()
	if o.packages != "" {
		packages = strings.Split(o.packages, ",")
	}
	files, err := load(root, packages)
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, f := range files {
		all = append(all, candidates(f)...)
	}
	equivalent, err := entries(o.judgement)
	if err != nil {
		return nil, err
	}
	all, judged := without(all, equivalent, packages)
	fmt.Printf("%d mutants of %s; %d more are judged to behave as the original\n", len(all),
		strings.Join(packages, " "), judged)
	if o.again == "" {
		drawn := draw(all, o.n, o.seed)
		fmt.Printf("%d drawn with seed %d\n", len(drawn), o.seed)
		return drawn, nil
	}
	listed, err := entries(o.again)
	if err != nil {
		return nil, err
	}
	drawn := slices.DeleteFunc(all, func(c candidate) bool { return among(&c, listed) < 0 })
	fmt.Printf("%d of the %d in %s\n", len(drawn), len(listed), o.again)
	return drawn, nil
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
