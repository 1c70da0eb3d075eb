package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// judge is a package's tests with their arguments.
type judge struct {
	dir, tags string
	args      []string
}

// skipped are tests of the sources, not of their behaviour. They run the go command, which would
// not see the mutant.
const skipped = "TestColumns|TestOwnedTypesRefuseCopies|TestImports|TestREADME|TestFloors"

func own(dir string) judge {
	return judge{dir: dir, args: []string{"-test.short", "-test.skip", skipped}}
}

// game plays a simulation, with the checks of invariants.
func game(dir, test, worlds string) judge {
	return judge{dir, "invariants", []string{"-test.run", "^" + test + "$", "-hunt", "-seeds", worlds}}
}

// games are the tests that judge every package that they import.
var games = []judge{
	game("test/sim", "TestSimulation", "1000"),
	game("test/sim", "TestFailover", "1000"),
	game("test/sendside", "TestTransport", "1000"),
	game("test/sendside", "TestTagged", "1000"),
	game("test/sendside", "TestShmem", "100"),
	game("verbs/roce/internal/rc", "TestSimulation", "1000"),
	game("verbs/roce", "TestSimulation", "300"),
	{".", "invariants", []string{"-test.run", "TestConcurrentUsePanics$"}},
	own("test/api"),
	own("test/vqp"),
}

// limit is the address space that a test may use, because a mutant may allocate forever.
const limit = "8388608" // KiB

// run runs the tests with a mutant, or with none if id is 0. It returns how they fail, or "".
func (j judge) run(root, bin string, id int, patience time.Duration) (found string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := append([]string{"-c", "ulimit -v " + limit + `; exec "$0" "$@"`, bin, "-test.failfast",
		"-test.timeout", patience.String()}, j.args...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir = filepath.Join(root, j.dir)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", fmt.Sprintf("%s=%d", chosen, id))
	c.WaitDelay = time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if err == nil {
		return ""
	}
	reason := err.Error()
	if said := failures.FindAllString(out.String(), -1); len(said) != 0 {
		reason = fmt.Sprintf("%.100s", strings.TrimSpace(said[len(said)-1]))
	}
	return j.dir + ": " + reason
}

var failures = regexp.MustCompile(
	`(?m)^\s*--- FAIL: (\S+)|^panic: (test timed out|.*)|^fatal error: .*|broken: .*`)

// module is the packages of the module, by import path.
type module map[string]*hunt.Package

// internal reports whether only packages of the module may import that of a directory.
func internal(dir string) bool { return strings.Contains("/"+dir+"/", "/internal/") }

// reach adds to seen the packages of the module that are reachable from some import paths.
func (m module) reach(seen map[string]bool, paths ...string) {
	for _, path := range paths {
		if p := m[path]; p != nil && !seen[p.Rel] {
			seen[p.Rel] = true
			m.reach(seen, p.Imports...)
		}
	}
}

// product returns the directories of the packages that users import or run, and of their
// dependencies. The others are tests, dependencies of tests, and examples.
func (m module) product() []string {
	seen := make(map[string]bool)
	for path, p := range m {
		top, _, _ := strings.Cut(p.Rel, "/")
		if !internal(p.Rel) && top != "test" && top != "examples" {
			m.reach(seen, path)
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// judges returns the tests that would find a mutant of a package, the likeliest first: its own, the
// games that play it, and for an internal package the tests of the packages that import it.
func (m module) judges(dir string) (all []judge) {
	var importers []judge
	for _, path := range slices.Sorted(maps.Keys(m)) {
		p := m[path]
		imports := func(path string) bool { return m[path] != nil && m[path].Rel == dir }
		switch {
		case !p.Tested() || strings.HasPrefix(p.Rel, "test/"):
		case p.Rel == dir:
			all = append(all, own(dir))
		case internal(dir) && slices.ContainsFunc(p.Imports, imports):
			importers = append(importers, own(p.Rel))
		}
	}
	for _, g := range games {
		seen := make(map[string]bool)
		for path, p := range m {
			if p.Rel == g.dir {
				m.reach(seen, slices.Concat([]string{path}, p.TestImports, p.XTestImports)...)
			}
		}
		if seen[dir] {
			all = append(all, g)
		}
	}
	return append(all, importers...)
}
