package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRunIsKilled shows that no process of a job outlives this command, even where it is killed.
func TestRunIsKilled(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DIR", dir)
	s := startShell(t, "-n", "3", "sh", "-c", `echo $$ >"$DIR/new$IBVERBX_RANK"
mv "$DIR/new$IBVERBX_RANK" "$DIR/$IBVERBX_RANK"; exec sleep 60`)
	var pids []string
	for rank := range 3 {
		name := filepath.Join(dir, fmt.Sprint(rank))
		eventually(t, name+" is there", func() bool {
			pid, err := os.ReadFile(name)
			if err == nil {
				pids = append(pids, strings.TrimSpace(string(pid)))
			}
			return err == nil
		})
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // it was killed
	for _, pid := range pids {
		eventually(t, "process "+pid+" has ended", func() bool {
			stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

// TestRunBeyondLimits shows which limit keeps processes from being started.
func TestRunBeyondLimits(t *testing.T) {
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Skip(err)
	}
	s := newShell(t, "-n", "64", "sleep", "60")
	s.cmd.Path, s.cmd.Args = prlimit, append([]string{prlimit, "--nofile=24"}, s.cmd.Args...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const want = "too many open files: each process takes three descriptors here: raise the limit"
	if code, _ := s.wait(t); code != exitFailed || !strings.Contains(s.errs.String(), want) {
		t.Errorf("exit %d, stderr %q", code, &s.errs)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after 10 s: %s", what)
		}
	}
}
