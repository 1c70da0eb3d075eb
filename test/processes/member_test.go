package processes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
	Table     string // address of the table
	Token     string
	Limit     time.Duration
}

// program is what a member does. It closes what it has made before it returns.
type program func(ctx context.Context, m *member) error

// member is a member that runs its program.
type member struct {
	*task
	dom   *ibverbx.Domain
	table *tableConn
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
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.Limit,
		fmt.Errorf("not done within %v", p.Limit))
	defer cancel()
	provider, all, err := p.open()
	if err != nil {
		return err
	}
	if err := p.perform(ctx, nicsOf(all, &p), exitLater); err != nil {
		return err
	}
	return provider.Close() // an error if anything is left open
}

// exitLater ends a process that does not end by itself after its team has. There may be no test any
// more to kill it.
func exitLater() {
	time.AfterFunc(20*time.Second, func() {
		stacks := make([]byte, 1<<16)
		fmt.Fprintf(os.Stderr, "still running, though the team has ended:\n%s\n",
			stacks[:runtime.Stack(stacks, true)])
		os.Exit(2)
	})
}

// perform connects to the table and runs the program. It calls ended when the team has ended and
// the program has not.
func (p *task) perform(ctx context.Context, nics []verbs.Device, ended func()) error {
	run := programs[p.Program]
	if run == nil {
		return fmt.Errorf("no program %q", p.Program)
	}
	ctx, table, err := dialTable(ctx, p.Table, p.Token, p.Rank)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, ended)
	err = p.work(ctx, nics, table, run)
	stop()
	kind := kindBye
	if err != nil {
		kind = ""
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return errors.Join(err, table.leave(kind))
}

func (p *task) work(ctx context.Context, nics []verbs.Device, table *tableConn, run program) error {
	dom, err := ibverbx.NewDomain(nics...)
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, &member{task: p, dom: dom, table: table}), dom.Close())
}

// killMe asks for the member to be killed, and returns at once: it dies during what it does next.
func (m *member) killMe() error {
	return m.table.conn.Send(context.Background(), kindKill, nil)
}

// gather sends data to the table and returns that of all members.
func (m *member) gather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	if m.serve == nil {
		return m.table.gather(ctx, mine)
	}
	var done atomic.Bool
	var waiting sync.WaitGroup
	waiting.Go(func() {
		all, err = m.table.gather(ctx, mine)
		done.Store(true)
	})
	served := m.serve(ctx, done.Load)
	waiting.Wait()
	return all, errors.Join(err, served)
}

// meet waits until all live members have called it.
func (m *member) meet(ctx context.Context) error {
	_, err := m.gather(ctx, nil)
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
