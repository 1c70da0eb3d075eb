package rendezvous_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Both ends detach the connection after a conversation, with and without TLS: no byte is lost,
// however early the peer wrote it, and closing the conversation leaves the connection open.
func TestDetach(t *testing.T) {
	ca := newAuthority(t, "ca")
	for name, cfg := range map[string]rendezvous.Config{
		"tcp": {},
		"tls": {TLS: &tls.Config{Certificates: ca.issue("127.0.0.1", nil), RootCAs: ca.pool()}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := met(t, cfg)
			var x, y net.Conn
			errA, errB := both(func() (err error) {
				if _, err = rendezvous.Exchange(t.Context(), a, "hello"); err == nil {
					x, err = a.Detach(t.Context())
				}
				if err == nil {
					_, err = io.WriteString(x, "early")
				}
				return err
			}, func() (err error) {
				if _, err = rendezvous.Exchange(t.Context(), b, "hello"); err == nil {
					y, err = b.Detach(t.Context())
				}
				return err
			})
			if err := errors.Join(errA, errB); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
			if err := a.Send(t.Context(), "word", nil); !errors.Is(err, rendezvous.ErrClosed) {
				t.Errorf("send after detach: %v", err)
			}
			if _, err := io.WriteString(x, " and late"); err != nil {
				t.Fatal(err)
			}
			if err := x.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(y); err != nil || string(got) != "early and late" {
				t.Errorf("got %q, %v", got, err)
			}
			if err := errors.Join(x.Close(), y.Close()); err != nil && cfg.TLS == nil {
				t.Error(err)
			}
		})
	}
}

// A program may not send the message of Detach itself.
func TestDetachIsReserved(t *testing.T) {
	a, _ := met(t, rendezvous.Config{})
	if err := a.Send(t.Context(), "detach", nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}

// An end that is not in step, or whose time is over, gets no connection, and the peer learns why.
func TestDetachNeedsBoth(t *testing.T) {
	a, b := met(t, rendezvous.Config{Timeout: 10 * time.Second})
	errA, errB := both(func() error {
		_, err := a.Detach(t.Context())
		return err
	}, func() error { return b.Barrier(t.Context()) })
	if !errors.Is(errors.Join(errA, errB), rendezvous.ErrProtocol) || errA == nil || errB == nil {
		t.Errorf("%v, %v", errA, errB)
	}
	a, _ = met(t, rendezvous.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if nc, err := a.Detach(ctx); !errors.Is(err, context.Canceled) || nc != nil {
		t.Errorf("%v, %v", nc, err)
	}
	if err := a.Send(t.Context(), "word", nil); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("send after a failed detach: %v", err)
	}
}
