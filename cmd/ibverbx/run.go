package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"ibverbx/cmd/ibverbx/internal/launch"
)

type runCmd struct {
	Processes int           `short:"n" required:"" placeholder:"N" help:"How many processes, 1 to 4096."`
	Grace     time.Duration `default:"5s" placeholder:"TIME" help:"Time from SIGTERM to SIGKILL. [${default}]"`
	Plain     bool          `help:"Write lines unchanged, without the rank before them."`
	Continue  bool          `help:"Let the other processes go on when one fails."`

	Program []string `arg:"" passthrough:"" placeholder:"PROGRAM" help:"The program, and its arguments."`
}

// exitError ends the command with a code, and reports why unless that was reported.
type exitError struct {
	code int
	why  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.why) }

// Run runs the job.
func (f *runCmd) Run(c *console) error {
	program := f.Program
	if len(program) > 0 && program[0] == "--" {
		program = program[1:]
	}
	switch {
	case f.Processes < 1 || f.Processes > 4096:
		return usage("--processes %d: must be 1 to 4096", f.Processes)
	case f.Grace < 0:
		return usage("--grace %v: must not be negative", f.Grace)
	case len(program) == 0:
		return usage("no program: ibverbx run -n 4 PROGRAM ARGS")
	case strings.HasPrefix(f.Program[0], "-") && f.Program[0] != "--":
		return usage("unknown flag %s; a program of this name is behind --", f.Program[0])
	case program[0] == "": // as env and timeout do
		return &exitError{exitMissing, errors.New("the program's name is empty")}
	}
	j := launch.Job{N: f.Processes, Program: program[0], Args: program[1:], Stdout: c.out, Stderr: c.err,
		Grace: f.Grace, Plain: f.Plain, Continue: f.Continue,
		Report: func(words string) { c.complain("ibverbx: %s\n", words) }}
	err := j.Run()
	var failed *launch.FailedError
	switch {
	case errors.As(err, &failed): // which was reported
		return &exitError{failed.Code, nil}
	case errors.Is(err, syscall.EPIPE):
		return &exitError{exitBroken, errors.New("nobody reads the output any more, so the processes were " +
			"ended")}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EISDIR):
		return &exitError{exitNotExecutable, err}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return &exitError{exitMissing, err}
	}
	return err
}
