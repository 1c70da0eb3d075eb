package transport

import (
	"encoding/json"
	"errors"
	"log/slog"

	"ibverbx"
	"ibverbx/verbs"
)

// The errors of this package; test with errors.Is. ErrNoResource and ErrBusy are never wrapped: a
// send on the hot path may compare with ==. Errors about memory and bounds are ibverbx's:
// [ibverbx.ErrNoKey], [ibverbx.ErrBounds], [ibverbx.ErrAlignment]; wrong arguments are
// verbs.ErrInvalid.
var (
	// ErrNoResource: the operation could not start for now, and had no effect. Make progress and
	// call again, or queue a [Pending].
	ErrNoResource = errors.New("transport: no resource for now")
	// ErrBusy: the endpoint has resources, so [Endpoint.Pending] does not queue the request: send
	// again.
	ErrBusy = errors.New("transport: resources are there: send again")
	// ErrNoRoom: the worker has Config.MaxEndpoints endpoints. There is room again once one is
	// closed and progress has released it.
	ErrNoRoom = errors.New("no room for another endpoint")
	// ErrTooLong: the data is longer than the kind of operation takes: see [Endpoint.Limits].
	ErrTooLong = errors.New("too long")
	// ErrNoHandler: the peer has no handler for the id of an active message.
	ErrNoHandler = errors.New("no handler")
	// ErrNotConnected: [Endpoint.Connect] has not been called, or did not succeed.
	ErrNotConnected = errors.New("not connected")
	// ErrAtomicLost: the NIC or queue pair that carried an atomic was lost before the answer came,
	// and whether the number has changed is not known. The endpoint goes on over another one:
	// ibverbx.Config.Failover.
	ErrAtomicLost = errors.New("answer of the atomic lost")
	// ErrCanceled: the operation was outstanding when the endpoint was aborted.
	ErrCanceled = errors.New("canceled")
	// ErrPeerFailed: the connection has failed. The error also wraps the cause, usually an
	// [*ibverbx.FailedError].
	ErrPeerFailed = errors.New("peer failed")
	// ErrPeerAborted: the peer has aborted its endpoint; what was on its way may be lost. It is the
	// cause beneath an ErrPeerFailed.
	ErrPeerAborted = errors.New("the peer has aborted")
	// ErrPeerClosed: the peer has closed its endpoint.
	ErrPeerClosed = errors.New("peer closed")
	// ErrProtocol: the peer sent a message that no endpoint sends. Only its endpoint fails.
	ErrProtocol = errors.New("protocol violation by the peer")
	// ErrWorkerDead: a callback of the worker has panicked or called runtime.Goexit. Nothing makes
	// progress on it any more: close it.
	ErrWorkerDead = errors.New("worker dead")
	// ErrClosed: the endpoint or worker was closed. It is also os.ErrClosed.
	ErrClosed = ibverbx.ErrClosed
)

// OpError says which call was refused, and why. A refused call had no effect.
type OpError struct {
	Op     string // "put short"
	Peer   string // the endpoint's name
	Detail string // what was asked, what was found, what to do; may be empty
	Err    error  // a sentinel of this package, ibverbx or verbs, or an error of theirs
}

// Error reads "transport: put short: peer 3: too long: 300 bytes: at most 120".
func (e *OpError) Error() string {
	s := "transport: " + e.Op + ": "
	if e.Peer != "" {
		s += e.Peer + ": "
	}
	s += e.Err.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// EndpointError is why an endpoint has ended: its operations complete with it, and later calls
// return it.
type EndpointError struct {
	Peer  string // the endpoint's name
	Err   error  // ErrPeerFailed, ErrPeerClosed, ErrProtocol, ErrCanceled, ErrClosed or ErrWorkerDead
	Cause error  // the error that led to it; may be nil
	// Op is the failed operation, of the program ("put") or of the transport itself ("keep-alive");
	// "" if unknown.
	Op string
	// Event is the event of a NIC of this end that explains the failure, for example the NIC's
	// death, when completions only say that requests were flushed. nil if there is none.
	Event *verbs.Event
}

// Error reads "transport: peer 3: peer failed: virtual qp 1: keep-alive ...", or "transport: peer
// 3: this end's NIC: mlx5_0: device failed: put: WR_FLUSH_ERR".
func (e *EndpointError) Error() string {
	s := "transport: " + e.Peer + ": "
	if e.Event == nil {
		s += e.Err.Error()
		if e.Cause != nil {
			s += ": " + e.Cause.Error()
		}
		return s
	}
	s += "this end's NIC: " + e.Event.String()
	if e.Op != "" {
		s += ": " + e.Op
	}
	var status verbs.Status
	if errors.As(e.Cause, &status) {
		s += ": " + status.Name()
	}
	return s
}

// Unwrap returns the sentinel and the cause.
func (e *EndpointError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// LogValue makes slog write the fields in words, and the cause in its own form.
func (e *EndpointError) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("peer", e.Peer), slog.String("kind", e.Err.Error())}
	if e.Op != "" {
		attrs = append(attrs, slog.String("op", e.Op))
	}
	if e.Event != nil {
		attrs = append(attrs, slog.String("event", e.Event.String()))
	}
	if e.Cause != nil {
		attrs = append(attrs, slog.Any("cause", e.Cause))
	}
	return slog.GroupValue(attrs...)
}

// MarshalJSON writes the text of the error, the fields in words, and the cause in its own form if
// it has one, otherwise as text.
func (e *EndpointError) MarshalJSON() ([]byte, error) {
	form := struct {
		Peer  string `json:"peer"`
		Kind  string `json:"kind"`
		Op    string `json:"op,omitempty"`
		Event string `json:"event,omitempty"`
		Error string `json:"error"`
		Cause any    `json:"cause,omitempty"`
	}{Peer: e.Peer, Kind: e.Err.Error(), Op: e.Op, Error: e.Error()}
	if e.Event != nil {
		form.Event = e.Event.String()
	}
	var own json.Marshaler
	switch {
	case errors.As(e.Cause, &own):
		form.Cause = own
	case e.Cause != nil:
		form.Cause = e.Cause.Error()
	}
	return json.Marshal(form)
}
