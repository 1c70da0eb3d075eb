//go:build !unix

package launch

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
)

// terminate asks a process to end. There is nothing milder here.
var terminate = os.Kill //nolint:gochecknoglobals // a constant elsewhere

// Signals are those that are forwarded, until stop is called.
func Signals() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, os.Interrupt)
	return c, func() { signal.Stop(c) }
}

// ends reports whether a signal asks to end.
func ends(os.Signal) bool { return true }

// ownGroup does nothing: there are no groups.
func ownGroup(*exec.Cmd) {}

// sendGroup ends a process.
func sendGroup(cmd *exec.Cmd, _ os.Signal) { _ = cmd.Process.Kill() }

// killedBy is the number of the signal that has ended a process.
func killedBy(*os.ProcessState) int { return 9 }

// Broken reports whether output could not be written because its reader has gone.
func Broken(err error) bool { return errors.Is(err, io.ErrClosedPipe) }

// NotExecutable reports whether an error says that there is such a file, which is no program.
func NotExecutable(err error) bool { return errors.Is(err, os.ErrPermission) }

// Missing reports whether an error says that there is no such program.
func Missing(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}
