package shmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"ibverbx/internal/errwrap"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// The errors of this package, for errors.Is. Wrong arguments are verbs.ErrInvalid. The error of a
// PE that has failed or closed is a [*PEError], which wraps [transport.ErrPeerFailed] or
// [transport.ErrPeerClosed].
var (
	// ErrMismatch: the PEs did not make the same collective calls, or one call was refused for an
	// argument, or a PE gave up in one and then called another. All PEs get it: the error of one
	// says which PE called what, those of the others name that PE. Every later collective call
	// returns it, too, except Close, which only returns it if no call has, and except after Alloc
	// or Free calls that only ask for different things: those have no effect.
	ErrMismatch = errors.New("collective calls do not match")
	// ErrNoMemory: the symmetric heap has no room, on any PE: raise Config.HeapSize.
	ErrNoMemory = errors.New("symmetric heap is full")
	// ErrBusy: another goroutine of this PE is in a collective call.
	ErrBusy = errors.New("another goroutine is in a collective call")
	// ErrClosed: the PE was closed. It is also os.ErrClosed.
	ErrClosed = transport.ErrClosed
)

// PEError says which PE has failed or closed.
type PEError struct {
	PE  int
	Err error // a *transport.EndpointError, whose text names the PE as "PE 3"
}

// Error is the text of Err, which names the PE.
func (e *PEError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PEError) Unwrap() error { return e.Err }

// LogValue makes slog write the PE's number and the error of the connection to it.
func (e *PEError) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("pe", e.PE), slog.Any("err", e.Err))
}

// MarshalJSON writes the PE's number, the text of Err, and Err itself if it has a JSON form.
func (e *PEError) MarshalJSON() ([]byte, error) {
	form := struct {
		PE    int            `json:"pe"`
		Error string         `json:"error"`
		Err   json.Marshaler `json:"err,omitempty"`
	}{PE: e.PE, Error: e.Error()}
	_ = errors.As(e.Err, &form.Err)
	return json.Marshal(form)
}

// invalid returns the error of a call that was refused for an argument.
func invalid(op, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	return &errwrap.Error{Err: fmt.Errorf("shmem: %s: %w: %s", op, verbs.ErrInvalid, detail)}
}

// needContext refuses a call without a context.
func needContext(op string, ctx context.Context) error {
	if ctx == nil {
		return invalid(op, "no context")
	}
	return nil
}

// opError returns the error of a call that failed.
func opError(op string, err error) error {
	return &errwrap.Error{Err: fmt.Errorf("shmem: %s: %w", op, err)}
}
