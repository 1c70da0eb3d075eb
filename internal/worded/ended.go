package worded

import (
	"context"
	"errors"
	"fmt"
)

// Ended is why a context has ended: its error and, where somebody gave one, the cause behind it. It
// is nil while the context has not ended.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
