package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/jobtest"
)

// Pods of a Kubernetes job, which nobody has told where rank 0 is, find each other by etcd. One of
// them is killed in each phase; nothing of them stays there.
func TestJobs(t *testing.T) {
	t.Parallel()
	server := running(t)
	for _, phase := range jobtest.Phases() {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			name := strings.ReplaceAll("phase-"+phase, ":", "-")
			jobtest.EachRank(t, phase, func(rank int) []string {
				return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", rank),
					fmt.Sprint("IBVERBX_SIZE=", jobtest.Size), "IBVERBX_JOB=" + name,
					endpointEnv + "=" + server.addr}
			})
			vanishes(t, server, "/ibverbx/job/"+name)
		})
	}
}

// Processes that etcd gives their ranks.
func TestJobsOfRanks(t *testing.T) {
	t.Parallel()
	server := running(t)
	for _, phase := range []string{":", jobtest.InBarrier + ":2"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			name := strings.ReplaceAll("ranks-"+phase, ":", "-")
			all := jobtest.StartAll(t, phase, func(int) []string {
				return []string{ranksEnv + "=" + name, endpointEnv + "=" + server.addr}
			})
			killed, ranks := 0, ""
			for _, p := range all {
				switch code := p.Wait(t); code {
				case 0:
				case -1:
					killed++
				default:
					t.Errorf("exit %d\n%s", code, p.Out.String())
				}
				ranks += p.Out.String()
			}
			for rank := range all {
				if strings.Count(ranks, fmt.Sprintf("rank %d\n", rank)) != 1 {
					t.Errorf("rank %d was not given to one process:\n%s", rank, ranks)
				}
			}
			wantNamed, wantKilled := 0, 0
			if phase != ":" {
				wantNamed, wantKilled = jobtest.Size-1, 1
			}
			if named := all[0].Named(t); named != wantNamed || killed != wantKilled {
				t.Errorf("%d were killed, and %d name it", killed, named)
			}
			vanishes(t, server, "/ibverbx/job/"+name)
			vanishes(t, server, "/ibverbx/rank/"+name)
		})
	}
}

// vanishes waits until etcd has no key of a job.
func vanishes(t *testing.T, server *server, prefix string) {
	t.Helper()
	var left []string
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = keys(t, server, prefix); len(left) == 0 {
			return
		}
	}
	t.Errorf("%q stay", left)
}
