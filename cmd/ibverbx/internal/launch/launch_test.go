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
