package job_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/internal/tcptest"
	"ibverbx/job"
	"ibverbx/shmem"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	goleak.VerifyTestMain(m)
}

// AllGather is a shmem.Config.Exchange.
var _ = shmem.Config{Exchange: (*job.Job)(nil).AllGather}

// config is that of a job of some processes.
func config(tb testing.TB, size int) job.Config {
	tb.Helper()
	return job.Config{Size: size, Address: tcptest.FreeAddr(tb).String(), Job: tb.Name(),
		Wait:     time.Minute,
		MaxValue: 1000,
		Logger:   slog.New(slog.DiscardHandler)}
}

// each runs one process of a job for each configuration, as goroutines, and returns how they ended.
// Beside them run others, which must not fail.
func each(tb testing.TB, cfgs []job.Config, process func(context.Context, *job.Job) error,
	beside ...func() error) []error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	errs := make([]error, len(cfgs))
	var all sync.WaitGroup
	for _, other := range beside {
		all.Go(func() {
			if err := other(); err != nil {
				tb.Error(err)
			}
		})
	}
	for i, cfg := range cfgs {
		all.Go(func() {
			j, err := job.Join(ctx, cfg)
			if err == nil {
				err = errors.Join(process(ctx, j), j.Close())
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errs
}

// ranks is the configurations of all processes of a job.
func ranks(cfg job.Config) []job.Config {
	cfgs := make([]job.Config, cfg.Size)
	for i := range cfgs {
		cfgs[i] = cfg
		cfgs[i].Rank = i
	}
	return cfgs
}

// allRight fails the test where one has not ended well.
func allRight(tb testing.TB, errs []error) {
	tb.Helper()
	for i, err := range errs {
		if err != nil {
			tb.Errorf("process %d: %v", i, err)
		}
	}
}

// Processes gather, pass barriers, and exchange values, in any order of their coming.
func TestJob(t *testing.T) {
	for _, size := range []int{1, 2, 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			allRight(t, each(t, ranks(config(t, size)), func(ctx context.Context, j *job.Job) error {
				if err := gathers(ctx, j); err != nil {
					return err
				}
				if err := stores(ctx, j); err != nil {
					return err
				}
				return j.Barrier(ctx)
			}))
		})
	}
}

// gathers compares what AllGather returns, for lengths from none to several messages.
func gathers(ctx context.Context, j *job.Job) error {
	for _, length := range []int{0, 1, 300, 1000} {
		rows, err := j.AllGather(ctx, []byte(strings.Repeat(fmt.Sprint(j.Rank()), length)))
		if err != nil {
			return err
		}
		if len(rows) != j.Size() {
			return fmt.Errorf("%d rows of %d", len(rows), j.Size())
		}
		for i, row := range rows {
			if string(row) != strings.Repeat(fmt.Sprint(i), length) {
				return fmt.Errorf("rank %d passed %d bytes, or other ones", i, len(row))
			}
		}
	}
	return nil
}

// stores has each process read what the next one writes, which may come later.
func stores(ctx context.Context, j *job.Job) error {
	got := make(chan error, 1)
	go func() {
		v, err := j.Get(ctx, fmt.Sprintf("of %d", (j.Rank()+1)%j.Size()))
		if err == nil && string(v) != fmt.Sprintf("value %d", (j.Rank()+1)%j.Size()) {
			err = fmt.Errorf("got %q", v)
		}
		got <- err
	}()
	if err := j.Put(ctx, fmt.Sprintf("of %d", j.Rank()), fmt.Appendf(nil, "value %d", j.Rank())); err != nil {
		return err
	}
	return <-got
}

// The list of processes says where they run.
func TestProcesses(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	allRight(t, each(t, ranks(config(t, 3)), func(ctx context.Context, j *job.Job) error {
		for i := range j.Size() {
			if p := j.Process(i); p != (job.Process{Rank: i, Host: host, PID: os.Getpid()}) {
				return fmt.Errorf("process %d is %v", i, p)
			}
		}
		if a, ok := j.LocalAddr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
			return fmt.Errorf("met over %v", j.LocalAddr())
		}
		return j.Barrier(ctx)
	}))
}

// blame checks that an error is of a kind and names a rank.
func blame(err error, rank int, kind error) error {
	var of *job.RankError
	if !errors.As(err, &of) || of.Rank != rank || !errors.Is(err, kind) ||
		!strings.Contains(err.Error(), fmt.Sprintf("rank %d (", rank)) {
		return fmt.Errorf("got %w, want %w of rank %d", err, kind, rank)
	}
	return nil
}

// A process that leaves, or gives up, in place of a collective call ends it for the others with its
// name.
func TestLeaver(t *testing.T) {
	for name, test := range map[string]struct {
		rank int
		end  func(*job.Job)
		kind error
	}{
		"leaves":   {1, func(j *job.Job) { _ = j.Close() }, job.ErrLeft},
		"gives up": {1, func(j *job.Job) { j.Fail(errors.New("no disk")) }, job.ErrFailed},
		"gives up at length": {1, func(j *job.Job) {
			j.Fail(errors.New("no disk" + strings.Repeat(".", 1<<20)))
		}, job.ErrFailed},
		"rank 0 leaves":   {0, func(j *job.Job) { _ = j.Close() }, job.ErrLeft},
		"rank 0 gives up": {0, func(j *job.Job) { j.Fail(errors.New("no disk")) }, job.ErrFailed},
	} {
		t.Run(name, func(t *testing.T) {
			allRight(t, each(t, ranks(config(t, 4)), func(ctx context.Context, j *job.Job) error {
				if j.Rank() == test.rank {
					test.end(j)
					if err := j.Barrier(ctx); err == nil {
						return errors.New("a barrier after the end")
					}
					return nil
				}
				err := j.Barrier(ctx)
				if errors.Is(test.kind, job.ErrFailed) && !strings.Contains(fmt.Sprint(err), "no disk") {
					return fmt.Errorf("got %w, which does not say why", err)
				}
				return blame(err, test.rank, test.kind)
			}))
		})
	}
}

// late is an error of another layer that says who has kept a process waiting.
type late []int

func (l late) Error() string      { return fmt.Sprint("PEs are late: ", []int(l)) }
func (l late) Late() ([]int, int) { return l, 4 }

// A process that gives up because others keep it waiting has the job name those.
func TestFailBlamesTheLate(t *testing.T) {
	for _, late := range []late{{2}, {2, 3}, {0}} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			allRight(t, each(t, ranks(config(t, 4)), func(ctx context.Context, j *job.Job) error {
				if j.Rank() == 1 {
					j.Fail(fmt.Errorf("sync: %w", late))
				}
				_ = j.Barrier(ctx)
				err := j.Err()
				if !errors.Is(err, job.ErrAbsent) || errors.Is(err, job.ErrFailed) ||
					!strings.Contains(err.Error(), "sync: "+late.Error()) {
					return fmt.Errorf("got %w", err)
				}
				if len(late) == 1 {
					return blame(err, late[0], job.ErrAbsent)
				}
				return nil
			}))
		})
	}
}

// Processes that make different collective calls are told which one does.
func TestMismatch(t *testing.T) {
	for i, err := range each(t, ranks(config(t, 3)), func(ctx context.Context, j *job.Job) error {
		if j.Rank() == 2 {
			_, err := j.AllGather(ctx, nil)
			return err
		}
		return j.Barrier(ctx)
	}) {
		if !errors.Is(err, job.ErrMismatch) || !strings.Contains(err.Error(), `"barrier"`) ||
			!strings.Contains(err.Error(), "all-gather") {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

// What cannot be one job is refused, with both sides of the contradiction.
func TestContradictions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(cfgs []job.Config)
		errs   []string // what each process says; empty: nothing of it
	}{
		"all rank 0": {func(c []job.Config) { c[1].Rank, c[2].Rank = 0, 0 },
			[]string{"two processes have this rank", "rank 0 of this job already", "do all have rank 0?"}},
		"all rank 0, unnamed": {func(c []job.Config) { c[1].Rank, c[0].Job, c[1].Job = 0, "", "" },
			[]string{"two jobs no name (set IBVERBX_JOB)", "no name either (set IBVERBX_JOB)"}},
		"one rank twice": {func(c []job.Config) { c[2].Rank = 1 },
			[]string{"two processes have this rank", "two processes have this rank",
				"two processes have this rank"}},
		"two sizes": {func(c []job.Config) { c[1].Size = 3 },
			[]string{"the job has 3 processes, rank 0 says 2", "the job has 3 processes, rank 0 says 2"}},
		"two jobs": {func(c []job.Config) { c[1].Job = "another" },
			[]string{"rank 1 of 2 is missing", "another job, or another program"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, len(test.errs))
			if name == "two jobs" {
				cfg.Wait = 3 * time.Second // which ends it: time for rank 1 to learn who it has met
			}
			cfgs := ranks(cfg)
			test.change(cfgs)
			errs := each(t, cfgs, func(context.Context, *job.Job) error { return nil })
			said := make(map[string]bool)
			for i, err := range errs {
				if err == nil {
					t.Fatalf("process %d has joined", i)
				}
				if strings.HasPrefix(name, "all rank 0") && !errors.Is(err, job.ErrMismatch) {
					t.Errorf("process %d: %v", i, err)
				}
				for _, want := range test.errs {
					if strings.Contains(err.Error(), want) {
						said[want] = true
					}
				}
			}
			for _, want := range test.errs {
				if !said[want] {
					t.Errorf("nobody says %q: %v", want, errs)
				}
			}
		})
	}
}

// A process that contradicts a job which is complete without it is refused, and the job goes on.
func TestLateContradictions(t *testing.T) {
	t.Parallel()
	cfgs := ranks(config(t, 2))
	allRight(t, each(t, cfgs, func(ctx context.Context, j *job.Job) error {
		if j.Rank() == 1 {
			other := cfgs[1]
			other.Size = 3
			for says, cfg := range map[string]job.Config{"two processes have this rank": cfgs[1],
				"the job has 3 processes": other} {
				if _, err := job.Join(ctx, cfg); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v: does not say %q", err, says)
				}
			}
		}
		return errors.Join(j.Barrier(ctx), gathers(ctx, j))
	}))
}

// patiently calls a function with some time, and with more where it returns an error: a busy
// machine may not have done in the first what the test needs. The last error fails the test.
func patiently(tb testing.TB, first time.Duration, try func(time.Duration) error) {
	tb.Helper()
	var err error
	for d := first; d <= 100*first; d *= 4 {
		if err = try(d); err == nil {
			return
		}
	}
	tb.Error(err)
}

// Those who wait are told who has not come, whether it is rank 0 or another.
func TestAbsent(t *testing.T) {
	t.Parallel()
	patiently(t, 300*time.Millisecond, func(wait time.Duration) error {
		cfg := config(t, 4)
		cfg.Wait = wait
		for i, err := range each(t, ranks(cfg)[:2], nil) {
			if !errors.Is(err, job.ErrAbsent) ||
				!strings.Contains(err.Error(), "ranks 2, 3 of 4 are missing") {
				return fmt.Errorf("process %d: %w", i, err)
			}
		}
		return nil
	})
	patiently(t, 300*time.Millisecond, func(wait time.Duration) error {
		cfg := config(t, 4)
		cfg.Wait = wait
		began := time.Now()
		for _, err := range each(t, ranks(cfg)[1:2], nil) {
			// Rank 0, if there is one, has two seconds more.
			if took := time.Since(began); took > wait+1500*time.Millisecond {
				return fmt.Errorf("it waited %v for rank 0, not %v", took, wait)
			}
			if !errors.Is(err, job.ErrAbsent) || !strings.Contains(err.Error(), "rank 0 is not there") ||
				!strings.Contains(err.Error(), "nobody listens there") ||
				strings.Contains(err.Error(), "Retry") {
				return fmt.Errorf("without rank 0: %w", err)
			}
		}
		return nil
	})
	patiently(t, 50*time.Millisecond, func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if _, err := job.Join(ctx, ranks(config(t, 4))[0]); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "ranks 1, 2, 3 of 4 are missing") {
			return fmt.Errorf("a context that ends: %w", err)
		}
		return nil
	})
}

// Strangers, noise and silence at rank 0's port do not keep the job from coming together.
func TestStrangers(t *testing.T) {
	t.Parallel()
	cfg := config(t, 5)
	stop := make(chan struct{})
	var strangers sync.WaitGroup
	for i := range 300 {
		strangers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", cfg.Address)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				switch i % 3 {
				case 0:
					_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
				case 1:
					_, _ = io.WriteString(c, "\x89ibverbx\x00\x00\x00\x09")
				}
				<-stop
				_ = c.Close()
			}
		})
	}
	allRight(t, each(t, ranks(cfg), func(ctx context.Context, j *job.Job) error {
		return errors.Join(gathers(ctx, j), j.Barrier(ctx))
	}))
	close(stop)
	strangers.Wait()
}

// What a call must not be given is refused, and has no effect.
func TestArguments(t *testing.T) {
	t.Parallel()
	if _, err := job.Join(nil, job.Config{Size: 1}); !errors.Is(err, verbs.ErrInvalid) { //nolint:staticcheck
		t.Errorf("no context: %v", err)
	}
	for _, cfg := range []job.Config{{Size: -1}, {Rank: 1}, {Size: 2, Rank: 2, Address: "h:1"},
		{Size: 2, Address: "h"}, {Size: 2, Address: ":7471"}, {Size: 2, Address: "h:0"}, {Size: 1, Wait: -1},
		{Size: 1, Patience: -1}, {Size: 1, MaxValue: -1}, {Size: 1, MaxStore: -1}} {
		if _, err := job.Join(t.Context(), cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	j, err := job.Join(t.Context(), job.Config{Size: 1, MaxValue: 100, MaxStore: 400})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx := t.Context()
	if _, err := j.AllGather(ctx, make([]byte, 101)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a long row: %v", err)
	}
	for _, key := range []string{"", strings.Repeat("k", 257)} {
		if err := j.Put(ctx, key, nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("put with a key of %d bytes: %v", len(key), err)
		}
		if _, err := j.Get(ctx, key); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("get with a key of %d bytes: %v", len(key), err)
		}
	}
	if err := j.Put(ctx, "a", make([]byte, 100)); err != nil {
		t.Error(err)
	}
	if err := j.Put(ctx, "b", make([]byte, 100)); !errors.Is(err, job.ErrFull) {
		t.Errorf("a full store: %v", err)
	}
	if err := j.Put(ctx, "a", nil); err != nil {
		t.Error(err)
	}
	if err := j.Put(ctx, "b", make([]byte, 100)); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	patiently(t, 10*time.Millisecond, func(wait time.Duration) error {
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_, err := j.Get(short, "never")
		if !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), j.Process(0).String()+" has no such value yet") {
			return fmt.Errorf("a value that never comes: %w", err)
		}
		return nil
	})
	for range 1100 { // more than may wait
		short, cancel := context.WithTimeout(ctx, 300*time.Microsecond)
		_, err := j.Get(short, "never")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a value that never comes: %v", err)
		}
	}
	if err := j.Barrier(ctx); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil || j.Close() != nil {
		t.Error(err)
	}
	if err := j.Put(ctx, "a", nil); !errors.Is(err, job.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if j.Err() != nil {
		t.Errorf("Close is no failure: %v", j.Err())
	}
}
