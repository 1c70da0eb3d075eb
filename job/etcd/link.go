package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// link observes the connections to etcd. The client tries again until a context ends, and does not
// say what prevented the connection.
type link struct {
	logger *slog.Logger
	tls    *tls.Config // nil is no TLS

	mu    sync.Mutex
	local net.Addr
	ever  bool  // etcd has answered
	last  error // why there is no connection; nil while one works
}

// options returns the client's options for the link. It tries to connect more often than by
// default, so that it finds etcd soon after it is back.
func (l *link) options() []grpc.DialOption {
	creds := insecure.NewCredentials()
	if l.tls != nil {
		creds = credentials.NewTLS(l.tls)
	}
	often := grpc.ConnectParams{MinConnectTimeout: 3 * time.Second, Backoff: backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 2 * time.Second}}
	return []grpc.DialOption{grpc.WithContextDialer(l.dial), grpc.WithConnectParams(often),
		grpc.WithTransportCredentials(&watched{creds, l})}
}

// dial opens a connection.
func (l *link) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		l.fails(err)
	}
	return c, err
}

// watched is credentials that report the fate of the handshake and of the connection to the link.
type watched struct {
	credentials.TransportCredentials

	l *link
}

// ClientHandshake begins TLS, or nothing.
func (w *watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	if w.l.tls != nil && w.l.tls.ServerName != "" {
		authority = w.l.tls.ServerName
	}
	c, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.l.fails(fmt.Errorf("%v: %w", raw.RemoteAddr(), err))
		return nil, nil, err
	}
	w.l.mu.Lock()
	w.l.local = raw.LocalAddr()
	w.l.mu.Unlock()
	return &conn{c, w.l}, info, nil
}

// Clone returns a copy.
func (w *watched) Clone() credentials.TransportCredentials {
	return &watched{w.TransportCredentials.Clone(), w.l}
}

// conn is a connection to etcd.
type conn struct {
	net.Conn

	l *link
}

// Read reads.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.l.fails(fmt.Errorf("%v: the connection has ended: %w", c.RemoteAddr(), err))
	}
	return n, err
}

// fails records why there is no connection.
func (l *link) fails(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	err = l.advise(err)
	l.mu.Lock()
	first := l.last == nil
	l.last = err
	l.mu.Unlock()
	if first {
		l.logger.Warn("ibverbx: etcd: no connection", "because", err)
	}
}

// works records that etcd has answered.
func (l *link) works() {
	l.mu.Lock()
	l.ever, l.last = true, nil
	l.mu.Unlock()
}

// known reports whether etcd has answered before.
func (l *link) known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ever
}

// why returns why there is no connection, if that is known.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// advise adds advice to an error that has none.
func (l *link) advise(err error) error {
	var remote *net.OpError
	switch end := !l.known() && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)); {
	case end && l.tls != nil:
		return fmt.Errorf("%w: etcd may speak no TLS there, and this end does", err)
	case end:
		return fmt.Errorf("%w: if etcd wants TLS set Config.TLS", err)
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert of TLS
		return fmt.Errorf("%w: etcd refuses the certificate in Config.TLS, or misses one", err)
	}
	return err
}
