package processes_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// team is several members that run one program.
type team struct {
	program string
	members int
	nics    int  // of each member; 0 means 1
	qps     int  // of each NIC; 0 means the package's default
	zero    bool // the zero configuration
	rounds  int  // how much to do; what it counts is up to the program
	victim  bool // one of them asks to be killed
}

// realSlow divides the rounds on real NICs, which may be emulated.
const realSlow = 3

// endTimeout is how long members may take to end after their team has.
const endTimeout = 30 * time.Second

// run runs the program on all members, over each of the providers. It returns when all have ended.
func (c team) run(t *testing.T) {
	t.Helper()
	for name := range strings.SplitSeq(*providerFlag, ",") {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			c.runOver(t, name)
		})
	}
}

func (c team) runOver(t *testing.T, provider string) {
	t.Helper()
	base := c.task(t, provider)
	var members crew
	if base.Provider == "soft" {
		members = newGoroutines(openFabric(t, c.members*base.NICs), base)
	} else {
		members = newProcesses()
	}
	killed := make(chan int, c.members) // each member asks once
	table, err := newTable(c.members, base.Token, func(rank int) {
		members.kill(rank)
		killed <- rank
	})
	if err != nil {
		t.Fatal(err)
	}
	base.Table = table.addr()
	started := 0
	for ; started < c.members && err == nil; started++ {
		p := base
		p.Rank = started
		err = members.start(&p)
	}
	if err != nil {
		started--
		table.fail(err)
		t.Errorf("member %d did not start: %v", started, err)
	}
	ended := c.watch(table, members, started, base.Limit)
	table.close()
	members.wait()
	close(killed)
	var dead []int
	for rank := range killed {
		dead = append(dead, rank)
	}
	checkResults(t, ended, dead, c.victim)
}

// task is the task of all members. It skips the test if there are too few NICs.
func (c team) task(t *testing.T, provider string) task {
	t.Helper()
	p := task{
		Program: c.program, Of: c.members, NICs: max(c.nics, 1), QPs: c.qps, Hasty: c.victim, Zero: c.zero,
		Rounds:   c.rounds,
		Provider: provider, Devices: *devicesFlag, GIDIndex: gidIndex(), Token: rand.Text(),
		Limit: *limitFlag,
	}
	switch p.Provider {
	case "soft", "roce":
	case "rdmacore":
		p.Rounds = (p.Rounds + realSlow - 1) / realSlow
		provider, all, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := provider.Close(); err != nil {
			t.Fatal(err)
		}
		if len(all) < p.NICs {
			t.Skipf("needs %d NICs, there are %d", p.NICs, len(all))
		}
	default:
		t.Fatalf("-provider %q: have soft, roce, rdmacore", p.Provider)
	}
	return p
}

// watch waits for the members. When one has failed, or time is up, the others may take some time to
// end, and are then killed.
func (c team) watch(table *table, members crew, started int, limit time.Duration) (ended []result) {
	late := time.NewTimer(limit + endTimeout)
	defer late.Stop()
	for len(ended) < started {
		select {
		case r := <-members.results():
			ended = append(ended, r)
			if r.err != nil && !errors.Is(r.err, errKilled) {
				table.fail(fmt.Errorf("member %d: %w", r.rank, r.err))
				late.Reset(endTimeout)
			}
		case <-late.C:
			for rank := range c.members {
				members.kill(rank)
			}
			late.Reset(endTimeout)
		}
	}
	return ended
}

// checkResults fails the test for every member with a wrong result, in the order in which they
// ended.
func checkResults(t *testing.T, ended []result, killed []int, victim bool) {
	t.Helper()
	if victim != (len(killed) == 1) {
		t.Errorf("members %v were killed; wanted one: %v", killed, victim)
	}
	for _, r := range ended {
		switch wanted := slices.Contains(killed, r.rank); {
		case errors.Is(r.err, errKilled) && !wanted:
			t.Errorf("member %d did not end in time, and was killed:\n%s", r.rank, r.output)
		case r.err != nil && !wanted:
			t.Errorf("member %d failed: %v\n%s", r.rank, r.err, r.output)
		case r.err == nil && wanted:
			t.Errorf("member %d should have been killed, and ended without an error", r.rank)
		}
	}
}
