// Package worded adds words to errors and keeps their form for machines.
package worded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
)

// Error is an error with words around it, made by fmt.Errorf or errors.Join, say, which have no
// form for machines. It passes on that of the error within: what that writes to JSON and to slog.
type Error struct {
	Err error // with its words
}

// Join is errors.Join with a form for machines. A single error is returned as it is.
func Join(errs ...error) error {
	var only error
	for _, err := range errs {
		switch {
		case err == nil:
		case only == nil:
			only = err
		default:
			return &Error{Err: errors.Join(errs...)}
		}
	}
	return only
}

// Error is the text with its words.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrapped.
func (e *Error) Unwrap() error { return e.Err }

// LogValue has slog write the error within in its own way, and the text where it has none.
func (e *Error) LogValue() slog.Value {
	var own slog.LogValuer
	if errors.As(e.Err, &own) {
		return slog.GroupValue(slog.String("error", e.Error()), slog.Any("cause", own))
	}
	return slog.StringValue(e.Error())
}

// MarshalJSON writes the text, and the error within in its own form where it has one.
func (e *Error) MarshalJSON() ([]byte, error) {
	form := struct {
		Error string         `json:"error"`
		Cause json.Marshaler `json:"cause,omitempty"`
	}{Error: e.Error()}
	_ = errors.As(e.Err, &form.Cause)
	return json.Marshal(form)
}

// Ended is why a context has ended: its error and, where somebody gave one, the cause behind it. It
// is nil while the context has not ended.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
