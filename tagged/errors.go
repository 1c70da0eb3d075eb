package tagged

import (
	"errors"
	"fmt"
	"strings"

	"ibverbx"
	"ibverbx/internal/errwrap"
	"ibverbx/transport"
)

// The errors of this package, for errors.Is. Connection errors are those of package transport.
var (
	// ErrTruncated: the message was longer than the receive. None of it was written; [Info] has its
	// length.
	ErrTruncated = errors.New("tagged: message longer than its receive")
	// ErrDeviceMemory: the sender copied the message, and its receive is device memory, which only
	// NICs write to. None of it was written. To reach device memory, send with SendRegion from
	// device memory, or send a message longer than the sender's Config.EagerLimit, which may be
	// none.
	ErrDeviceMemory = errors.New("tagged: message copied by its sender, and its receive is device memory")
	// ErrCanceled: [Request.Cancel] succeeded, or the endpoint was aborted.
	ErrCanceled = transport.ErrCanceled
	// ErrNotConnected: [Endpoint.Connect] has not been called, or did not succeed.
	ErrNotConnected = transport.ErrNotConnected
	// ErrPeerFailed: the connection has failed. The error wraps the cause.
	ErrPeerFailed = transport.ErrPeerFailed
	// ErrPeerClosed: the peer has closed its endpoint.
	ErrPeerClosed = transport.ErrPeerClosed
	// ErrProtocol: the peer sent what no endpoint sends. Its endpoint fails, others do not.
	ErrProtocol = transport.ErrProtocol
	// ErrNoPeer: RecvWait of a worker waits for a message of any peer, and all endpoints have
	// failed or ended. The error also wraps why the last one did.
	ErrNoPeer = errors.New("no endpoint is left that could send")
	// ErrMismatch: the ranks did not make the same collective calls, or one was refused for an
	// argument. The error of one rank says who called what, those of the others name that rank; one
	// that was refused has verbs.ErrInvalid, too.
	ErrMismatch = errors.New("collective calls do not match")
	// ErrBusy: a collective call was refused, and had no effect, because another one of this rank
	// is under way: a goroutine waits in it, or as many have begun as can be under way at once.
	ErrBusy = errors.New("another collective call of this rank is under way")
	// ErrClosed: the endpoint or worker was closed. It is also os.ErrClosed.
	ErrClosed = transport.ErrClosed
)

// errCanceled is made once: programs that poll with deadlines cancel often.
var errCanceled = fmt.Errorf("tagged: request: %w", ErrCanceled)

// noPeer returns ErrNoPeer with err, which says why the last endpoint ended.
func noPeer(op string, err error) error {
	return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %w: %w", op, ErrNoPeer, within{err})}
}

// mismatchError is the error of arguments that a collective call was refused for: the other ranks
// get ErrMismatch, and so does this one. Its text is that of the reason.
type mismatchError struct{ err error }

func (e *mismatchError) Error() string   { return e.err.Error() }
func (e *mismatchError) Unwrap() []error { return []error{e.err, ErrMismatch} }

// briefError is the failure of an endpoint in a few words: "rank 1: peer failed: the process has
// died". It wraps the error that has the rest.
type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }
func (e *briefError) Unwrap() error { return e.err }

// briefly shortens the failure of an endpoint, if there is something to shorten.
func briefly(err error) error {
	var peer *transport.EndpointError
	var cause *ibverbx.FailedError
	if errors.As(err, &peer) && peer.Event == nil && errors.As(peer.Cause, &cause) {
		return &briefError{fmt.Sprintf("%s: %v: %s", peer.Peer, peer.Err, cause.Brief()), err}
	}
	return err
}

// InterruptedError says that a context ended a wait while the request goes on: the request owns its
// buffers until it is done. Keep Req, and wait for it again.
type InterruptedError struct {
	Req *Request
	Err error // the context's error, with the peer that has not answered
}

// Error reads "tagged: context deadline exceeded: the request goes on, and keeps its buffers until
// it is done".
func (e *InterruptedError) Error() string {
	return "tagged: " + e.Err.Error() + ": the request goes on, and keeps its buffers until it is done"
}

// Unwrap returns the context's error.
func (e *InterruptedError) Unwrap() error { return e.Err }

// refuse returns the error of a call on the worker that had no effect.
func refuse(op string, err error, format string, args ...any) error {
	if format == "" {
		return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %w", op, err)}
	}
	return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %w: "+format, append([]any{op, err}, args...)...)}
}

// within drops the package's name from an error that stands inside another one of this package.
type within struct{ err error }

// Error returns the text without the package's name.
func (e within) Error() string { return strings.TrimPrefix(e.err.Error(), "tagged: ") }

// Unwrap returns the error; for an errwrap.Error, which only adds text, what it wraps.
func (e within) Unwrap() error {
	if d, ok := e.err.(*errwrap.Error); ok { //nolint:errorlint // the outermost
		return d.Err
	}
	return e.err
}
