package errwrap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/errwrap"
)

// broken is an error with a form of its own.
type broken struct{ part int }

func (b broken) Error() string                { return fmt.Sprintf("part %d is broken", b.part) }
func (b broken) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `{"part":%d}`, b.part), nil }
func (b broken) LogValue() slog.Value         { return slog.GroupValue(slog.Int("part", b.part)) }

// Joined errors have a form too; one alone is itself, and none is nil.
func TestJoin(t *testing.T) {
	one, other := broken{1}, broken{2}
	if err := errwrap.Join(nil, one, nil); err != one { //nolint:errorlint // it is not wrapped
		t.Errorf("%#v", err)
	}
	if err := errwrap.Join(nil, nil); err != nil {
		t.Error(err)
	}
	both := errwrap.Join(one, other)
	got, err := json.Marshal(both)
	want := `{"error":"part 1 is broken\npart 2 is broken","cause":{"part":1}}`
	if err != nil || string(got) != want || !errors.Is(both, other) {
		t.Errorf("%s, %v", got, err)
	}
}

// The text stands beside the form of the error within, or alone where that has none.
func TestErrorForMachines(t *testing.T) {
	plain := errors.New("nothing more to say")
	for _, c := range []struct {
		err        error
		json, slog string
	}{
		{
			fmt.Errorf("start: %w", broken{3}),
			`{"error":"start: part 3 is broken","cause":{"part":3}}`,
			`"err":{"error":"start: part 3 is broken","cause":{"part":3}}`,
		},
		{
			errors.Join(plain, broken{4}),
			`{"error":"nothing more to say\npart 4 is broken","cause":{"part":4}}`,
			`"err":{"error":"nothing more to say\npart 4 is broken","cause":{"part":4}}`,
		},
		{
			fmt.Errorf("start: %w", plain),
			`{"error":"start: nothing more to say"}`, `"err":"start: nothing more to say"`,
		},
	} {
		err := &errwrap.Error{Err: c.err}
		if err.Error() != c.err.Error() || !errors.Is(err, c.err) {
			t.Errorf("%v is not %v", err, c.err)
		}
		if got, failed := json.Marshal(err); failed != nil || string(got) != c.json {
			t.Errorf("JSON %s, %v, want %s", got, failed, c.json)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("lost", "err", err)
		if !strings.Contains(log.String(), c.slog) {
			t.Errorf("slog %s, want %s", &log, c.slog)
		}
	}
}

// Whoever looks finds both: that the context has ended, and why.
func TestContextErr(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := errwrap.ContextErr(ctx); err != nil {
		t.Error(err)
	}
	cancel(fs.ErrClosed)
	if err := errwrap.ContextErr(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, fs.ErrClosed) ||
		err.Error() != fs.ErrClosed.Error() {
		t.Error(err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	if err := errwrap.ContextErr(ctx); err != context.Canceled { //nolint:errorlint // nothing is added
		t.Error(err)
	}
	timed, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-timed.Done()
	err := errwrap.ContextErr(timed)
	if err != context.DeadlineExceeded { //nolint:errorlint // nothing is added
		t.Error(err)
	}
}
