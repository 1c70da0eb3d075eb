//go:build unix

package jobtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/shmem"
)

// Env is the environment variable that makes a test binary a process of a job, in [Main]. Its value
// is PHASE:VICTIM:DIRECTORY: the phase in which the process of rank VICTIM kills itself, both empty
// if none does, and the directory in which the processes report their progress.
const Env = "IBVERBX_TEST_JOB"

// When a process can be killed.
const (
	AtStart   = "start"   // before it joins
	InJoin    = "join"    // before all others have joined
	InGather  = "gather"  // while the others wait for it in AllGather
	InBarrier = "barrier" // while the others wait for it in Barrier
	InStore   = "store"   // while the others wait for its value
	InReduce  = "reduce"  // between all-reduces
	InHeat    = "heat"    // between steps of a computation, each of which needs the neighbours
)

// Unnoticed is what a process prints, after the rank of the victim, when the job has ended without
// the victim and without an error.
const Unnoticed = "has died unnoticed"

// Size is the number of processes of a job.
const Size = 4

// Phases returns the values PHASE:VICTIM to test, with ":" for no victim.
func Phases() []string {
	return []string{":", AtStart + ":2", InJoin + ":1", InGather + ":2", InGather + ":0", InBarrier + ":2",
		InStore + ":2", InReduce + ":2", InReduce + ":0", InHeat + ":1"}
}

// member is a process of a job.
type member struct {
	phase  string
	victim int
	marks  string // the directory of marks
	rank   int    // in work, once it is known
	job    *job.Job

	configure func(context.Context, *job.Config) (end func() error, err error)
}

// Main must be the first call in the TestMain of a package that runs jobs of its test binary. In a
// process of a job it runs the program and does not return. configure, if not nil, changes how the
// process joins, and returns a function to call at the end.
func Main(configure func(ctx context.Context, cfg *job.Config) (end func() error, err error)) {
	task, member := os.LookupEnv(Env)
	if !member {
		return
	}
	if err := run(task, configure); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the program of a process. It sets a mark when the job has named the victim.
func run(task string, configure func(context.Context, *job.Config) (func() error, error)) error {
	signal.Ignore(syscall.SIGTERM) // the process ends by itself, or the test fails
	phase, rest, _ := strings.Cut(task, ":")
	victim, marks, _ := strings.Cut(rest, ":")
	m := &member{phase: phase, victim: -1, marks: marks, configure: configure}
	if phase != "" {
		n, err := strconv.Atoi(victim)
		if err != nil {
			return err
		}
		m.victim = n
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit*3/4)
	defer cancel()
	err := m.work(ctx)
	if m.victim < 0 {
		return err
	}
	if err == nil {
		return fmt.Errorf("rank %d %s", m.victim, Unnoticed)
	}
	var of *job.RankError
	isNamed := errors.As(err, &of) && of.Rank == m.victim && of.PID != 0 && errors.Is(err, job.ErrDied)
	if m.phase == AtStart {
		isNamed = errors.Is(err, job.ErrAbsent) &&
			strings.Contains(err.Error(), fmt.Sprintf("rank %d of %d is missing", m.victim, Size))
	}
	if !isNamed {
		return fmt.Errorf("rank %d is not named: %w", m.victim, err)
	}
	m.mark(named, m.rank)
	return nil
}

// die kills this process if it is the victim and this is its phase.
func (m *member) die(rank int, phase string) {
	if rank == m.victim && phase == m.phase {
		m.mark(dying, rank)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// work joins the job and runs through the phases.
func (m *member) work(ctx context.Context) (err error) {
	cfg := job.Config{Wait: Limit / 2, Logger: slog.New(slog.DiscardHandler)}
	if m.phase == AtStart {
		cfg.Wait = 5 * time.Second // far longer than it takes to join once all are there
	}
	if m.configure != nil {
		var end func() error
		if end, err = m.configure(ctx, &cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	place, err := job.Find(cfg)
	if err != nil {
		return err
	}
	m.rank = place.Rank
	defer m.mark(ended, place.Rank)
	m.mark(started, place.Rank)
	switch {
	case m.phase == AtStart:
		// Config.Wait does not have to cover the start of the processes.
		if err := m.await(ctx, started, 0, 1, 2, 3); err != nil {
			return err
		}
		m.die(place.Rank, AtStart)
	case m.phase == InJoin && place.Rank == m.victim:
		cfg.Logger = slog.New(&whenMet{func() {
			// Those that have not started yet do not ignore SIGTERM.
			if m.await(ctx, started, 0, 1, 2, 3) == nil {
				m.die(place.Rank, InJoin)
			}
		}})
	case m.phase == InJoin && place.Rank == Size-1:
		if err := m.await(ctx, dying, m.victim); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond) // probably after rank 0 has noticed; before is right, too
	}
	if m.job, err = job.Join(ctx, cfg); err != nil {
		return err
	}
	if err := m.exchange(ctx); err != nil {
		return err
	}
	if err := m.compute(ctx); err != nil {
		return err
	}
	if err := m.job.Barrier(ctx); err != nil {
		return err
	}
	return m.job.Close()
}

// exchange uses the job's own calls.
func (m *member) exchange(ctx context.Context) error {
	j := m.job
	rank := j.Rank()
	m.mark(joined, rank)
	if rank == m.victim && m.phase == InGather { // the others know its name once they have joined
		if err := m.await(ctx, joined, 0, 1, 2, 3); err != nil {
			return err
		}
		m.die(rank, InGather)
	}
	rows, err := j.AllGather(ctx, []byte{byte(rank)})
	if err != nil {
		return err
	}
	for i, row := range rows {
		if string(row) != string([]byte{byte(i)}) {
			return fmt.Errorf("rank %d has passed %q", i, row)
		}
	}
	m.die(rank, InBarrier)
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	m.die(rank, InStore)
	if err := j.Put(ctx, strconv.Itoa(rank), []byte("here")); err != nil {
		return err
	}
	for i := range j.Size() {
		if v, err := j.Get(ctx, strconv.Itoa(i)); err != nil || string(v) != "here" {
			return fmt.Errorf("value of rank %d: %q, %w", i, v, err)
		}
	}
	return nil
}

// compute uses SHMEM, over NICs made of UDP sockets.
func (m *member) compute(ctx context.Context) error {
	j := m.job
	ctx, cancel := j.Context(ctx)
	defer cancel()
	host, err := nics.Open(nics.Config{Provider: nics.RoCE, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	devices, err := host.Reaching(j)
	if err != nil {
		return err
	}
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		return err
	}
	cfg := shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather, HeapSize: 1 << 20}
	// The job reports who has died. A process that does not answer may only be waiting for a CPU.
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric
	pe, err := shmem.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	err = m.reduce(ctx, pe)
	if err == nil {
		err = m.heat(ctx, pe)
	}
	if err != nil {
		return m.blame(err)
	}
	return errors.Join(pe.Close(ctx), dom.Close(), host.Close())
}

// reduce adds up vectors.
func (m *member) reduce(ctx context.Context, pe *shmem.PE) error {
	sums := make([]int64, 5000)
	for round := range 5 {
		if round == 3 {
			m.die(pe.Rank(), InReduce)
		}
		for i := range sums {
			sums[i] = int64(i + pe.Rank())
		}
		if err := shmem.Reduce(ctx, pe, sums, sums, shmem.OpSum); err != nil {
			return err
		}
		for i, sum := range sums {
			if want := int64(Size*i + Size*(Size-1)/2); sum != want {
				return fmt.Errorf("round %d: sum %d is %d, not %d", round, i, sum, want)
			}
		}
	}
	return nil
}

// blame checks that the PE that SHMEM reports as dead is the one that the job names, or one that
// has ended because the job failed.
func (m *member) blame(err error) error {
	if m.victim < 0 {
		return err
	}
	var pe *shmem.PEError
	if errors.As(err, &pe) && pe.PE != m.victim && !m.marked(ended, pe.PE) {
		return fmt.Errorf("PE %d is blamed: %w", pe.PE, err)
	}
	select {
	case <-m.job.Done():
		return m.job.Err()
	case <-time.After(Limit / 4): // far longer than rank 0 needs to report it
		return fmt.Errorf("the job has no failure: %w", err)
	}
}
