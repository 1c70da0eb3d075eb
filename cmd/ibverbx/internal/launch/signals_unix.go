//go:build unix

package launch

import (
	"os"
	"os/exec"
	"syscall"
)

// forwarded are the signals that are forwarded without ending the job.
//
//nolint:gochecknoglobals // a constant
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

// ownGroup starts a process in its own group, so that signals also reach its children, and Ctrl-C
// reaches it once, through this process.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// sendGroup sends a signal to a process and its children. There may be none left.
func sendGroup(cmd *exec.Cmd, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-cmd.Process.Pid, n)
	}
}
