// Package processes_test runs programs on packages transport, tagged, shmem and rendezvous between
// processes, as they are used: every member of a team is a process with memory and NICs of its own,
// which knows of the others only what their cards say. The test binary starts itself for each
// member. They run over sockets of the loopback interface (roce), and, with -provider rdmacore,
// over the host's NICs. Software NICs do not reach beyond their process: with those, members are
// goroutines. By default every test runs over soft and over roce.
//
//	a test ──► team.run ──► member 0, 1, 2, ...: processes, or goroutines
//	               │              │    │
//	               │              └────┴── NICs: endpoints of the package under test
//	               └── table: a directory in which each leaves a card, and finds those of all
//
// A member that fails ends the team and fails the test, with the output of that member. A test may
// want one to die: it kills itself (SIGKILL) at work, or, as a goroutine, loses its NICs.
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
	_ = flag.Set("test.parallel", "16") // they mostly wait
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
