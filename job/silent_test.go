package job_test

import (
	"context"
	"errors"
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
}

// stranger joins a job as a process that does nothing by itself.
func stranger(ctx context.Context, cfg *job.Config, rank int) (*rendezvous.Conn, error) {
	c, err := rendezvous.Dial(ctx, cfg.Address, rendezvous.Config{Protocol: "ibverbx job/1 " + cfg.Job,
		Retry: time.Minute})
	if err != nil {
		return nil, err
	}
	return c, c.Send(ctx, "join", process{rank, "node7", 4242, cfg.Size})
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
	cfg.Rank, cfg.Patience = 1, 200*time.Millisecond
	l, err := rendezvous.Listen(t.Context(), cfg.Address,
		rendezvous.Config{Protocol: "ibverbx job/1 " + cfg.Job})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	joined := make(chan error, 1)
	go func() {
		_, err := job.Join(t.Context(), cfg)
		joined <- err
	}()
	c, err := l.Accept(t.Context())
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
		"joins twice":     {2, "join", process{2, "node7", 4242, 3}},
		"no rank":         {-1, "alive", nil},
		"a call ahead":    {2, "gather", map[string]any{"seq": 2, "op": "barrier"}},
		"a finished call": {2, "gather", map[string]any{"seq": 0, "op": "barrier"}},
	} {
		t.Run(name, func(t *testing.T) {
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
				_ = c.Send(t.Context(), test.kind, test.body) // it may have been turned away
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
