//go:build unix

package jobs_test

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

// memberEnv has the test binary be a process of a job: PHASE:VICTIM, the phase in which the process
// of that rank kills itself.
const memberEnv = "IBVERBX_TEST_JOB"

// Where a process can be killed.
const (
	atStart   = "start"   // before it joins
	inJoin    = "join"    // while others have not come
	inGather  = "gather"  // while the others wait for it in AllGather
	inBarrier = "barrier" // and in Barrier
	inStore   = "store"   // while they wait for its value
	inReduce  = "reduce"  // between all-reduces
)

// size is how many processes a job has.
const size = 4

// member is a process of a job.
type member struct {
	phase  string
	victim int
	job    *job.Job
}

// runMember is the program of a process. It prints what it has found.
func runMember(task string) error {
	signal.Ignore(syscall.SIGTERM) // it ends by itself, or the test fails
	phase, victim, _ := strings.Cut(task, ":")
	m := &member{phase: phase, victim: -1}
	if phase != "" {
		n, err := strconv.Atoi(victim)
		if err != nil {
			return err
		}
		m.victim = n
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := m.work(ctx)
	if m.victim < 0 {
		return err
	}
	var of *job.RankError
	named := errors.As(err, &of) && of.Rank == m.victim && of.PID != 0 && errors.Is(err, job.ErrDied)
	if m.phase == atStart {
		named = errors.Is(err, job.ErrAbsent) &&
			strings.Contains(err.Error(), fmt.Sprintf("rank %d of %d is missing", m.victim, size))
	}
	if !named {
		return fmt.Errorf("rank %d is not named: %w", m.victim, err)
	}
	fmt.Println("named")
	return nil
}

// die kills this process if it is the victim, and this the phase.
func (m *member) die(rank int, phase string) {
	if rank == m.victim && phase == m.phase {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// work joins the job, and goes through the phases.
func (m *member) work(ctx context.Context) error {
	cfg := job.Config{Wait: 15 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	if m.phase == atStart {
		cfg.Wait = time.Second
	}
	place, err := job.Find(cfg)
	if err != nil {
		return err
	}
	m.die(place.Rank, atStart)
	if m.phase == inJoin {
		switch place.Rank {
		case m.victim: // when it has joined
			time.AfterFunc(500*time.Millisecond, func() { m.die(place.Rank, inJoin) })
		case size - 1:
			time.Sleep(1200 * time.Millisecond)
		}
	}
	if m.job, err = job.Join(ctx, cfg); err != nil {
		return err
	}
	if err := m.exchange(ctx); err != nil {
		return err
	}
	if err := m.reduce(ctx); err != nil {
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
	if rank == m.victim && m.phase == inGather {
		time.Sleep(300 * time.Millisecond) // until the others have joined, and know its name
		m.die(rank, inGather)
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
	m.die(rank, inBarrier)
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	m.die(rank, inStore)
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

// reduce adds up vectors with SHMEM, over NICs made of UDP sockets.
func (m *member) reduce(ctx context.Context) error {
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
	pe, err := shmem.Join(ctx, dom, shmem.Config{PE: j.Rank(), PEs: j.Size(), Exchange: j.AllGather,
		HeapSize: 1 << 20})
	if err != nil {
		return err
	}
	sums := make([]int64, 5000)
	for round := range 5 {
		if round == 3 {
			m.die(j.Rank(), inReduce)
		}
		for i := range sums {
			sums[i] = int64(i + j.Rank())
		}
		if err := shmem.Reduce(ctx, pe, sums, sums, shmem.OpSum); err != nil {
			return m.blame(err)
		}
		for i, sum := range sums {
			if want := int64(size*i + size*(size-1)/2); sum != want {
				return fmt.Errorf("round %d: sum %d is %d, not %d", round, i, sum, want)
			}
		}
	}
	return errors.Join(pe.Close(ctx), dom.Close(), host.Close())
}

// blame checks that a PE which SHMEM finds dead is the one that the job names.
func (m *member) blame(err error) error {
	var pe *shmem.PEError
	if errors.As(err, &pe) && pe.PE != m.victim {
		return fmt.Errorf("PE %d is blamed: %w", pe.PE, err)
	}
	<-m.job.Done()
	return m.job.Err()
}
