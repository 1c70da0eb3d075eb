package worded

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"
)

// Whoever looks finds both: that the context has ended, and why.
func TestEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := Ended(ctx); err != nil {
		t.Error(err)
	}
	cancel(fs.ErrClosed)
	if err := Ended(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, fs.ErrClosed) ||
		err.Error() != "context canceled: file already closed" {
		t.Error(err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	if err := Ended(ctx); err != context.Canceled { //nolint:errorlint // nothing is added
		t.Error(err)
	}
	timed, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-timed.Done()
	if err := Ended(timed); err != context.DeadlineExceeded { //nolint:errorlint // nothing is added
		t.Error(err)
	}
}
