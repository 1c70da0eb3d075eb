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
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"ibverbx"
	"ibverbx/verbs"
)

// task is what a member gets when it starts: who it is, and what it does.
type task struct {
	Program   string
	Rank, Of  int  // number of this member, and of members
	NICs, QPs int  // NICs of each member, and queue pairs of each NIC; 0: the package's default
	Hasty     bool // timeouts are short
	Zero      bool // the configuration is the zero value, connections included
	Rounds    int  // how much to do; what it counts is up to the program
	Provider  string
	Devices   string
	GIDIndex  int
	Table     string // a directory, in which members write what all are to know
	Limit     time.Duration
}

// program is what a member does. It closes what it has made before it returns.
type program func(ctx context.Context, m *member) error

// member is a member that runs its program.
type member struct {
	*task
	dom     *ibverbx.Domain
	die     func() // kills the member at once, or during what it does next
	gathers int    // how many it has begun
	// serve, if set, makes progress until done reports true. A member that waits for a gather needs
	// it, because others may wait for its progress.
	serve func(ctx context.Context, done func() bool) error
}

// runAsProcess runs a member that is a process, from start to end.
func runAsProcess(job string) error {
	var p task
	if err := json.Unmarshal([]byte(job), &p); err != nil {
		return fmt.Errorf("%s: %w", memberEnv, err)
	}
	ctx, cancel := ossignal.NotifyContext(context.Background(), syscall.SIGTERM) // the team has failed
	defer cancel()
	// There may be no test any more to end it.
	time.AfterFunc(p.Limit+2*endTimeout, func() { panic("still running") })
	provider, all, err := p.open()
	if err != nil {
		return err
	}
	die := func() { go func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }() }
	if err := p.perform(ctx, nicsOf(all, &p), die); err != nil {
		return err
	}
	return provider.Close() // an error if anything is left open
}

// perform runs the program.
func (p *task) perform(ctx context.Context, nics []verbs.Device, die func()) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Limit, fmt.Errorf("not done within %v", p.Limit))
	defer cancel()
	run := programs[p.Program]
	if run == nil {
		return fmt.Errorf("no program %q", p.Program)
	}
	dom, err := ibverbx.NewDomain(nics...)
	if err != nil {
		return err
	}
	err = run(ctx, &member{task: p, dom: dom, die: die})
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return errors.Join(err, dom.Close())
}

// gather tells all members something, and returns what they tell, by rank: nil for those that have
// ended before.
func (m *member) gather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	if m.serve == nil {
		return m.gatherIdle(ctx, mine)
	}
	var done atomic.Bool
	var waiting sync.WaitGroup
	waiting.Go(func() {
		all, err = m.gatherIdle(ctx, mine)
		done.Store(true)
	})
	served := m.serve(ctx, done.Load)
	waiting.Wait()
	return all, errors.Join(err, served)
}

// gatherIdle is gather without progress meanwhile.
func (m *member) gatherIdle(ctx context.Context, mine []byte) ([][]byte, error) {
	file := func(rank int) string { return filepath.Join(m.Table, fmt.Sprintf("%d.%d", m.gathers, rank)) }
	unfinished := file(m.Rank) + "~"
	if err := os.WriteFile(unfinished, mine, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(unfinished, file(m.Rank)); err != nil {
		return nil, err
	}
	all := make([][]byte, m.Of)
	for rank := range all {
		for {
			ended := hasEnded(m.Table, rank) // looked at first: what a member has written before counts
			said, err := os.ReadFile(file(rank))
			if err == nil {
				all[rank] = said
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			if err == nil || ended {
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("gather, for member %d: %w", rank, context.Cause(ctx))
			case <-time.After(lookEvery):
			}
		}
	}
	m.gathers++
	return all, nil
}

// markEnded notes at a table that a member has ended.
func markEnded(table string, rank int) error {
	return os.WriteFile(filepath.Join(table, fmt.Sprintf("ended.%d", rank)), nil, 0o600)
}

func hasEnded(table string, rank int) bool {
	_, err := os.Stat(filepath.Join(table, fmt.Sprintf("ended.%d", rank)))
	return err == nil
}

// meet waits until all live members have called it.
func (m *member) meet(ctx context.Context) error {
	_, err := m.gather(ctx, nil)
	return err
}

// allConnected waits until all members have connected. Nobody is probed meanwhile, who may not be
// there yet.
func (m *member) allConnected(ctx context.Context) error {
	_, err := m.gatherIdle(ctx, nil)
	return err
}

// exchange returns the values of all members, by rank: the zero value for a dead one.
func exchange[T any](ctx context.Context, m *member, v T) ([]T, error) {
	mine, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	entries, err := m.gather(ctx, mine)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(entries))
	for i, e := range entries {
		if e == nil {
			continue
		}
		if err := json.Unmarshal(e, &all[i]); err != nil {
			return nil, fmt.Errorf("from member %d: %w", i, err)
		}
	}
	return all, nil
}

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
