package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"ibverbx/test/internal/hunt"
)

// bench builds tests with a batch of mutants, once, and runs them.
type bench struct {
	root, tmp string
	*batch
	files    map[string]string
	patience map[string]time.Duration // how long the tests of a judge may take; 0: they judge nothing
}

// unknown is how long tests may take that have not run without a mutant.
const unknown = 3 * time.Minute

// verdict is how a mutant is found, "" when it survives.
func (b *bench) verdict(m *mutant, judges []judge) (string, error) {
	for _, j := range judges {
		bin := filepath.Join(b.tmp, strings.ReplaceAll(j.dir+j.tags, "/", "_")+".test")
		if _, err := os.Stat(bin); err != nil {
			if err := hunt.Build(bin, b.root, j.dir, b.files, "-vet=off", "-tags", j.tags); err != nil {
				return "", err
			}
		}
		patience := b.rehearse(j, bin)
		if patience == 0 {
			continue
		}
		if found := b.run(j, bin, m.id, patience); found != "" {
			return found, nil
		}
	}
	return "", nil
}

// rehearse runs the tests of a judge once without a mutant, and twice if a busy machine may have
// disturbed them. It returns how long they may take with one, or 0: those that fail judge nothing.
func (b *bench) rehearse(j judge, bin string) time.Duration {
	if b.alone {
		return unknown
	}
	key := bin + strings.Join(j.args, " ")
	if patience, known := b.patience[key]; known {
		return patience
	}
	failed := ""
	for range 2 {
		start := time.Now()
		if failed = b.run(j, bin, 0, unknown); failed == "" {
			b.patience[key] = 8*time.Second + 3*time.Since(start)
			return b.patience[key]
		}
	}
	fmt.Fprintln(os.Stderr, "judges nothing, because it fails without a mutant:", failed)
	b.patience[key] = 0
	return 0
}

// limit is the address space that a test may use: a mutant may allocate for ever.
const limit = "8388608" // KiB

// run runs the tests of a judge with a mutant, or with none if id is 0. It returns how they fail,
// or "".
func (b *bench) run(j judge, bin string, id int, patience time.Duration) (found string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+10*time.Second)
	defer cancel()
	args := append([]string{"-c", "ulimit -v " + limit + `; exec "$0" "$@"`, bin, "-test.failfast",
		"-test.timeout", patience.String()}, j.args...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir = filepath.Join(b.root, j.dir)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", fmt.Sprintf("%s=%d", chosen, id))
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
