//go:build unix

package launch

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestKilledAfterAnotherFailed: of several failures that come together one by a signal is the
// cause, also where another one comes first.
func TestKilledAfterAnotherFailed(t *testing.T) {
	said := ""
	r := &running{job: &Job{N: 2, Report: func(words string) { said = words }}, ended: make(chan ended, 2)}
	for rank, script := range []string{"exit 3", "kill -SEGV $$"} {
		cmd := exec.Command("sh", "-c", script)
		ownGroup(cmd)
		r.ended <- ended{rank, cmd.Run()}
		r.cmds = append(r.cmds, cmd)
		r.live++
	}
	var failed *FailedError
	if err := r.supervise(); !errors.As(err, &failed) || failed.Rank != 1 || failed.Code != 139 ||
		!strings.Contains(said, "rank 1 (pid ") {
		t.Errorf("%v, said %q", err, said)
	}
}

// TestMissingBefore: a report that a process is missing counts if it comes after the end of that
// process, because in the meantime the process may have joined.
func TestMissingBefore(t *testing.T) {
	cmd := exec.Command("true")
	ownGroup(cmd)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	for range 50 { // both channels are ready, and either may be first
		r := &running{job: &Job{N: 2, Report: func(string) {}}, cmds: []*exec.Cmd{cmd, cmd}, live: 2,
			ended: make(chan ended, 2), absences: make(chan verdict, 1)}
		r.absences <- verdict{Missing: []int{1, 2}}
		r.ended <- ended{rank: 1}
		r.ended <- ended{rank: 0}
		if err := r.supervise(); err != nil {
			t.Fatal(err)
		}
	}
}
