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

// part is what a member is told when it starts: who it is, and what to do.
type part struct {
	Program   string
	Rank, Of  int  // this member's number, and how many there are
	NICs, QPs int  // NICs of each member, and queue pairs a NIC; 0 queue pairs is the package's default
	Hasty     bool // connections give up on a silent peer soon
	Zero      bool // the configuration is the zero value, connections included
	Rounds    int  // how much to do, as the program takes it
	Provider  string
	Devices   string
	GIDIndex  int
	Table     string // the table's address
	Token     string
	Limit     time.Duration
}

// program is what a member does. It gives back what it has made before it returns.
type program func(ctx context.Context, m *member) error

// member is one member at work.
type member struct {
	*part
	dom   *ibverbx.Domain
	table *place
	// serve, if set, makes progress until done reports true: who waits for others at the table must
	// not keep them waiting meanwhile.
	serve func(ctx context.Context, done func() bool) error
}

// runAsProcess is the whole life of a member that is a process.
func runAsProcess(job string) error {
	var p part
	if err := json.Unmarshal([]byte(job), &p); err != nil {
		return fmt.Errorf("%s: %w", memberEnv, err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.Limit,
		fmt.Errorf("not done within %v", p.Limit))
	defer cancel()
	provider, all, err := openReal(p.Devices)
	if err != nil {
		return err
	}
	if err := p.perform(ctx, nicsOf(all, &p), exitLater); err != nil {
		return err
	}
	return provider.Close() // says what is left open
}

// exitLater ends a process that does not end by itself although its team has. Nobody may be there
// any more to do it.
func exitLater() {
	time.AfterFunc(5*time.Second, func() {
		stacks := make([]byte, 1<<16)
		fmt.Fprintf(os.Stderr, "still running, though the team has ended:\n%s\n",
			stacks[:runtime.Stack(stacks, true)])
		os.Exit(2)
	})
}

// perform takes a place at the table and runs the program. It calls ended when the team has ended
// and the program has not.
func (p *part) perform(ctx context.Context, nics []verbs.Device, ended func()) error {
	run := programs[p.Program]
	if run == nil {
		return fmt.Errorf("no program %q", p.Program)
	}
	ctx, table, err := sitDown(ctx, p.Table, p.Token, p.Rank)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, ended)
	err = p.work(ctx, nics, table, run)
	stop()
	kind := noteBye
	if err != nil {
		kind = ""
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return errors.Join(err, table.leave(kind))
}

func (p *part) work(ctx context.Context, nics []verbs.Device, table *place, run program) error {
	dom, err := ibverbx.NewDomain(nics...)
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, &member{part: p, dom: dom, table: table}), dom.Close())
}

// killMe says that the member may be killed from now on, and returns at once: it dies in the middle
// of what it does next.
func (m *member) killMe() error { return writeNote(m.table.conn, &note{Kind: noteKill}) }

// gather lays something down and returns what all members have laid down.
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

// meet waits until all members that are alive have come.
func (m *member) meet(ctx context.Context) error {
	_, err := m.gather(ctx, nil)
	return err
}

// exchange lays v down and returns what all members have laid down, by rank; the zero value for the
// dead.
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
