package udp

import (
	"errors"
	"net/netip"
	"strings"
)

// The errors that a caller can act on, beside [verbs.ErrClosed], [verbs.ErrInvalid],
// [verbs.ErrNotSupported] and os.ErrDeadlineExceeded. All but ErrAgain lie beneath an [*Error].
var (
	// ErrAgain: nothing to receive, or no room to send, at this moment. It is never wrapped.
	ErrAgain = errors.New("would have to wait")
	// ErrPortTaken: another socket of this network namespace has the port.
	ErrPortTaken = errors.New("port already taken")
	// ErrNotLocal: no interface of this network namespace has the address.
	ErrNotLocal = errors.New("not an address of this host")
	// ErrPermission: the system does not allow it.
	ErrPermission = errors.New("not permitted")
	// ErrFamily: the system lacks IPv4 or IPv6, or the two ends use different ones.
	ErrFamily = errors.New("address family does not fit")
	// ErrTooLarge: a datagram does not fit the path, and must not be fragmented.
	ErrTooLarge = errors.New("datagram too large for the path")
	// ErrUnreachable: there is no route to the destination, or its network is down.
	ErrUnreachable = errors.New("destination unreachable")
)

// Error says what failed, between which addresses, and why.
type Error struct {
	Op     string         // "listen", "send", "receive", "path mtu"
	Local  netip.AddrPort // the socket's address
	Remote netip.AddrPort // the destination; not valid if there is none
	Err    error          // a sentinel of this package or of verbs; nil if none fits
	Errno  error          // the system's error; may be nil
	Detail string         // what was found, what to do; may be empty
}

// Error reads "send: 192.0.2.1:4791 to 192.0.2.2:4791: datagram too large for the path (message too
// long): 4112 bytes of UDP payload; Conn.MTU says ...".
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString(e.Op)
	if e.Local.IsValid() {
		s.WriteString(": " + e.Local.String())
	}
	if e.Remote.IsValid() {
		s.WriteString(" to " + e.Remote.String())
	}
	switch {
	case e.Err != nil && e.Errno != nil:
		s.WriteString(": " + e.Err.Error() + " (" + e.Errno.Error() + ")")
	case e.Err != nil:
		s.WriteString(": " + e.Err.Error())
	case e.Errno != nil:
		s.WriteString(": " + e.Errno.Error())
	}
	if e.Detail != "" {
		s.WriteString(": " + e.Detail)
	}
	return s.String()
}

// Unwrap returns the sentinel and the system's error.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Err, e.Errno} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
