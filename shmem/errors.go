package shmem

import (
	"errors"
	"fmt"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// The errors of this package; test with errors.Is. Wrong arguments are verbs.ErrInvalid. The error
// of a PE that has gone is a [*PEError], and [transport.ErrPeerFailed] or
// [transport.ErrPeerClosed].
var (
	// ErrMismatch: the PEs did not make the same collective calls, or one was refused its own for
	// an argument. All PEs get it: one of them is told which PE called what, the others which PE
	// knows. Every later collective call returns it too, but for Close; Alloc and Free that only
	// differ in what they ask for change nothing.
	ErrMismatch = errors.New("collective calls do not match")
	// ErrNoMemory: the symmetric heap has no room, on any PE: raise Config.HeapSize.
	ErrNoMemory = errors.New("symmetric heap is full")
	// ErrBusy: another goroutine of this PE is in a collective call.
	ErrBusy = errors.New("another goroutine is in a collective call")
	// ErrClosed: the PE was closed. It is also os.ErrClosed.
	ErrClosed = transport.ErrClosed
)

// PEError says which PE has gone: failed, or closed.
type PEError struct {
	PE  int
	Err error // a *transport.EndpointError, whose text names the PE as "PE 3"
}

// Error is the text of what lies beneath, which names the PE.
func (e *PEError) Error() string { return e.Err.Error() }

// Unwrap returns what lies beneath.
func (e *PEError) Unwrap() error { return e.Err }

// invalid makes the error of a call that was refused for an argument.
func invalid(op, format string, args ...any) error {
	return fmt.Errorf("shmem: %s: %w: %s", op, verbs.ErrInvalid, fmt.Sprintf(format, args...))
}

// fails makes the error of a call that did not end well.
func fails(op string, err error) error { return fmt.Errorf("shmem: %s: %w", op, err) }

// told makes the error of a call whose operation on another PE failed.
func (t *peer) told(op string, err error) error {
	var gone *transport.EndpointError
	if errors.As(err, &gone) {
		err = &PEError{PE: t.id, Err: err}
	}
	return fails(op, err)
}
