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

// judge is tests of a package with their arguments.
type judge struct {
	dir, tags string
	args      []string
}

// skipped are tests of the sources and not of what they do. They run the go command, which would
// not see the mutant.
const skipped = "TestColumns|TestOwnedTypesRefuseCopies|TestImports|TestREADME|TestFloors"

func own(dir string) judge {
	return judge{dir: dir, args: []string{"-test.short", "-test.skip", skipped}}
}

// game plays a simulation, with the checks of invariants.
func game(dir, test, worlds string) judge {
	return judge{dir, "invariants", []string{"-test.run", "^" + test + "$", "-hunt", "-seeds", worlds}}
}

// games are the tests that judge every package which they reach.
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

// module is the packages of the module, by import path.
type module map[string]*hunt.Package

// internal reports whether only packages of the module may import that of a directory.
func internal(dir string) bool { return strings.Contains("/"+dir+"/", "/internal/") }

// reach adds to seen the packages of the module that some import paths lead to.
func (m module) reach(seen map[string]bool, paths ...string) {
	for _, path := range paths {
		if p := m[path]; p != nil && !seen[p.Rel] {
			seen[p.Rel] = true
			m.reach(seen, p.Imports...)
		}
	}
}

// product returns the directories of the packages that users import or run, and of those that these
// need. The others are tests, what tests need, and examples.
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

// bench builds and runs tests.
type bench struct {
	root, tmp string
	all       module
	usual     map[string]time.Duration // how long a judge takes where nothing is planted; -1: it fails
}

// build builds the tests of a judge with files in place of those at their paths. Its error is what
// the compiler says.
func (b *bench) build(j judge, files map[string]string) (bin string, err error) {
	list, err := hunt.Overlay(b.tmp, files)
	if err != nil {
		return "", err
	}
	bin = filepath.Join(b.tmp, "judge.test")
	c := exec.Command("go", "test", "-c", "-vet=off", "-tags", j.tags, "-overlay", list, "-o", bin,
		"./"+j.dir)
	c.Dir = b.root
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not build: %s", j.dir, out)
	}
	return bin, nil
}

// limit is the address space that a test may use: a mutant may allocate for ever.
const limit = "8388608" // KiB

// run runs the tests of a judge. It reports how they fail, or "".
func (b *bench) run(j judge, bin string, patience time.Duration) (found string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := append([]string{"-c", "ulimit -v " + limit + `; exec "$0" "$@"`, bin, "-test.failfast",
		"-test.timeout", patience.String()}, j.args...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir = filepath.Join(b.root, j.dir)
	c.Env = append(os.Environ(), "GOMAXPROCS=1")
	c.WaitDelay = time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return j.dir + ": " + reason(out.String(), err)
	}
	return ""
}

var failures = regexp.MustCompile(
	`(?m)^\s*--- FAIL: (\S+)|^panic: (test timed out|.*)|^fatal error: .*|broken: .*`)

// reason is what a failed run says first.
func reason(out string, err error) string {
	found := failures.FindAllString(out, -1)
	if len(found) == 0 {
		return err.Error()
	}
	return fmt.Sprintf("%.100s", strings.TrimSpace(found[len(found)-1]))
}

// rehearse runs the tests of a judge once without a mutant, and twice if a busy machine may have
// disturbed them. It returns how long they take, or -1: those that fail judge nothing.
func (b *bench) rehearse(j judge) (time.Duration, error) {
	key := j.dir + j.tags + strings.Join(j.args, " ")
	if usual, known := b.usual[key]; known {
		return usual, nil
	}
	bin, err := b.build(j, nil)
	if err != nil {
		return 0, err
	}
	failed := "it has not run"
	for try := 0; try < 2 && failed != ""; try++ {
		start := time.Now()
		failed = b.run(j, bin, 3*time.Minute)
		b.usual[key] = time.Since(start)
	}
	if failed != "" {
		b.usual[key] = -1
		fmt.Fprintln(os.Stderr, "judges nothing, because it fails without a mutant:", failed)
	}
	return b.usual[key], nil
}

// verdict is how a mutant is found, "" when it survives. It reports false for one that does not
// compile.
func (b *bench) verdict(c *candidate) (found string, compiles bool, err error) {
	for _, j := range b.all.judges(c.file.dir) {
		usual, err := b.rehearse(j)
		if err != nil || usual < 0 {
			if err != nil {
				return "", false, err
			}
			continue
		}
		bin, broken := b.build(j, c.files())
		if broken != nil {
			return "", false, nil
		}
		if found = b.run(j, bin, 8*time.Second+3*usual); found != "" {
			return found, true, nil
		}
	}
	return "", true, nil
}
