//go:build unix

package launch

import (
	"errors"
	"os"
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

// TestBlame: a process that gives up because it has met another one's death may say so before the
// job learns of the death. The one that was killed is the cause.
func TestBlame(t *testing.T) {
	gaveUp, killed := &FailedError{Rank: 1, Code: 1, How: "exit status 1"}, &FailedError{Rank: 2, Code: 137,
		How: "signal: killed"}
	for _, c := range []struct {
		code string
		rank int
		want *FailedError
	}{{"failed", 1, killed}, {"mismatch", 1, gaveUp}, {"died", 2, killed}, {"failed", 2, killed}} {
		r := &running{cmds: make([]*exec.Cmd, 3), failed: []*FailedError{gaveUp, killed},
			verdicts: make(chan verdict, 1)}
		for i := range r.cmds {
			r.cmds[i] = &exec.Cmd{Process: &os.Process{Pid: 100 + i}}
		}
		r.verdicts <- verdict{Rank: &c.rank, Code: c.code, Text: "it says why"}
		if got, words := r.blame(); got != c.want || !strings.Contains(words, c.want.Error()) {
			t.Errorf("%s %d: %v, %q", c.code, c.rank, got, words)
		}
	}
}
