package processes_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// memberEnv holds the task of a member. A test binary that finds it set is that member.
const memberEnv = "IBVERBX_TEST_MEMBER"

func TestMain(m *testing.M) {
	if job := os.Getenv(memberEnv); job != "" {
		if err := runAsProcess(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "4") // they mostly wait
	goleak.VerifyTestMain(m)
}

// programs are what members run, by the names that tests give to a team.
var programs = map[string]program{
	"messages":      messages,
	"puts and gets": putsAndGets,
	"fence":         fence,
	"killed":        killed,
	"early":         early,
	"lengths":       lengths,
	"tagged killed": taggedKilled,
	"histogram":     asPE(histogram),
	"signal":        asPE(signal),
	"shmem killed":  asPE(shmemKilled),

	"rendezvous":        meeting,
	"rendezvous killed": meetingKilled,
}
