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
const skipped = "TestColumns|TestOwnedTypesRefuseCopies|TestImports|TestREADME"

func own(dir string) judge {
	return judge{dir: dir, args: []string{"-test.short", "-test.skip", skipped}}
}

// game plays a simulation, with the checks of invariants.
func game(dir, test, worlds string) judge {
	return judge{dir, "invariants", []string{"-test.run", test + "$", "-hunt", "-seeds", worlds}}
}

// judges are the tests that would find a mutant of a package: its own, and then others until one
// has found it.
func judges(dir string) []judge {
	sim := game("test/sim", "TestSimulation", "1000")
	transport := game("test/sendside", "TestTransport", "1000")
	tagged := game("test/sendside", "TestTagged", "1000")
	switch dir {
	case ".":
		guards := judge{dir, "invariants", []string{"-test.run", "TestConcurrentUsePanics$"}}
		return []judge{own("."), own("test/api"), guards, sim, own("test/vqp")}
	case "internal/dqplb":
		return []judge{own(dir), own("."), own("test/api"), sim}
	case "internal/ring", "internal/list", "internal/flow":
		return []judge{own(dir), own("transport"), own("tagged"), own("."), own("test/api"), sim, transport,
			tagged}
	case "transport":
		return []judge{own(dir), transport, own("tagged")}
	case "tagged":
		return []judge{own(dir), tagged}
	case "shmem":
		return []judge{own(dir), game("test/sendside", "TestShmem", "100")}
	case "verbs":
		return []judge{own(dir), own("verbs/soft"), own("."), own("test/api")}
	case "verbs/internal/nic":
		return []judge{own(dir), own("verbs/soft"), own("."), own("test/api"), sim, transport}
	case "verbs/soft":
		return []judge{own(dir), own("."), own("test/api"), sim, transport}
	}
	return []judge{own(dir)}
}

// bench builds and runs tests.
type bench struct {
	root  string
	tmp   string
	usual map[string]time.Duration // how long a judge takes where nothing is planted
	// rehearsed has the judges whose tests pass with the mutants built in and none of them chosen.
	rehearsed map[string]bool
}

func newBench(root, tmp string) bench {
	return bench{root, tmp, make(map[string]time.Duration), make(map[string]bool)}
}

// binary is where the tests of a judge are built.
func (b *bench) binary(j judge) string {
	return filepath.Join(b.tmp, strings.ReplaceAll(j.dir+j.tags, "/", "_")+".test")
}

// forget removes what was built.
func (b *bench) forget() error {
	b.rehearsed = make(map[string]bool)
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

// rehearse runs the tests of a judge once without a mutant: they must pass. A second try is given
// to those that a busy machine disturbed.
func (b *bench) rehearse(j judge) error {
	key := b.key(j)
	if b.rehearsed[key] {
		return nil
	}
	b.rehearsed[key] = true
	found := b.run(j, 0)
	if found != "" {
		found = b.run(j, 0)
	}
	if found != "" {
		return fmt.Errorf("fails without a mutant: %s", found)
	}
	return nil
}

// key names a judge.
func (b *bench) key(j judge) string { return b.binary(j) + strings.Join(j.args, " ") }
