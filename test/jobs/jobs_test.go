//go:build unix

package jobs_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/internal/tcptest"
)

func TestMain(m *testing.M) {
	if task, member := os.LookupEnv(memberEnv); member {
		if err := runMember(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// phases are those in which a process is killed, with its rank.
var phases = []string{":", atStart + ":2", inJoin + ":1", inGather + ":2", inGather + ":0", inBarrier + ":2",
	inStore + ":2", inReduce + ":2", inReduce + ":0"}

// limit is how long a job may take on a busy machine: far less than any timeout of TCP.
const limit = 10 * time.Second

// Processes that `ibverbx run` starts.
func TestRun(t *testing.T) {
	command := filepath.Join(t.TempDir(), "ibverbx")
	build := exec.Command("go", "build", "-o", command, "../../cmd/ibverbx")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			p := start(t, phase, nil, command, "run", "-n", strconv.Itoa(size), self(t))
			code := p.wait(t)
			if phase == ":" {
				if code != 0 {
					t.Errorf("exit %d\n%s", code, p.out.String())
				}
				return
			}
			_, victim, _ := strings.Cut(phase, ":")
			if want := "ibverbx: rank " + victim + " (pid "; code != 137 ||
				!strings.Contains(p.out.String(), want) {
				t.Errorf("exit %d, want 137 and %q\n%s", code, want, p.out.String())
			}
			if n := strings.Count(p.out.String(), "] named\n"); n != size-1 {
				t.Errorf("%d processes name rank %s\n%s", n, victim, p.out.String())
			}
		})
	}
}

// Pods of a Kubernetes indexed job.
func TestKubernetes(t *testing.T) {
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			address := tcptest.FreeAddr(t).String()
			eachRank(t, phase, func(rank int) []string {
				return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", rank), fmt.Sprint("IBVERBX_SIZE=", size),
					"IBVERBX_ADDRESS=" + address, "IBVERBX_JOB=5b5e0ad2-6b3f-4f7c-8f31-3d6f2ad1b6c0"}
			})
		})
	}
}

// Workers of torchrun, whose agent listens at MASTER_PORT itself.
func TestTorchrun(t *testing.T) {
	for _, phase := range []string{":", inBarrier + ":2"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			addr := tcptest.FreeAddr(t)
			agent, err := net.Listen("tcp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer agent.Close()
			eachRank(t, phase, func(rank int) []string {
				return []string{fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR=" +
					addr.Addr().String(), fmt.Sprint("MASTER_PORT=", addr.Port()),
					"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=none",
					"TORCHELASTIC_RESTART_COUNT=0"}
			})
		})
	}
}

// eachRank runs a job without a launcher.
func eachRank(t *testing.T, phase string, env func(rank int) []string) {
	t.Helper()
	var all [size]*process
	for rank := range all {
		all[rank] = start(t, phase, env(rank), self(t))
	}
	for rank, p := range all {
		code := p.wait(t)
		switch {
		case strings.HasSuffix(phase, fmt.Sprint(":", rank)):
			if code != -1 { // killed
				t.Errorf("rank %d: exit %d\n%s", rank, code, p.out.String())
			}
		case code != 0 || phase != ":" && p.out.String() != "named\n":
			t.Errorf("rank %d: exit %d\n%s", rank, code, p.out.String())
		}
	}
}

// process is a process under way.
type process struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// start starts a process; what it starts are members.
func start(t *testing.T, phase string, env []string, name string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Env = append(append(os.Environ(), memberEnv+"="+phase), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// wait returns its exit code; -1 if it was killed.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
