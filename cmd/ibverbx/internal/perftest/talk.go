package perftest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// These are failures of the conversation.
var (
	// ErrGone: the peer has closed the connection.
	ErrGone = errors.New("the peer closed the connection")
	// ErrTimeout: the peer took too long.
	ErrTimeout = errors.New("the peer is silent")
	// ErrMismatch: the two ends have different parameters.
	ErrMismatch = errors.New("the two ends differ")
)

// agree names the parameters that must be the same and are not exchanged.
const agree = "give both ends the same kind of test, -q, -n and -s"

// talk is the conversation: exchanges over a TCP connection, which is closed when ctx ends. It has
// one user at a time.
type talk struct {
	nc      net.Conn
	r       *bufio.Reader
	ctx     context.Context
	client  bool
	timeout time.Duration // of a message
}

func newTalk(ctx context.Context, nc net.Conn, client bool, timeout time.Duration) *talk {
	return &talk{nc: nc, r: bufio.NewReaderSize(nc, 4096), ctx: ctx, client: client, timeout: timeout}
}

// exchange sends one message and receives one of the same length. step names it in errors. A
// patient one waits for its message without a limit.
func (t *talk) exchange(step string, out []byte, patient bool) (in []byte, err error) {
	in = make([]byte, len(out))
	if t.client {
		if err = t.write(step, out); err != nil {
			return nil, err
		}
		return in, t.read(step, in, patient)
	}
	if err = t.read(step, in, patient); err != nil {
		return nil, err
	}
	return in, t.write(step, out)
}

// write sends a message with one call, since perftest reads it with one.
func (t *talk) write(step string, b []byte) error {
	t.limit()
	if _, err := t.nc.Write(b); err != nil {
		return t.explain(err, step, -1, len(b))
	}
	return nil
}

// read receives a message.
func (t *talk) read(step string, b []byte, patient bool) error {
	if patient {
		_ = t.nc.SetDeadline(time.Time{})
		if _, err := t.r.Peek(1); err != nil {
			return t.explain(err, step, 0, len(b))
		}
	}
	t.limit()
	if n, err := io.ReadFull(t.r, b); err != nil {
		return t.explain(err, step, n, len(b))
	}
	return nil
}

// limit puts the timeout on the next calls. A closed connection fails when it is used.
func (t *talk) limit() { _ = t.nc.SetDeadline(time.Now().Add(t.timeout)) }

// explain turns an error of the connection into one of this package. n is how many of a message's
// bytes have come, or -1 if one was sent.
func (t *talk) explain(err error, step string, n, of int) error {
	switch {
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	case n == plainKeysSize && of == keysSize:
		return fmt.Errorf("%w: %s: the peer's message has %d bytes and names no GID: its NIC is an "+
			"InfiniBand one; give it -x with the index of a GID", ErrMismatch, step, n)
	case errors.Is(err, os.ErrDeadlineExceeded) && n < 0:
		return fmt.Errorf("%w: %s: it took nothing for %v", ErrTimeout, step, t.timeout)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %s: waited %v, and %d of %d bytes have come; %s", ErrTimeout, step, t.timeout,
			n, of, agree)
	case n > 0:
		return fmt.Errorf("%w: %s: after %d of the %d bytes of a message; %s", ErrGone, step, n, of, agree)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s: its own output says why", ErrGone, step)
	}
	return fmt.Errorf("%w: %s: %w", ErrGone, step, err)
}

// watch returns a context for the time while messages are under way. It ends some time after the
// peer has moved on to its next message, or has gone. Call stop before the next exchange.
func (t *talk) watch() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	_ = t.nc.SetDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		why := fmt.Errorf("%w: the peer has gone on while this end still waits for messages; %s",
			ErrMismatch, agree)
		if _, err := t.r.Peek(1); err != nil {
			why = t.explain(err, "while messages were under way", 0, 0)
		}
		time.AfterFunc(grace, func() { cancel(why) })
	}()
	return ctx, func() {
		_ = t.nc.SetReadDeadline(time.Unix(1, 0)) // at once
		<-done
		cancel(nil)
	}
}

// bye sends the farewell, and waits until the peer has closed its end too: both ends' queue pairs
// must exist until then, because a last acknowledgement may have been lost.
func (t *talk) bye(farewell string) {
	t.limit()
	if farewell != "" {
		_, _ = t.nc.Write([]byte(farewell)) // the peer may have gone: it does not wait for this
	}
	if half, ok := t.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(t.r, int64(len(farewell))+1))
}
