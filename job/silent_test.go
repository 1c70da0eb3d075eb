package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/job"
	"ibverbx/rendezvous"
)

// process is what a process says of itself when it joins.
type process struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	PID  int    `json:"pid"`
	Size int    `json:"size"`

	Proof string `json:"proof"`
}

// protocol is that of a job's conversations.
func protocol(cfg *job.Config) string { return job.ProtocolOf(cfg.Job) }

// joining has a process join a job, and listens in place of rank 0. joined gets Join's error.
func joining(t *testing.T, cfg job.Config) (l *rendezvous.Listener, joined <-chan error) {
	t.Helper()
	l, err := rendezvous.Listen(t.Context(), cfg.Address, rendezvous.Config{Protocol: protocol(&cfg)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ended := make(chan error, 1)
	go func() {
		_, err := job.Join(t.Context(), cfg)
		ended <- err
	}()
	return l, ended
}

// stranger joins a job as a process that does nothing by itself.
func stranger(ctx context.Context, cfg *job.Config, rank int) (*rendezvous.Conn, error) {
	c, err := rendezvous.Dial(ctx, cfg.Address, rendezvous.Config{Protocol: protocol(cfg),
		Retry: time.Minute})
	if err != nil {
		return nil, err
	}
	return c, c.Send(ctx, "join", process{rank, "node7", 4242, cfg.Size, job.ProofOf(cfg.Job)})
}

// A process that vanishes without a word, as with its host, is found dead, and named.
func TestSilence(t *testing.T) {
	t.Parallel()
	patiently(t, 400*time.Millisecond, func(patience time.Duration) error {
		cfg := config(t, 3)
		cfg.Patience = patience
		var silent *rendezvous.Conn
		defer func() { _ = silent.Close() }()
		began := time.Now()
		errs := each(t, ranks(cfg)[:2], func(ctx context.Context, j *job.Job) error {
			return blame(j.Barrier(ctx), 2, job.ErrDied)
		}, func() (err error) {
			silent, err = stranger(t.Context(), &cfg, 2)
			return err
		})
		if d := time.Since(began); d < patience {
			t.Errorf("found dead after %v", d)
		}
		return errors.Join(errs...)
	})
}

// A process that hears nothing of rank 0 tells it so before it hangs up: a rank 0 that was stopped,
// and goes on, does not take that process for dead.
func TestHangUp(t *testing.T) {
	t.Parallel()
	cfg := config(t, 2)
	cfg.Rank, cfg.Patience = 1, 2*time.Second
	l, joined := joining(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for kind := ""; kind != "end"; {
		m, err := c.Next(t.Context())
		if err != nil {
			t.Fatalf("it did not say why it hangs up: %v", err)
		}
		kind = m.Kind
	}
	if err := <-joined; !errors.Is(err, job.ErrDied) {
		t.Error(err)
	}
}

// Rank 0 believes a process that says that rank 0 was silent.
func TestSilentRank0(t *testing.T) {
	t.Parallel()
	cfg := config(t, 3)
	var c *rendezvous.Conn
	defer func() { _ = c.Close() }()
	for i, err := range each(t, ranks(cfg)[:2], func(ctx context.Context, j *job.Job) error {
		return j.Barrier(ctx)
	}, func() (err error) {
		if c, err = stranger(t.Context(), &cfg, 2); err != nil {
			return err
		}
		return c.Send(t.Context(), "end",
			map[string]any{"rank": 0, "host": "node1", "pid": 1, "code": "died"})
	}) {
		if err := blame(err, 0, job.ErrDied); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

// A process that asks and does not read the answers is named, and costs bounded memory.
func TestUnread(t *testing.T) {
	t.Parallel()
	cfg := config(t, 2)
	var c *rendezvous.Conn
	defer func() { _ = c.Close() }()
	errs := each(t, ranks(cfg)[:1], func(ctx context.Context, j *job.Job) error {
		return blame(j.Barrier(ctx), 1, job.ErrDied)
	}, func() (err error) {
		if c, err = stranger(t.Context(), &cfg, 1); err != nil {
			return err
		}
		err = c.Send(t.Context(), "put", map[string]any{"id": 0, "key": "k", "data": make([]byte, 1000)})
		for id := 1; err == nil && id < 50_000; id++ { // until rank 0 takes no more
			err = c.Send(t.Context(), "get", map[string]any{"id": id, "key": "k"})
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Processes that compute, or wait, for longer than Patience are alive.
func TestPatience(t *testing.T) {
	t.Parallel()
	patiently(t, time.Second, func(patience time.Duration) error {
		cfg := config(t, 3)
		cfg.Patience = patience
		return errors.Join(each(t, ranks(cfg), func(ctx context.Context, j *job.Job) error {
			if j.Rank() == 1 {
				time.Sleep(2 * patience)
			}
			return j.Barrier(ctx)
		})...)
	})
}

// What a process says that is none of the protocol ends the job with its name: nothing of it is
// kept.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rank int // that the process says it has
		kind string
		body any
	}{
		"unknown":       {2, "dance", nil},
		"no body":       {2, "gather", nil},
		"another shape": {2, "put", []int{1}},
		"too long": {2, "gather", map[string]any{"seq": 1, "op": "all-gather",
			"data": make([]byte, 1001)}},
		"no key":          {2, "put", map[string]any{"id": 1}},
		"a long key":      {2, "put", map[string]any{"id": 1, "key": strings.Repeat("k", 257)}},
		"joins twice":     {2, "join", process{2, "node7", 4242, 3, ""}},
		"no rank":         {-1, "alive", nil},
		"a call ahead":    {2, "gather", map[string]any{"seq": 2, "op": "barrier"}},
		"blames nobody":   {2, "end", map[string]any{"rank": 3, "code": "mismatch"}},
		"blames less":     {2, "end", map[string]any{"rank": -1, "code": "mismatch"}},
		"a finished call": {2, "gather", map[string]any{"seq": 0, "op": "barrier"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, 3)
			var c *rendezvous.Conn
			defer func() { _ = c.Close() }()
			for i, err := range each(t, ranks(cfg)[:2], func(ctx context.Context, j *job.Job) error {
				<-j.Done() // the process may be the first to contribute
				return j.Barrier(ctx)
			}, func() (err error) {
				if c, err = stranger(t.Context(), &cfg, test.rank); err != nil {
					return err
				}
				for kind := ""; kind != "ready" && err == nil; { // or it is turned away
					var m rendezvous.Message
					m, err = c.Next(t.Context())
					kind = m.Kind
				}
				_ = c.Send(t.Context(), test.kind, test.body)
				return nil
			}) {
				var of *job.RankError
				if want := (job.Process{Rank: test.rank, Host: "node7", PID: 4242}); !errors.As(err, &of) ||
					of.Process != want || errors.Is(err, job.ErrDied) {
					t.Errorf("process %d: %v: no RankError of %v for what it said", i, err, want)
				}
			}
		})
	}
}

// A collective call whose context ends takes the process out of step, and ends the job for all. If
// its deadline has passed, those are named who have not entered the call, otherwise who gave up.
func TestCollectiveCallGivenUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late  int // ranks below it do not enter the call
		ends  error
		says  string
		blame int // the rank of a RankError; -1 for none
		kind  error
	}{
		"a straggler": {1, context.DeadlineExceeded, "rank 0 (HOST): it has not entered barrier 2; rank 3 " +
			"(HOST) stopped waiting: context deadline exceeded", 0, job.ErrAbsent},
		"two stragglers": {2, context.DeadlineExceeded, "ranks 0, 1 of 4 have not entered barrier 2; " +
			"rank 3 (HOST) stopped waiting: context deadline exceeded", -1, job.ErrAbsent},
		"canceled": {2, context.Canceled, "rank 3 (HOST): the process has given up: barrier 2: context " +
			"canceled; ranks 0, 1 of 4 have not entered barrier 2", 3, job.ErrFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patiently(t, 50*time.Millisecond, func(wait time.Duration) error {
				return errors.Join(each(t, ranks(config(t, 4)), func(ctx context.Context, j *job.Job) error {
					if err := j.Barrier(ctx); err != nil {
						return err
					}
					rank := j.Rank()
					var err error
					switch {
					case rank < test.late:
						<-j.Done()
						err = j.Err()
					case rank == 3:
						ctx, cancel := givenUp(ctx, wait, test.ends)
						defer cancel()
						if err = j.Barrier(ctx); !errors.Is(err, test.ends) {
							return fmt.Errorf("rank 3: %w", err)
						}
					default:
						err = j.Barrier(ctx)
					}
					self := j.Process(rank)
					at := fmt.Sprintf("%s, pid %d", self.Host, self.PID)
					says := strings.ReplaceAll(test.says, "HOST", at)
					if text := strings.TrimPrefix(err.Error(), "job: barrier: "); text != says {
						return fmt.Errorf("rank %d: %q, want %q", rank, text, says)
					}
					var of *job.RankError
					if errors.As(err, &of) != (test.blame >= 0) || of != nil && of.Rank != test.blame ||
						!errors.Is(err, test.kind) {
						return fmt.Errorf("rank %d: %T %w", rank, err, err)
					}
					return nil
				})...)
			})
		})
	}
}

// givenUp returns a context that ends after some time, because of a deadline or because it is
// canceled.
func givenUp(ctx context.Context, after time.Duration, why error) (context.Context, context.CancelFunc) {
	if errors.Is(why, context.DeadlineExceeded) {
		return context.WithTimeout(ctx, after)
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(after, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}
