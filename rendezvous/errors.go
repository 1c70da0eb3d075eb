package rendezvous

import (
	"errors"
	"fmt"
	"net"
)

// How a conversation ends. Test with errors.Is.
var (
	// ErrGone: the peer has gone. Unless it is also ErrLeft, the peer has died, or the connection
	// broke.
	ErrGone = errors.New("the peer has gone")
	// ErrLeft: the peer has closed the conversation in order, with [Conn.Close]. It is also
	// ErrGone.
	ErrLeft = fmt.Errorf("%w: it has closed the conversation", ErrGone)
	// ErrTimeout: the peer did not answer in time.
	ErrTimeout = errors.New("the peer does not answer")
	// ErrProtocol: the peer broke the protocol, or does not use this package.
	ErrProtocol = errors.New("protocol error")
	// ErrVersion: the peer speaks another version of this package's format, or another
	// Config.Protocol.
	ErrVersion = errors.New("version mismatch")
	// ErrTLS: there is no TLS connection: one end has no TLS, or refuses the other's certificate.
	// errors.As finds the errors of crypto/tls and crypto/x509.
	ErrTLS = errors.New("no TLS connection")
	// ErrBusy: the listening end has no room for this conversation, but may have soon. The error is
	// a [*PeerError].
	ErrBusy = errors.New("busy, try again later")
	// ErrClosed: this end has closed the conversation, or the listener.
	ErrClosed = errors.New("conversation closed")
)

// PeerError is the reason that the peer gave for ending the conversation. Its text is safe to
// print. It matches ErrBusy if the peer's own error does.
type PeerError struct {
	Text string
	busy bool
}

// Error returns "peer: " and the text.
func (e *PeerError) Error() string { return "peer: " + e.Text }

// Is reports whether the peer's reason is target: only ErrBusy is recognized.
func (e *PeerError) Is(target error) bool { return e.busy && target == ErrBusy }

// OpError is the error of a call that is a step: Listen, Accept, Dial, Connect, Exchange, Barrier.
type OpError struct {
	Op   string // "listen", "accept", "dial", "connect", "exchange", "barrier"
	Addr string // the address of the peer, or of the listener
	Err  error
}

// Error names the step, the peer and the reason.
func (e *OpError) Error() string {
	var netErr *net.OpError
	if errors.As(e.Err, &netErr) && (netErr.Op == "dial" || netErr.Op == "listen") {
		return "rendezvous: " + e.Err.Error() // it names step and address itself
	}
	return "rendezvous: " + e.Op + " " + e.Addr + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// maxReason is the most characters of a reason that quotes the peer.
const maxReason = 400
