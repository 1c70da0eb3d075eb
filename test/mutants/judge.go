package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// judge is a test binary with its arguments.
type judge struct {
	dir  string // of its package
	tags string
	args []string
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

// bench builds and runs tests.
type bench struct {
	root  string
	all   module
	tmp   string
	usual map[string]time.Duration // how long a judge takes where nothing is planted
	// rehearsed has how the tests of a judge fail with the mutants built in and none chosen.
	rehearsed map[string]string
}

func newBench(root, tmp string, all module) bench {
	return bench{root, all, tmp, make(map[string]time.Duration), make(map[string]string)}
}

// binary is where the tests of a judge are built.
func (b *bench) binary(j judge) string {
	return filepath.Join(b.tmp, strings.ReplaceAll(j.dir+j.tags, "/", "_")+".test")
}

// forget removes what was built.
func (b *bench) forget() error {
	b.rehearsed = make(map[string]string)
	list, err := filepath.Glob(filepath.Join(b.tmp, "*.test"))
	for _, path := range list {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// buildError is what the compiler says.
type buildError struct{ dir, out string }

func (e *buildError) Error() string { return fmt.Sprintf("%s does not build:\n%s", e.dir, e.out) }

// build builds the tests of a judge with files in place of those at their paths, unless it has.
func (b *bench) build(j judge, files map[string]string) error {
	if _, err := os.Stat(b.binary(j)); err == nil {
		return nil
	}
	list, err := hunt.Overlay(b.tmp, files)
	if err != nil {
		return err
	}
	c := exec.Command("go", "test", "-c", "-vet=off", "-p=1", "-tags", j.tags, "-overlay", list,
		"-o", b.binary(j), "./"+j.dir)
	c.Dir, c.Env = b.root, append(os.Environ(), "GOMAXPROCS=1")
	if out, err := c.CombinedOutput(); err != nil {
		return &buildError{j.dir, string(out)}
	}
	return nil
}

// limit is the address space that a test may use: a mutant may allocate for ever.
const limit = "8388608" // KiB

// run runs the tests of a judge with a mutant. It reports how they fail, or "".
func (b *bench) run(j judge, id int) (found string) {
	key := b.key(j)
	usual, known := b.usual[key]
	patience := 3 * time.Minute
	if known {
		patience = 8*time.Second + 3*usual
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := append([]string{"-c", "ulimit -v " + limit + `; exec "$0" "$@"`, b.binary(j), "-test.failfast",
		"-test.timeout", patience.String()}, j.args...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir = filepath.Join(b.root, j.dir)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", fmt.Sprintf("%s=%d", chosen, id))
	c.WaitDelay = time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	start := time.Now()
	err := c.Run()
	if err == nil {
		if !known {
			b.usual[key] = time.Since(start)
		}
		return ""
	}
	return j.dir + ": " + reason(out.String(), err)
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
// disturbed them. It returns how they fail, or "": those that fail judge nothing.
func (b *bench) rehearse(j judge) (failed string) {
	key := b.key(j)
	failed, known := b.rehearsed[key]
	if known {
		return failed
	}
	if failed = b.run(j, 0); failed != "" {
		failed = b.run(j, 0)
	}
	b.rehearsed[key] = failed
	if failed != "" {
		fmt.Fprintln(os.Stderr, "judges nothing, because it fails without a mutant:", failed)
	}
	return failed
}

// key names a judge.
func (b *bench) key(j judge) string { return b.binary(j) + strings.Join(j.args, " ") }
