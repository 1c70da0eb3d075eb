package rendezvous

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	// magic begins a conversation. Its first byte occurs in no text.
	magic = "\x89ibverbx"
	// wireVersion is the version of the format: the greeting, frames, and the messages of this
	// package.
	wireVersion = 9
	// maxProtocol is the longest name of a protocol, in bytes.
	maxProtocol = 255
)

// greeting returns the first bytes that an end sends.
func greeting(version uint32, protocol string) []byte {
	b := binary.BigEndian.AppendUint32([]byte(magic), version)
	return append(append(b, byte(len(protocol))), protocol...)
}

// readGreeting reads the peer's greeting and nothing beyond. It refuses the greeting as soon as a
// part of it is wrong.
func readGreeting(r io.Reader, protocol string) error {
	var head [headLen]byte
	if err := readHead(r, head[:]); err != nil {
		return err
	}
	theirs := make([]byte, head[headLen-1])
	if _, err := io.ReadFull(r, theirs); err != nil {
		return err
	}
	switch {
	case !isProtocol(string(theirs)):
		return fmt.Errorf("%w: the name of the peer's protocol is %.40q", ErrProtocol, theirs)
	case string(theirs) != protocol:
		return fmt.Errorf("%w: the peer is here for protocol %q, this end for %q: run the same program, in "+
			"the same version, on both sides", ErrVersion, theirs, protocol)
	}
	return nil
}

// headLen is the number of bytes before the protocol's name: magic, version, length.
const headLen = len(magic) + 4 + 1

// readHead reads the head of a greeting, and stops at the first byte that differs from a peer's.
func readHead(r io.Reader, head []byte) error {
	for got := 0; got < len(head); {
		n, err := r.Read(head[got:])
		got += n
		switch began := min(got, len(magic)); {
		case string(head[:began]) == magic[:began]:
		case looksLikeTLS(head[:got]):
			return fmt.Errorf("%w: the peer begins with TLS, and this end has none: set Config.TLS at both "+
				"ends or at none", ErrTLS)
		case looksLikePerftest(head[:got]):
			return fmt.Errorf("%w: the peer does not speak ibverbx: it began with a version, %q, as a tool "+
				"of perftest does, or \"ibverbx perftest\": run the same program at both ends", ErrProtocol,
				bytes.TrimRight(head[:got], "\x00"))
		default:
			return fmt.Errorf("%w: the peer does not speak ibverbx: it began with %q", ErrProtocol,
				head[:got])
		}
		if got >= len(magic)+4 {
			if v := binary.BigEndian.Uint32(head[len(magic):]); v != wireVersion {
				return fmt.Errorf("%w: the peer speaks version %d, this end version %d: use the same "+
					"ibverbx on both sides", ErrVersion, v, wireVersion)
			}
		}
		if err != nil && got < len(head) {
			return err
		}
	}
	return nil
}

// looksLikeTLS reports whether b, which is not empty, begins a TLS record of a handshake or an
// alert.
func looksLikeTLS(b []byte) bool {
	return (b[0] == 0x16 || b[0] == 0x15) && (len(b) == 1 || b[1] == 3)
}

// looksLikePerftest reports whether b is the version that tools of perftest send first: digits, a
// point and digits, such as 6.06, followed by zeros.
func looksLikePerftest(b []byte) bool {
	const digits = "0123456789"
	major, rest, found := bytes.Cut(b, []byte{'.'})
	minor := bytes.TrimRight(rest, "\x00")
	return found && len(major) > 0 && len(minor) > 0 && len(minor) < len(rest) &&
		len(bytes.Trim(major, digits)) == 0 && len(bytes.Trim(minor, digits)) == 0
}

// Start begins a conversation over an existing connection, such as a unix socket or one end of a
// net.Pipe; the other end does the same. If you want TLS, it must be part of that connection:
// Config.TLS has no effect. Start owns the connection from then on, and closes it if it fails.
func Start(ctx context.Context, nc net.Conn, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults(false)
	if err == nil && ctx == nil {
		err = errNoContext
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	c, err := begin(ctx, nc, cfg)
	if err != nil {
		return nil, err
	}
	c.run()
	return c, nil
}

// begin exchanges the greetings. Nothing more is read until run is called. After an error the
// connection is closed.
func begin(ctx context.Context, nc net.Conn, cfg Config) (*Conn, error) {
	in := &incoming{nc: nc}
	c := &Conn{nc: nc, in: in, r: bufio.NewReader(in), cfg: cfg, inbox: make(chan Message, inboxLen),
		closing: make(chan struct{}), done: make(chan struct{}), writing: make(chan struct{}, 1)}
	if err := c.greet(ctx); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return c, nil
}

// greet exchanges the greetings, after the TLS handshake if there is one.
func (c *Conn) greet(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := c.nc.SetDeadline(time.Now().Add(c.cfg.Greeting)) // AfterFunc below may set an earlier one
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if over, ok := c.nc.(*tls.Conn); ok && err == nil {
		err = explainTLS(over.HandshakeContext(ctx))
		if errors.Is(err, errNoTLSThere) {
			_, _ = over.NetConn().Write([]byte(alert)) // the peer understands it
		}
	}
	if err == nil {
		err = c.swap()
	}
	if !stop() && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = c.nc.SetDeadline(time.Time{})
	}
	return c.explain(err, c.cfg.Greeting, "its greeting")
}

// swap writes this end's greeting while it reads the peer's, because on some connections a write
// waits until the peer reads. It prefers the error of reading.
func (c *Conn) swap() error {
	var wrote error
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		_, wrote = c.nc.Write(greeting(wireVersion, c.cfg.Protocol))
	}()
	if err := readGreeting(c.nc, c.cfg.Protocol); err != nil {
		select {
		case <-writing:
		case <-time.After(refusedGreeting): // lets the peer learn why, though it may not read at all
			_ = c.nc.SetDeadline(time.Unix(1, 0))
			<-writing
		}
		return explainAlert(err)
	}
	<-writing
	return wrote
}

// refusedGreeting is how long an end still tries to greet a peer that it refuses.
const refusedGreeting = 100 * time.Millisecond

// errNoTLSThere reports that the peer does not use TLS.
var errNoTLSThere = fmt.Errorf("%w: the peer speaks ibverbx without TLS: set Config.TLS at both ends or at "+
	"none", ErrTLS)

// alert is a TLS record that refuses the handshake (handshake_failure, fatal). crypto/tls sends
// none to a peer without TLS.
const alert = "\x15\x03\x01\x00\x02\x02\x28"

// explainTLS explains an error of a handshake; nil stays nil. A connection that breaks says nothing
// about TLS, so its error stays as well.
func explainTLS(err error) error {
	var record tls.RecordHeaderError
	var broken syscall.Errno
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken):
		return err
	case errors.As(err, &record) && strings.HasPrefix(magic, string(record.RecordHeader[:])):
		return errNoTLSThere
	case errors.As(err, &record):
		return fmt.Errorf("%w: the peer speaks neither TLS nor ibverbx: it began with %q", ErrTLS,
			record.RecordHeader[:])
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("%w: the peer's certificate is refused: %w", ErrTLS, err)
	}
	if refused := explainAlert(err); errors.Is(refused, ErrTLS) {
		return refused
	}
	return fmt.Errorf("%w: %w", ErrTLS, err)
}

// explainAlert explains an error that is a TLS alert from the peer, and returns others as they are.
// In TLS 1.3 a client learns only after its handshake that its certificate is refused.
func explainAlert(err error) error {
	var said *net.OpError
	if errors.As(err, &said) && said.Op == "remote error" {
		return fmt.Errorf("%w: the peer refuses this end: %w: see the certificate of this end, and those "+
			"that the peer trusts", ErrTLS, said.Err)
	}
	return err
}

// explain turns an error of the connection into one of this package.
func (c *Conn) explain(err error, waited time.Duration, awaited string) error {
	switch {
	case err == nil || errors.Is(err, ErrLeft) || errors.Is(err, ErrProtocol) ||
		errors.Is(err, ErrVersion) || errors.Is(err, ErrTLS):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooLate(waited, awaited)
	case errors.Is(err, io.EOF):
		return ErrGone
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func tooLate(waited time.Duration, awaited string) error {
	return fmt.Errorf("%w: waited %v for %s", ErrTimeout, waited, awaited)
}
