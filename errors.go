package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Why a post was refused. A [*PostError] wraps them; test with errors.Is. A refused request has no
// effect, and you can post it again.
var (
	// ErrClosed: the virtual queue pair, virtual CQ or domain was closed, or a memory region that a
	// request names. It is also os.ErrClosed.
	ErrClosed = verbs.ErrClosed
	// ErrFailed: an earlier request failed and stopped all later ones. [VirtualQP.Err] says which
	// and why; reset or close.
	ErrFailed = errors.New("virtual queue pair failed")
	// ErrDraining: [VirtualQP.Drain] or [VirtualQP.Shutdown] was called. [VirtualQP.Reset] and
	// Connect restore service.
	ErrDraining = errors.New("draining")
	// ErrNotConnected: the virtual queue pair is not in state RTS (for receives: not in INIT or
	// later).
	ErrNotConnected = errors.New("not connected")
	// ErrOpcode: no such operation, or not on this virtual queue pair.
	ErrOpcode = errors.New("unsupported opcode")
	// ErrUnsignaled: with several queue pairs every request must be signaled, a WRITE_WITH_IMM too.
	ErrUnsignaled = errors.New("unsignaled request")
	// ErrLength: the length does not fit the operation: an atomic that is not eight bytes, more
	// than a single message can carry, or a length that EveryRail cannot cut evenly.
	ErrLength = errors.New("wrong length")
	// ErrNoKey: memory has no key for a device of the virtual queue pair.
	ErrNoKey = errors.New("no key")
	// ErrBounds: a segment reaches beyond its memory region, or a request beyond its remote
	// segment.
	ErrBounds = errors.New("out of bounds")
	// ErrAlignment: the remote address of an atomic is not a multiple of eight.
	ErrAlignment = errors.New("not aligned")
)

// ErrOwnCard is the error when [VirtualQP.Connect] is given the virtual queue pair's own card.
var ErrOwnCard = errors.New("a virtual queue pair's own card")

// ErrProtocol is the error when the peer sends something impossible, such as a sequence number that
// is far off or a repetition. It is the cause in [VirtualQP.Err]; other virtual queue pairs are not
// affected.
var ErrProtocol = errors.New("protocol violation by the peer")

// PostError reports why a post was refused. It is a slog.LogValuer and a json.Marshaler, which
// write its fields.
type PostError struct {
	Op     string // "post send" or "post recv"
	Index  int    // which work request of the call
	ID     uint64 // its ID
	Detail string // what was asked, what was found, what to do
	Err    error  // a sentinel of this package or of verbs
	Cause  error  // with ErrFailed: the error of [VirtualQP.Err]; otherwise nil
}

// Error returns a line like "ibverbx: post send: request 0 (id 7): no key: for device 1 ...".
func (e *PostError) Error() string {
	s := fmt.Sprintf("ibverbx: %s: request %d (id %d): %v", e.Op, e.Index, e.ID, e.Err)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the sentinel, and the cause if there is one.
func (e *PostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// checkedRequests is how many live requests a check examines one by one, at most: it runs after
// every call.
const checkedRequests = 64

// broken panics with the invariant that does not hold. Only checks of invariants call it. They run
// on the hot path of builds that check, so they box arguments only if one does not hold.
func broken(format string, args ...any) {
	panic("ibverbx: broken invariant: " + fmt.Sprintf(format, args...))
}
