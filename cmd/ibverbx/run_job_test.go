//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/shmem"
)

// asMember has the test binary be one of two processes of a job, of which rank 1 does as its value
// says.
const asMember = "IBVERBX_TEST_AS_MEMBER"

// The ways in which rank 1 keeps rank 0 waiting.
const (
	isStopped = "is stopped"
	isLate    = "is late"
	isLatePE  = "is a late PE"
	leaves    = "leaves"
	exits     = "exits"
	dies      = "dies"
)

// staysAway has the rank that is named behind it end at once, and well.
const staysAway = "stays away: "

// beMember is such a process. It returns its exit code.
func beMember(how string) int {
	if how == staysAway+os.Getenv(job.EnvRank) {
		return 0
	}
	j, err := job.Join(context.Background(), job.Config{Patience: time.Second})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	ctx := context.Background()
	if how == isLatePE {
		j.Fail(bePE(ctx, j))
		return 3
	}
	switch {
	case j.Rank() == 0 && how == isLate:
		_ = untilLate(ctx, j.Barrier, func(err error) bool { return errors.Is(err, job.ErrAbsent) })
		return 3
	case j.Rank() == 0:
	case how == isStopped:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Hour) // a process goes on for a moment until all of its threads are stopped
	case how == exits:
		os.Exit(0)
	case how == dies:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case how == leaves:
		_ = j.Close()
		time.Sleep(time.Hour)
	default:
		time.Sleep(time.Hour)
	}
	err = j.Barrier(ctx)
	switch {
	case err != nil && how == dies:
		time.Sleep(time.Second) // ten times what passes until the others are ended
		fmt.Println("goes on")
		return 0
	case err != nil:
		return 3
	}
	return 0
}

// bePE has the process be a PE. PE 1 never enters a barrier.
func bePE(ctx context.Context, j *job.Job) error {
	host, err := nics.Open(nics.Config{})
	if err != nil {
		return err
	}
	devices, err := host.Reaching(j)
	if err != nil {
		return err
	}
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		return err
	}
	pe, err := shmem.Join(ctx, dom, shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather})
	if err != nil {
		return err
	}
	if pe.Rank() == 1 {
		time.Sleep(time.Hour)
	}
	return untilLate(ctx, pe.Barrier, func(err error) bool {
		var late interface{ Late() ([]int, int) }
		return errors.As(err, &late)
	})
}

// startMembers starts such processes, which do as how says.
func startMembers(t *testing.T, how string, args ...string) *shell {
	t.Helper()
	s := newShell(t, args...)
	s.cmd.Args = append(s.cmd.Args, s.cmd.Path)
	s.cmd.Env = append(s.cmd.Env, asMember+"="+how)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// untilLate makes a call whose deadline passes, again if it has passed before the call began.
func untilLate(ctx context.Context, call func(context.Context) error, late func(error) bool) error {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		limited, cancel := context.WithTimeout(ctx, wait)
		err := call(limited)
		cancel()
		if late(err) || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// TestRunNamesWhomTheJobNames shows that the process is named which the job names, where another
// one fails because of it.
func TestRunNamesWhomTheJobNames(t *testing.T) {
	t.Parallel() // most of the time it waits
	for how, say := range map[string]string{
		isStopped: "the process has died: it has not answered for 1s; the first to end is rank 0 (pid ",
		isLate:    "it has not entered barrier 1; rank 0 (",
		isLatePE:  "it has kept rank 0 (",
		leaves:    "the process has left the job ",
		exits:     "ended with exit status 0 without leaving the job (job.Close)",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := startMembers(t, how, "-n", "2", "--grace", "100ms")
			code, _ := s.wait(t)
			_, named, _ := strings.Cut(s.errs.String(), "ibverbx: rank 1 (pid ")
			end := "exit status 3; the others are ended\n"
			if how == exits { // there is no other
				end = "exit status 3\n"
			}
			if code != 3 || !strings.Contains(named, "): "+say) ||
				!strings.HasSuffix(named, end) {
				t.Errorf("exit %d, stderr %q", code, s.errs.String())
			}
		})
	}
}

// TestRunContinue shows that with --continue the others outlive one that is killed, whose exit code
// is that of the job.
func TestRunContinue(t *testing.T) {
	t.Parallel() // most of the time it waits
	s := startMembers(t, dies, "-n", "2", "--continue")
	code, lines := s.wait(t)
	if code != 128+int(syscall.SIGKILL) || len(lines) != 1 || lines[0] != "[0] goes on" ||
		!strings.Contains(s.errs.String(), "ibverbx: rank 1 (pid ") {
		t.Errorf("exit %d, %q, stderr %q", code, lines, s.errs.String())
	}
}

// TestRunOfOneThatStaysAway shows that a job ends in which a process has ended well, so that the
// others would wait for it in vain.
func TestRunOfOneThatStaysAway(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, rank := range []string{"0", "1"} {
		t.Run(rank, func(t *testing.T) {
			t.Parallel()
			s := startMembers(t, staysAway+rank, "-n", "3", "--grace", "100ms")
			code, _ := s.wait(t)
			_, named, _ := strings.Cut(s.errs.String(), "ibverbx: rank "+rank+" (pid ")
			if code != exitFailed || !strings.HasSuffix(named, "): ended without an error and without "+
				"joining the job, in which others wait for it; the others are ended\n") {
				t.Errorf("exit %d, stderr %q", code, s.errs.String())
			}
		})
	}
}

// The processes of a job measure between them, and rank 0 prints.
func TestPerfCollectiveInAJob(t *testing.T) {
	t.Parallel() // most of the time it waits
	s := startShell(t, "-n", "2", "--plain", "env", asCommand+"=1", os.Args[0], "perf", "--layer", "shmem",
		"--op", "broadcast", "-s", "8", "-n", "2", "--provider", "roce")
	code, lines := s.wait(t)
	if out := strings.Join(lines, "\n"); code != exitOK || len(lines) != 4 ||
		!strings.Contains(out, "shmem: broadcast of float32 between 2 PEs of a job, over ") {
		t.Errorf("exit %d, %q, %q", code, lines, s.errs.String())
	}
	s = startShell(t, "-n", "2", "env", asCommand+"=1", os.Args[0], "perf", "--layer", "shmem", "--op",
		"broadcast", "--pes", "3")
	if code, _ = s.wait(t); code != exitUsage || !strings.Contains(s.errs.String(), "number of processes") {
		t.Errorf("exit %d, %q", code, s.errs.String())
	}
}
