package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// asCommand has the test binary be the command.
const asCommand = "IBVERBX_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		if err := os.Unsetenv(asCommand); err != nil {
			panic(err)
		}
		main()
	}
	if how := os.Getenv(asMember); how != "" {
		os.Exit(beMember(how))
	}
	_ = flag.Set("test.parallel", "8") // those that run side by side mostly wait
	fabric := addTestProviders()
	code := m.Run()
	err := fabric.Close() // nothing may be open on it
	if code == 0 && err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// command runs the command with args, split at spaces.
func command(t *testing.T, args string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(&console{ctx: t.Context(), out: &stdout, err: &stderr}, strings.Fields(args))
	return code, stdout.String(), stderr.String()
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"":             "perf",
		"--help":       "devices",
		"perf --help":  "ibverbx perf --fault kill-qp ",
		"devices -h":   "--provider",
		"perf -h":      "decides what is measured",
		"perf -n 3 -h": "link-flap",
		"perf  -h":     "4 GiB of memory, most of it pinned",
		"perf    -h":   "for [20ms]",
		"perf     -h":  "link-flap",
		"perf -b -h":   "transport  fetch-add",
		"perf -a -h":   "--layer shmem is measured in one process only",
		"help":         "devices",
		"help devices": "--provider",
		"perf -s 8 -h": "--mode lat\n          active messages\n",
		"perf   -h":    "--iters and --tx-depth count messages over all queue pairs",
	} {
		code, out, errs := command(t, args)
		folded := strings.Join(strings.Fields(out), " ")
		if code != exitOK || !strings.Contains(out, want) && !strings.Contains(folded, want) || errs != "" {
			t.Errorf("ibverbx %s: exit %d, stderr %q, stdout without %q:\n%s", args, code, errs, want, out)
		}
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := command(t, "-V"); code != exitOK || !strings.HasPrefix(out, "ibverbx ") {
		t.Errorf("exit %d, stdout %q", code, out)
	}
}

// TestHelpToNobody shows that a full disk is no mistake in the flags, and not taken for success.
func TestHelpToNobody(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range []string{"", "--help", "-V", "perf --version", "perf --help", "help", "help run"} {
		var errs bytes.Buffer
		code := run(&console{ctx: t.Context(), out: full, err: &errs}, strings.Fields(args))
		if code != exitFailed || errs.String() != "ibverbx: write /dev/full: no space left on device\n" {
			t.Errorf("ibverbx %s: exit %d, stderr %q", args, code, errs.String())
		}
	}
}
