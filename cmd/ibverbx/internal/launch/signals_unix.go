//go:build unix

package launch

import (
	"os"
	"os/exec"
	"syscall"
)

// forwarded are the signals that are forwarded and do not end the job.
//
//nolint:gochecknoglobals // a constant
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

// ownGroup has a process begin a group of its own: signals reach what it starts, too, and Ctrl-C
// reaches it once, through this process.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// sendGroup sends a process, and what it has started, a signal. There may be nobody left.
func sendGroup(cmd *exec.Cmd, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-cmd.Process.Pid, n)
	}
}
