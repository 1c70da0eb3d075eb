package rendezvous

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// Dial connects to a process that listens at addr, HOST:PORT, and begins a conversation. Errors are
// an [*OpError], except for an invalid Config: that error names the field and is
// [verbs.ErrInvalid].
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults(false)
	switch {
	case err != nil:
		return nil, err
	case ctx == nil:
		return nil, &OpError{"dial", addr, errNoContext}
	}
	nc, err := dialTCP(ctx, addr, &cfg)
	if err != nil {
		return nil, &OpError{"dial", addr, err}
	}
	if cfg.TLS != nil {
		nc = tls.Client(nc, clientTLS(cfg.TLS, addr))
	}
	c, err := begin(ctx, nc, cfg)
	if errors.Is(err, ErrTimeout) {
		err = fmt.Errorf("%w: something has taken the connection, and may be no ibverbx", err)
	}
	if err != nil {
		return nil, &OpError{"dial", addr, err}
	}
	c.run()
	return c, nil
}

// retryPause is how long Dial waits between two attempts.
const retryPause = 50 * time.Millisecond

// dialTCP opens the connection, as often as Config.Retry allows.
func dialTCP(ctx context.Context, addr string, cfg *Config) (net.Conn, error) {
	var slow net.Error
	d := net.Dialer{Timeout: cfg.Timeout}
	for begun := time.Now(); ; {
		nc, err := d.DialContext(ctx, "tcp", addr)
		switch {
		case err == nil:
			return nc, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &slow) && slow.Timeout():
			return nil, fmt.Errorf("%w: %w", ErrTimeout, err)
		case !errors.Is(err, syscall.ECONNREFUSED):
			return nil, err
		case cfg.Retry == 0:
			return nil, fmt.Errorf("%w: nobody listens there: start the listening end first, or set "+
				"Config.Retry", err)
		case time.Since(begun) >= cfg.Retry:
			return nil, fmt.Errorf("%w: nobody has listened there for %v", err, cfg.Retry)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(retryPause):
		}
	}
}

// clientTLS returns the TLS configuration for dialling addr.
func clientTLS(cfg *tls.Config, addr string) *tls.Config {
	cfg = modern(cfg)
	if cfg.ServerName == "" {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			cfg.ServerName = host
		}
	}
	return cfg
}

// modern returns a copy of the configuration whose default is TLS 1.3, because both ends are of
// this package.
func modern(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS13
	}
	return cfg
}
