//go:build unix

package jobs_test

import (
	"flag"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/jobtest"
	"ibverbx/internal/tcptest"
)

func TestMain(m *testing.M) {
	jobtest.Main(nil)
	_ = flag.Set("test.parallel", "12") // they mostly wait
	goleak.VerifyTestMain(m)
}

// Processes that `ibverbx run` starts.
func TestRun(t *testing.T) {
	t.Parallel()
	command := filepath.Join(t.TempDir(), "ibverbx")
	build := exec.Command("go", "build", "-ldflags=-w", "-o", command, "../../cmd/ibverbx")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, phase := range jobtest.Phases() {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			n := strconv.Itoa(jobtest.Size)
			// The processes ignore SIGTERM, and name who has died before they are killed.
			p := jobtest.Start(t, phase, nil, command, "run", "-n", n, "--grace",
				jobtest.Limit.String(), jobtest.Self(t))
			code := p.Wait(t)
			if phase == ":" {
				if code != 0 {
					t.Errorf("exit %d\n%s", code, p.Out.String())
				}
				return
			}
			_, victim, _ := strings.Cut(phase, ":")
			if want := "ibverbx: rank " + victim + " (pid "; code != 137 ||
				!strings.Contains(p.Out.String(), want) {
				t.Errorf("exit %d, want 137 and %q\n%s", code, want, p.Out.String())
			}
			if n := p.Named(t); n != jobtest.Size-1 {
				t.Errorf("%d processes name rank %s\n%s", n, victim, p.Out.String())
			}
		})
	}
}

// Pods of a Kubernetes indexed job.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	for _, phase := range jobtest.Phases() {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			address := tcptest.FreeAddr(t).String()
			jobtest.EachRank(t, phase, func(rank int) []string {
				return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", rank),
					fmt.Sprint("IBVERBX_SIZE=", jobtest.Size), "IBVERBX_ADDRESS=" + address,
					"IBVERBX_JOB=5b5e0ad2-6b3f-4f7c-8f31-3d6f2ad1b6c0"}
			})
		})
	}
}

// Workers of torchrun, whose agent listens at MASTER_PORT itself.
func TestTorchrun(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{":", jobtest.InBarrier + ":2"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			addr := tcptest.FreeAddr(t)
			agent, err := net.Listen("tcp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer agent.Close()
			jobtest.EachRank(t, phase, func(rank int) []string {
				return []string{fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", jobtest.Size),
					"MASTER_ADDR=" + addr.Addr().String(), fmt.Sprint("MASTER_PORT=", addr.Port()),
					"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=none",
					"TORCHELASTIC_RESTART_COUNT=0"}
			})
		})
	}
}
