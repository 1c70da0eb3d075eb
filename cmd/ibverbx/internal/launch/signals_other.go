//go:build !unix

package launch

import (
	"os"
	"os/exec"
)

// forwarded are the signals that are forwarded without ending the job: there are none here.
//
//nolint:gochecknoglobals // a constant
var forwarded []os.Signal

// ownGroup does nothing: there are no groups.
func ownGroup(*exec.Cmd) {}

// sendGroup ends a process: there is nothing milder.
func sendGroup(cmd *exec.Cmd, _ os.Signal) { _ = cmd.Process.Kill() }
