//go:build unix

package jobtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Limit is how long a job may take on a busy machine, where an idle one takes a second or two. It
// is far less than TCP takes to give up on a connection.
const Limit = 3 * time.Minute

// EachRank runs a job without a launcher. Its processes run this test binary, whose TestMain calls
// [Main]; env returns the environment of each. EachRank checks how they end.
func EachRank(t *testing.T, phase string, env func(rank int) []string) {
	t.Helper()
	all := StartAll(t, phase, env)
	for rank, p := range all {
		code := p.Wait(t)
		switch {
		case strings.HasSuffix(phase, fmt.Sprint(":", rank)):
			if code != -1 { // killed
				t.Errorf("rank %d: exit %d\n%s", rank, code, p.Out.String())
			}
		case code != 0:
			t.Errorf("rank %d: exit %d\n%s", rank, code, p.Out.String())
		}
	}
	if n := all[0].Named(t); phase != ":" && n != Size-1 {
		t.Errorf("%d processes name rank %s", n, phase)
	}
}

// StartAll starts the processes of a job without a launcher, which run this test binary; env
// returns the environment of each.
func StartAll(t *testing.T, phase string, env func(i int) []string) (all [Size]*Process) {
	t.Helper()
	marks := t.TempDir()
	for i := range all {
		all[i] = start(t, phase, marks, env(i), Self(t))
	}
	return all
}

// Process is a running process.
type Process struct {
	Out bytes.Buffer // its output, once it has ended

	cmd   *exec.Cmd
	marks string
}

// Start starts a launcher, whose children are the processes of a job.
func Start(t *testing.T, phase string, env []string, name string, args ...string) *Process {
	t.Helper()
	return start(t, phase, t.TempDir(), env, name, args...)
}

func start(t *testing.T, phase, marks string, env []string, name string, args ...string) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	t.Cleanup(cancel)
	p := &Process{cmd: exec.CommandContext(ctx, name, args...), marks: marks}
	p.cmd.Env = append(append(os.Environ(), Env+"="+phase+":"+marks), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.Out, &p.Out
	// A launcher that is terminated terminates its children.
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Wait waits for the process and returns its exit code, or -1 if it was killed.
func (p *Process) Wait(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Named returns how many processes of the job have ended because the job named the victim. It does
// not depend on what a launcher passes on of their output: srun loses some of it on a busy machine.
func (p *Process) Named(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.marks, named+".*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Self returns the path of the test binary.
func Self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
