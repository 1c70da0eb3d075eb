//go:build unix

package launch

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// terminate asks a process to end.
const terminate = syscall.SIGTERM

// Signals are those that are forwarded, until stop is called.
func Signals() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	// A pipe whose reader has gone is an error of a write, and does not end this process.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return c, func() { signal.Stop(c); signal.Stop(pipe) }
}

// ends reports whether a signal asks to end.
func ends(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// ownGroup has a process begin a group of its own: signals reach what it starts, too, and Ctrl-C
// reaches it once, through this process.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// sendGroup sends a process, and what it has started, a signal. There may be nobody left.
func sendGroup(cmd *exec.Cmd, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-cmd.Process.Pid, n)
	}
}

// killedBy is the number of the signal that has ended a process.
func killedBy(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return int(status.Signal())
	}
	return 0
}

// Broken reports whether output could not be written because its reader has gone.
func Broken(err error) bool { return errors.Is(err, syscall.EPIPE) }

// NotExecutable reports whether an error says that there is such a file, which is no program.
func NotExecutable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC)
}

// Missing reports whether an error says that there is no such program.
func Missing(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT)
}
