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
	for name, message := range map[string]struct {
		kind string
		body any
	}{
		"unknown":       {"dance", nil},
		"no body":       {"gather", nil},
		"another shape": {"put", []int{1}},
		"too long":      {"gather", map[string]any{"seq": 1, "op": "all-gather", "data": make([]byte, 1001)}},
		"no key":        {"put", map[string]any{"id": 1}},
		"second time":   {"join", process{2, "node7", 4242, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, 3)
			var c *rendezvous.Conn
			defer func() { _ = c.Close() }()
			for i, err := range each(t, ranks(cfg)[:2], func(ctx context.Context, j *job.Job) error {
				return j.Barrier(ctx)
			}, func() (err error) {
				if c, err = stranger(t.Context(), &cfg, 2); err != nil {
					return err
				}
				return c.Send(t.Context(), message.kind, message.body)
			}) {
				var of *job.RankError
				if !errors.As(err, &of) || of.Process != (job.Process{Rank: 2, Host: "node7", PID: 4242}) {
					t.Errorf("process %d: %v: no RankError of rank 2", i, err)
				}
			}
		})
	}
}
