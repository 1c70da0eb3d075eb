package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
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

// Status is how a work request ended (enum ibv_wc_status). A status other than success is an error:
// you can return it and test for it with errors.Is, and it prints what happened in words.
//
// It has the kernel's number. Statuses of features that this package lacks have no name here:
// memory windows, tag matching, end-to-end contexts. Such a status prints as its number: "unknown
// status 22".
type Status uint32

// The statuses of a work completion.
const (
	StatusSuccess        Status = 0
	StatusLocLenErr      Status = 1
	StatusLocQPOpErr     Status = 2
	StatusLocProtErr     Status = 4
	StatusWRFlushErr     Status = 5
	StatusBadRespErr     Status = 7
	StatusLocAccessErr   Status = 8
	StatusRemInvReqErr   Status = 9
	StatusRemAccessErr   Status = 10
	StatusRemOpErr       Status = 11
	StatusRetryExcErr    Status = 12
	StatusRNRRetryExcErr Status = 13
	StatusRemAbortErr    Status = 16
	StatusFatalErr       Status = 19
	StatusRespTimeoutErr Status = 20
	StatusGeneralErr     Status = 21
)

// statusText holds, for each status, its verbs name, its meaning, and what to check. Numbers that
// this package does not name are empty.
var statusText = [...]struct{ name, words, advice string }{
	StatusSuccess: {"SUCCESS", "success", ""},
	StatusLocLenErr: {"LOC_LEN_ERR", "local length error: a message did not fit the posted receive, or is " +
		"longer than the NIC allows",
		"post receives as long as the longest message, and keep messages within the port's limit"},
	StatusLocQPOpErr: {"LOC_QP_OP_ERR", "local queue pair operation error: the NIC could not carry out the " +
		"request",
		"check the request against the queue pair's limits: operation, pieces of memory, inline bytes, " +
			"outstanding reads and atomics; of a receive, that it is as long as the message"},
	StatusLocProtErr: {"LOC_PROT_ERR", "local protection error: the local key, range or access right does " +
		"not cover the memory",
		"check that the local memory is registered with this NIC, still open, wholly inside its region, " +
			"and with local write where data comes in"},
	StatusWRFlushErr: {"WR_FLUSH_ERR",
		"flushed: the queue pair was in the error state before this request ran",
		"look for what came first: an error of an earlier request or at the peer, a fatal event of the " +
			"NIC, or who closed, reset or modified the queue pair"},
	StatusBadRespErr: {"BAD_RESP_ERR", "bad response: the peer answered with something impossible",
		"check that each queue pair is connected to the one it was meant for, then the firmware of both " +
			"NICs"},
	StatusLocAccessErr: {"LOC_ACCESS_ERR", "local access error: a remote write or read violated the " +
		"protection of local memory",
		"check that the peer uses the key of the region that is registered now, stays inside it, and that " +
			"it grants the right"},
	StatusRemInvReqErr: {"REM_INV_REQ_ERR", "remote invalid request: the peer refused the message (too " +
		"long, or the operation is not allowed)",
		"check that the peer's receive is as long as the message, and that its queue pair allows the " +
			"operation and as many outstanding reads and atomics"},
	StatusRemAccessErr: {"REM_ACCESS_ERR", "remote access error: the remote key, range or access right " +
		"does not cover the memory",
		"check that the remote key is of a region that the peer still has open, that the range lies inside " +
			"it, and that region and queue pair grant the right"},
	StatusRemOpErr: {"REM_OP_ERR", "remote operation error: the peer could not complete the request",
		"look at the peer: a request or receive of its own failed while it served this one, such as a " +
			"receive that is shorter than the message"},
	StatusRetryExcErr: {"RETRY_EXC_ERR", "transport retries exceeded: the peer or the path to it is gone",
		"check that the peer's process lives and has connected, then link, routing and GID index, then " +
			"timeout and retry count"},
	StatusRNRRetryExcErr: {"RNR_RETRY_EXC_ERR", "receiver-not-ready retries exceeded: the peer posted no " +
		"receive",
		"let the peer post receives before they are needed, and more of them, or raise the RNR retry count " +
			"(7 means for ever)"},
	StatusRemAbortErr: {"REM_ABORT_ERR", "remote aborted: the peer ended the operation",
		"look at the peer: it gave the operation up"},
	StatusFatalErr: {"FATAL_ERR", "fatal error: the NIC or its driver failed",
		"look at the kernel's log for the NIC: it must be reset or replaced, and everything on it opened " +
			"anew"},
	StatusRespTimeoutErr: {"RESP_TIMEOUT_ERR", "response timeout",
		"check that the peer's process lives and that the path to it works"},
	StatusGeneralErr: {"GENERAL_ERR", "general error of the transport",
		"the vendor code and the kernel's log are all there is to go by"},
}

// String returns the status in words.
func (s Status) String() string {
	if s.known() {
		return statusText[s].words
	}
	return "unknown status " + strconv.FormatUint(uint64(s), 10)
}

// Name returns the verbs name of the status: "RETRY_EXC_ERR".
func (s Status) Name() string {
	if s.known() {
		return statusText[s].name
	}
	return "STATUS_" + strconv.FormatUint(uint64(s), 10)
}

// Advice returns the usual causes and what to check, most likely first: "check that the peer's
// process lives ...". It is empty for success, for an unknown status, and if there is nothing to
// add to String.
func (s Status) Advice() string {
	if s.known() {
		return statusText[s].advice
	}
	return ""
}

func (s Status) known() bool { return int(s) < len(statusText) && statusText[s].name != "" }

// Error returns the verbs name followed by the words.
func (s Status) Error() string { return s.Name() + ": " + s.String() }

// Err returns nil for success and the status itself otherwise.
func (s Status) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return s
}
