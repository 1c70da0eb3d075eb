package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/job"
)

// Values that need several messages arrive whole, while others pass between them. One that is too
// long for rank 0 is refused.
func TestLargeValues(t *testing.T) {
	cfg := config(t, 3)
	cfg.MaxValue = 200_000
	cfgs := ranks(cfg)
	cfgs[2].MaxValue = 300_000
	value := func(of, n int) []byte { return []byte(strings.Repeat(fmt.Sprintf("%6d", n*3+of), 30_000)) }
	allRight(t, each(t, cfgs, func(ctx context.Context, j *job.Job) error {
		errs := make(chan error)
		for n := range 8 {
			go func() {
				err := j.Put(ctx, fmt.Sprint(j.Rank(), n), value(j.Rank(), n)[n%2*100_000:])
				of := (j.Rank() + 1) % 3
				got, failed := j.Get(ctx, fmt.Sprint(of, n))
				if string(got) != string(value(of, n)[n%2*100_000:]) {
					failed = fmt.Errorf("value %d of rank %d: %d other bytes: %w", n, of, len(got), failed)
				}
				errs <- errors.Join(err, failed)
			}()
		}
		rows, err := j.AllGather(ctx, value(j.Rank(), 9))
		for range 8 {
			err = errors.Join(err, <-errs)
		}
		for of, row := range rows {
			if string(row) != string(value(of, 9)) {
				err = errors.Join(err, fmt.Errorf("row %d: %d other bytes", of, len(row)))
			}
		}
		if j.Rank() == 2 {
			full := j.Put(ctx, "long", make([]byte, 200_001))
			const says = "200001 bytes: at most 200000"
			if !errors.Is(full, job.ErrFull) || !strings.Contains(full.Error(), says) {
				err = errors.Join(err, fmt.Errorf("too long for rank 0: %w", full))
			}
		}
		return errors.Join(err, j.Barrier(ctx))
	}))
	for i, err := range each(t, cfgs, func(ctx context.Context, j *job.Job) error {
		_, err := j.AllGather(ctx, make([]byte, 200_000+j.Rank()/2))
		return err
	}) {
		if err := blame(err, 2, job.ErrMismatch); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

// MaxStore counts entries, and not only their bytes: a process cannot fill the memory of rank 0
// with keys.
func TestEntriesCount(t *testing.T) {
	j, err := job.Join(t.Context(), job.Config{Size: 1, MaxStore: 1280})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for n := range 10 {
		if err := j.Put(t.Context(), fmt.Sprint(n), nil); (n == 9) != errors.Is(err, job.ErrFull) {
			t.Errorf("entry %d: %v", n, err)
		}
	}
}
