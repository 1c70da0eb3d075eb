package verbs

import (
	"errors"
	"fmt"
	"io/fs"
)

// The errors that a program can act on. Providers wrap them in an [*OpError]; test with errors.Is.
var (
	// ErrQueueFull: the queue has no room for another work request. Poll completions, then post
	// again.
	ErrQueueFull = errors.New("queue full")
	// ErrState: the queue pair's state does not allow the call.
	ErrState = errors.New("wrong queue pair state")
	// ErrNotSupported: this provider or NIC cannot do it. The error around it says what would be
	// needed.
	ErrNotSupported = errors.New("not supported")
	// ErrDeviceGone: the NIC was removed or has failed.
	ErrDeviceGone = errors.New("device gone")
	// ErrBusy: other objects still use this one; close them first.
	ErrBusy = errors.New("still in use")
	// ErrInvalid: an argument is wrong. The error around it says which.
	ErrInvalid = errors.New("invalid argument")
	// ErrNoMemory: the NIC or its driver is out of memory for now. The same call may succeed later.
	ErrNoMemory = errors.New("out of memory")
	// ErrOverrun: a completion queue had no room for a completion, and is dead.
	ErrOverrun = errors.New("completion queue overrun")
	// ErrUnreachable: there is no path from the NIC to the peer's port. See [PathChecker].
	ErrUnreachable = errors.New("unreachable")
	// ErrClosed: the object was closed. It matches [fs.ErrClosed] (os.ErrClosed).
	ErrClosed error = closedError{}
)

type closedError struct{}

func (closedError) Error() string        { return "closed" }
func (closedError) Is(target error) bool { return target == fs.ErrClosed }

// IsTransient reports whether the same call may succeed later without a repair: the queue is full,
// or memory is short.
func IsTransient(err error) bool {
	return errors.Is(err, ErrQueueFull) || errors.Is(err, ErrNoMemory)
}

// OpError reports which call failed on which device, and why.
type OpError struct {
	Op     string // the call: "post send", "register"
	Device string // the device's name; may be empty
	QPNum  uint32 // the queue pair's number; 0 if the call concerns none
	Detail string // what was asked, what was found, what to do; may be empty
	Err    error  // a sentinel of this package, a [Status], or an errno
}

// Error reads "post send: soft0 qp 17: queue full: 128 outstanding, the queue holds 128".
func (e *OpError) Error() string {
	s := e.Op + ": "
	if e.Device != "" {
		s += e.Device
		if e.QPNum != 0 {
			s += fmt.Sprintf(" qp %d", e.QPNum)
		}
		s += ": "
	}
	s += e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// ModifyError reports why a change of a queue pair was refused. It matches [ErrState] if there is
// no such transition, and [ErrInvalid] if the attributes do not fit it.
type ModifyError struct {
	From, To   QPState
	Missing    QPAttrMask // attributes that the transition demands and the mask lacks
	NotAllowed QPAttrMask // attributes in the mask that the transition does not allow
}

// Error returns the transition, and the attributes that are missing or not allowed.
func (e *ModifyError) Error() string {
	s := fmt.Sprintf("queue pair from %v to %v", e.From, e.To)
	switch {
	case e.Missing == 0 && e.NotAllowed == 0:
		return s + ": no such transition"
	case e.Missing != 0 && e.NotAllowed != 0:
		return fmt.Sprintf("%s: attributes missing: %v; not allowed: %v", s, e.Missing, e.NotAllowed)
	case e.Missing != 0:
		return fmt.Sprintf("%s: attributes missing: %v", s, e.Missing)
	}
	return fmt.Sprintf("%s: attributes not allowed: %v", s, e.NotAllowed)
}

// Is reports whether target is the error's sentinel.
func (e *ModifyError) Is(target error) bool {
	if e.Missing == 0 && e.NotAllowed == 0 {
		return target == ErrState
	}
	return target == ErrInvalid
}
