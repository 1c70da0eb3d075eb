// Package errwrap wraps and joins errors without hiding how they write themselves to JSON and slog.
package errwrap

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
)

// Error holds an error that fmt.Errorf or errors.Join has made. Those do not implement
// json.Marshaler and slog.LogValuer; Error does, and writes the wrapped error in its own form.
type Error struct {
	Err error
}

// Join is errors.Join with an Error as its result. It returns a single error unchanged.
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

// Error returns the whole text.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// LogValue returns the text, and as "cause" what the wrapped error logs if it is a slog.LogValuer.
func (e *Error) LogValue() slog.Value {
	var own slog.LogValuer
	if errors.As(e.Err, &own) {
		return slog.GroupValue(slog.String("error", e.Error()), slog.Any("cause", own))
	}
	return slog.StringValue(e.Error())
}

// MarshalJSON writes the text, and as "cause" the JSON of the wrapped error if it has any.
func (e *Error) MarshalJSON() ([]byte, error) {
	form := struct {
		Error string         `json:"error"`
		Cause json.Marshaler `json:"cause,omitempty"`
	}{Error: e.Error()}
	_ = errors.As(e.Err, &form.Cause)
	return json.Marshal(form)
}

// ContextErr returns why a context has ended, or nil while it has not. If there is a cause, the
// error has its text, and matches both the cause and the context's own error.
func ContextErr(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return &ended{cause: cause, err: err}
}

// ended is the error of a context that has ended with a cause. Its text is the cause's.
type ended struct{ cause, err error }

func (e *ended) Error() string   { return e.cause.Error() }
func (e *ended) Unwrap() []error { return []error{e.cause, e.err} }
