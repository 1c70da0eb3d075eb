//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell is a job of processes that run a script of sh.
type shell struct {
	out, errs bytes.Buffer
	cmd       *exec.Cmd
}

// newShell is the command as a user calls it: a process of its own.
func newShell(t *testing.T, args ...string) *shell {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{cmd: exec.CommandContext(t.Context(), self, append([]string{"run"}, args...)...)}
	s.cmd.Env = append(os.Environ(), asCommand+"=1")
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.errs
	return s
}

// startShell starts it.
func startShell(t *testing.T, args ...string) *shell {
	t.Helper()
	s := newShell(t, args...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// wait returns the exit code, and the lines of stdout in order.
func (s *shell) wait(t *testing.T) (code int, lines []string) {
	t.Helper()
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines = strings.Split(strings.TrimSpace(s.out.String()), "\n")
	slices.Sort(lines)
	return s.cmd.ProcessState.ExitCode(), lines
}

// TestRun shows what processes of a job find, and what becomes of their output and arguments.
func TestRun(t *testing.T) {
	s := startShell(t, "-n", "3", "sh", "-c",
		`echo "$IBVERBX_RANK of $IBVERBX_SIZE: $@"; printf unfinished; echo odd >&2; cat`, "sh", "-n", "-3",
		"--help")
	code, lines := s.wait(t)
	want := []string{"[0] 0 of 3: -n -3 --help", "[0] unfinished", "[1] 1 of 3: -n -3 --help",
		"[1] unfinished",
		"[2] 2 of 3: -n -3 --help", "[2] unfinished"}
	if code != exitOK || !slices.Equal(lines, want) {
		t.Errorf("exit %d, got %q", code, lines)
	}
	errs := strings.Fields(s.errs.String())
	if slices.Sort(errs); strings.Join(errs, " ") != "[0] [1] [2] odd odd odd" {
		t.Errorf("stderr %q", s.errs.String())
	}

	s = startShell(t, "-n", "2", "--plain", "--", "sh", "-c", `echo "$IBVERBX_ADDRESS $IBVERBX_JOB"`)
	if code, lines = s.wait(t); code != exitOK || len(lines) != 2 || lines[0] != lines[1] ||
		!strings.HasPrefix(lines[0], "127.0.0.1:") {
		t.Errorf("exit %d, address and job %q", code, lines)
	}
}

// TestRunFailure shows that a process that fails ends the others, also what these have started and
// what takes no SIGTERM, and gives the exit code.
func TestRunFailure(t *testing.T) {
	t.Parallel() // most of the time it waits
	for name, test := range map[string]struct {
		script string
		code   int
		say    string
	}{
		"exit code": {`[ $IBVERBX_RANK = 1 ] && exit 7; sleep 60 & wait`, 7, "rank 1 (pid "},
		"killed":    {`[ $IBVERBX_RANK = 2 ] && kill -9 $$; sleep 60 & wait`, 137, "rank 2 (pid "},
		"no SIGTERM": {`trap "echo deaf" TERM; [ $IBVERBX_RANK = 0 ] && exit 5; while :; do sleep 0.05; done`,
			5,
			"rank 0 (pid "},
		"all at the end": {`exit 4`, 4, "exit status 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			s := startShell(t, "-n", "3", "--grace", "300ms", "sh", "-c", test.script)
			code, lines := s.wait(t)
			if code != test.code || !strings.Contains(s.errs.String(), test.say) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d and %q", code, lines, s.errs.String(),
					test.code,
					test.say)
			}
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("ended after %v", d)
			}
		})
	}
}

// TestRunSignals shows that signals reach the processes, once each, and that the job ends by them.
func TestRunSignals(t *testing.T) {
	t.Parallel() // most of the time it waits
	for name, test := range map[string]struct {
		signals []syscall.Signal
		script  string
		code    int
		line    string
	}{
		"taken": {[]syscall.Signal{syscall.SIGINT},
			`trap "echo caught; exit 0" INT; echo ready; while :; do sleep 0.02; done`, 0, "[1] caught"},
		"not taken": {[]syscall.Signal{syscall.SIGTERM}, `echo ready; while :; do sleep 0.02; done`,
			128 + int(syscall.SIGTERM), "[1] ready"},
		"user's": {[]syscall.Signal{syscall.SIGUSR1},
			`trap "echo caught; exit 0" USR1; echo ready; while :; do sleep 0.02; done`, 0, "[0] caught"},
		"ignored": {[]syscall.Signal{syscall.SIGINT},
			`trap "" INT; echo ready; while :; do sleep 0.02; done`, 137, "[0] ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready := make(chan struct{})
			s := newShell(t, "-n", "2", "--grace", "1s", "sh", "-c", test.script)
			s.cmd.Stdout = &readiness{s: s, n: 2, ready: ready}
			if err := s.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-ready
			for _, n := range test.signals {
				if err := s.cmd.Process.Signal(n); err != nil {
					t.Fatal(err)
				}
			}
			code, lines := s.wait(t)
			if code != test.code || !slices.Contains(lines, test.line) {
				t.Errorf("exit %d, stdout %q, stderr %q", code, lines, s.errs.String())
			}
			if n := strings.Count(s.out.String(), "[1] caught"); n > 1 {
				t.Errorf("caught %d times", n)
			}
		})
	}
}

// readiness waits for lines that say ready.
type readiness struct {
	s     *shell
	n     int
	ready chan struct{}
}

func (r *readiness) Write(b []byte) (int, error) {
	before := strings.Count(r.s.out.String(), "ready")
	r.s.out.Write(b)
	if before < r.n && strings.Count(r.s.out.String(), "ready") >= r.n {
		close(r.ready)
	}
	return len(b), nil
}

// TestRunOutputIsLost shows that the job ends when its output cannot be written, and that no
// process is blamed.
func TestRunOutputIsLost(t *testing.T) {
	t.Parallel() // most of the time it waits
	const script = `echo a; sleep 0.3; echo b; sleep 60 & wait`
	t.Run("nobody reads", func(t *testing.T) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := newShell(t, "-n", "2", "sh", "-c", script)
		s.cmd.Stdout = write
		if err := s.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = write.Close()
		if _, err := read.Read(make([]byte, 100)); err != nil {
			t.Error(err)
		}
		_ = read.Close()
		code, _ := s.wait(t)
		if got := s.errs.String(); code != exitBroken || !strings.Contains(got, "nobody reads the output") ||
			strings.Contains(got, "rank") {
			t.Errorf("exit %d, stderr %q", code, got)
		}
	})
	t.Run("the disk is full", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer full.Close()
		s := newShell(t, "-n", "2", "sh", "-c", script)
		s.cmd.Stdout = full
		if err := s.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		code, _ := s.wait(t)
		if got := s.errs.String(); code != exitFailed || !strings.Contains(got, "no space left on device") ||
			strings.Contains(got, "rank") {
			t.Errorf("exit %d, stderr %q", code, got)
		}
	})
}

// TestRunPlain shows that nothing is added to plain output, however long its lines are.
func TestRunPlain(t *testing.T) {
	s := startShell(t, "--plain", "-n", "1", "sh", "-c", `head -c 200000 /dev/zero | tr '\0' x; printf end`)
	code, _ := s.wait(t)
	if want := strings.Repeat("x", 200_000) + "end"; code != exitOK || s.out.String() != want {
		t.Errorf("exit %d, %d bytes", code, s.out.Len())
	}
}

// TestRunEndsRank0Last shows that the others are asked to end before rank 0 is, which they know. On
// a busy machine rank 1 may hear of it late: one of several attempts has to show it.
func TestRunEndsRank0Last(t *testing.T) {
	var ahead time.Duration
	for try := 0; try < 5 && ahead < 50*time.Millisecond; try++ {
		ahead = rank1EndsAhead(t)
	}
	if ahead < 50*time.Millisecond {
		t.Errorf("rank 1 was ended %v before rank 0", ahead)
	}
}

// rank1EndsAhead is how long before rank 0 rank 1 is asked to end, where rank 2 fails once both are
// ready for it.
func rank1EndsAhead(t *testing.T) time.Duration {
	t.Helper()
	s := startShell(t, "-n", "3", "sh", "-c", `cd "$0"
		[ $IBVERBX_RANK = 2 ] && { while ! [ -e 0 -a -e 1 ]; do sleep 0.01; done; exit 3; }
		trap 'date +%s%N; exit 0' TERM; : >$IBVERBX_RANK; while :; do sleep 0.01; done`, t.TempDir())
	code, lines := s.wait(t)
	var at [2]int64
	for _, l := range lines {
		var rank int
		var ns int64
		if _, err := fmt.Sscanf(l, "[%d] %d", &rank, &ns); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		at[rank] = ns
	}
	if code != 3 || at[0] == 0 || at[1] == 0 {
		t.Fatalf("exit %d, ended at %v", code, at)
	}
	return time.Duration(at[0] - at[1])
}

// TestRunRefuses shows what cannot be run.
func TestRunRefuses(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		say  string
	}{
		"run":                        {exitUsage, "--processes"},
		"run ls":                     {exitUsage, "--processes"},
		"run -n 2":                   {exitUsage, "<program>"},
		"run -n 2 --":                {exitUsage, "program"},
		"run -n 0 ls":                {exitUsage, "must be 1 to 4096"},
		"run -n -1 ls":               {exitUsage, "--processes -1: must not be negative\n"},
		"run -n 2 /":                 {exitNotExecutable, "is a directory"},
		"run -n 4097 ls":             {exitUsage, "must be 1 to 4096"},
		"run -n 1 --grace=-1s ls":    {exitUsage, "must not be negative"},
		"run -n 2 no-such-program-x": {exitMissing, "no-such-program-x"},
		"run -n 2 /no/such/program":  {exitMissing, "/no/such/program"},
		"run -n 2 " + os.DevNull:     {exitNotExecutable, os.DevNull},
	} {
		if code, _, errs := command(t, args); code != want.code || !strings.Contains(errs, want.say) {
			t.Errorf("ibverbx %s: exit %d, stderr %q", args, code, errs)
		}
	}
	s := startShell(t, "-n", "2", "")
	if code, _ := s.wait(t); code != exitMissing || !strings.Contains(s.errs.String(), "name is empty") {
		t.Errorf("no name: exit %d, stderr %q", code, &s.errs)
	}
}
