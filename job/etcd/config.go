package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// ErrConfig marks errors of a wrong [Config] or argument. Test with errors.Is.
var ErrConfig = errors.New("invalid configuration")

// Config describes how to reach etcd. Endpoints are required.
type Config struct {
	// Endpoints are the members of the cluster, or some: HOST:PORT, http://HOST:PORT, or
	// https://HOST:PORT, which uses TLS, as does the field TLS.
	Endpoints []string
	// TLS has the trusted and the own certificates. Nil is no TLS, or for https:// the system's
	// defaults.
	TLS *tls.Config
	// Username and Password are for an etcd that requires them; empty otherwise.
	Username, Password string
	// Prefix is put before all keys, for an etcd that others also use, or in which a user may write
	// only a part.
	Prefix string

	// Lease is how long the values of this process outlive it if it is killed; 0 means 10 seconds.
	// In whole seconds, at least 2; etcd may take longer.
	Lease time.Duration
	// Wait is how long Open waits for etcd to answer; 0 means 10 seconds.
	Wait time.Duration
	// Logger logs that etcd cannot be reached; nil is slog.Default.
	Logger *slog.Logger
}

const (
	defaultLease = 10 * time.Second
	defaultWait  = 10 * time.Second
)

// withDefaults returns c with defaults in place of zero fields, or an error that names the wrong
// field.
func (c Config) withDefaults() (Config, error) {
	if len(c.Endpoints) == 0 {
		return c, invalid("no Endpoints: name etcd's members, as in \"etcd:2379\"")
	}
	secure := 0
	for _, e := range c.Endpoints {
		scheme, addr, found := strings.Cut(e, "://")
		if !found {
			scheme, addr = "", e
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" || scheme != "" && scheme != "http" && scheme != "https" {
			return c, invalid("endpoint %.200q: must be HOST:PORT, http://HOST:PORT or https://HOST:PORT", e)
		}
		if scheme == "http" && c.TLS != nil {
			return c, invalid("endpoint %.200q has no TLS, and TLS is set: write https:// or HOST:PORT", e)
		}
		if scheme == "https" {
			secure++
		}
	}
	switch {
	case c.TLS == nil && secure > 0 && secure < len(c.Endpoints):
		return c, invalid("some Endpoints are https:// and some not, without TLS set: write all alike")
	case c.TLS == nil && secure > 0:
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	case c.Username == "" && c.Password != "" || c.Username != "" && c.Password == "":
		return c, invalid("of Username and Password one is empty")
	case c.Lease != 0 && c.Lease < 2*time.Second || c.Lease%time.Second != 0:
		return c, invalid("Lease %v: must be whole seconds, at least 2", c.Lease)
	case c.Wait < 0:
		return c, invalid("Wait %v: must not be negative", c.Wait)
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.Wait == 0 {
		c.Wait = defaultWait
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("etcd: %w: "+format, append([]any{ErrConfig}, args...)...)
}
