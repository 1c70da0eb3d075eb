package rendezvous

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// kindDetach is the last message of a conversation whose connection goes on without it.
const kindDetach = "detach"

// errDetached reports that the peer has called Detach.
var errDetached = fmt.Errorf("%w: the peer has detached the connection, and this end has not", ErrProtocol)

// Detach ends the conversation and returns its connection, which is the program's from then on: for
// a protocol of its own, or instead of queue pairs. The peer does the same. TLS, if there is any,
// stays part of the connection. Nothing else may be sent meanwhile, and no message may be left to
// receive; afterwards, calls on c return [ErrClosed], and Close does nothing. An error, an
// [*OpError], ends the conversation and closes the connection.
func (c *Conn) Detach(ctx context.Context) (net.Conn, error) {
	var nc net.Conn
	err := c.step(ctx, "detach", func() (err error) {
		last, err := encode(kindDetach, nil)
		if err != nil {
			return err
		}
		if err := c.SendFrame(ctx, last); err != nil {
			return err
		}
		if err := c.receiveStep(ctx, kindDetach, nil); err != nil {
			return err
		}
		<-c.done // nobody reads the connection any more
		nc, err = c.release()
		return err
	})
	if err != nil {
		return nil, err
	}
	return nc, nil
}

// release closes the conversation, but not its connection, which it returns.
func (c *Conn) release() (net.Conn, error) {
	err := ErrClosed
	c.closed.Do(func() {
		close(c.closing)
		err = c.nc.SetDeadline(time.Time{})
	})
	switch {
	case err != nil:
		return nil, err
	case c.r.Buffered() == 0:
		return c.nc, nil
	}
	return &detached{Conn: c.nc, early: c.r}, nil
}

// detached is a connection of which some bytes were read ahead.
type detached struct {
	net.Conn
	early *bufio.Reader // read until it is empty
}

// Read reads what was read ahead, and then from the connection.
func (d *detached) Read(p []byte) (int, error) {
	if d.early.Buffered() != 0 {
		return d.early.Read(p)
	}
	return d.Conn.Read(p)
}

// SetLinger says what Close of a TCP connection does with bytes that were not sent.
func (d *detached) SetLinger(sec int) error {
	if t, ok := d.Conn.(interface{ SetLinger(int) error }); ok {
		return t.SetLinger(sec)
	}
	return fmt.Errorf("rendezvous: set linger: %w: %T", errors.ErrUnsupported, d.Conn)
}

// CloseWrite shuts down the writing side of a connection that can do so.
func (d *detached) CloseWrite() error {
	if half, ok := d.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("rendezvous: close write: %T has no CloseWrite", d.Conn)
}
