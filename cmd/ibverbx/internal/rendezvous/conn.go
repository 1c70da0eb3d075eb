package rendezvous

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Config configures a conversation.
type Config struct {
	// Version is that of the user's messages: both ends must have the same.
	Version uint32
	// Timeout bounds each step; 0 means 30 seconds.
	Timeout time.Duration
	// Greeting bounds the beginning, and what ReceiveSoon waits for, where that is to be shorter; 0
	// means Timeout.
	Greeting time.Duration
	// MaxFrame bounds a message in bytes; 0 means 1 MiB.
	MaxFrame int
}

// Defaults, and what Fail grants the peer.
const (
	defaultTimeout  = 30 * time.Second
	defaultMaxFrame = 1 << 20
	// lastWords is how long Fail waits for the peer to close too.
	lastWords = 2 * time.Second
	// inboxLen is how many messages wait to be received.
	inboxLen = 8
)

// errorKind is the message that ends a conversation.
const errorKind = "error"

type errorBody struct {
	Text string `json:"text"`
}

// Conn is a conversation under way. Send and Fail may be called from any goroutine, and Receive
// from one at a time.
type Conn struct {
	nc      net.Conn
	cfg     Config
	inbox   chan Message
	closing chan struct{} // this end has closed it
	done    chan struct{} // nothing more will come; err says why
	err     error

	mu     sync.Mutex // guards writing, closed and broken
	closed bool
	broken bool // a frame was begun and not finished: nothing can follow it
}

// Start begins a conversation over a connection, which it owns from then on: also where it fails,
// and then it is closed.
func Start(ctx context.Context, nc net.Conn, cfg Config) (*Conn, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Greeting == 0 {
		cfg.Greeting = cfg.Timeout
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = defaultMaxFrame
	}
	c := &Conn{nc: nc, cfg: cfg, inbox: make(chan Message, inboxLen), closing: make(chan struct{}),
		done: make(chan struct{})}
	if err := c.greet(ctx); err != nil {
		_ = nc.Close()
		return nil, err
	}
	go c.listen()
	return c, nil
}

// greet exchanges the beginnings.
func (c *Conn) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := c.nc.SetDeadline(time.Now().Add(c.cfg.Greeting))
	if err == nil {
		_, err = c.nc.Write(preface(c.cfg.Version))
	}
	if err == nil {
		err = readPreface(c.nc, c.cfg.Version)
	}
	if !stop() && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = c.nc.SetDeadline(time.Time{})
	}
	return c.explain(err, c.cfg.Greeting, "its greeting")
}

// explain turns an error of the connection into one of this package.
func (c *Conn) explain(err error, waited time.Duration, awaited string) error {
	switch {
	case err == nil || errors.Is(err, ErrProtocol) || errors.Is(err, ErrVersion):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late(waited, awaited)
	case errors.Is(err, io.EOF):
		return ErrGone
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func late(waited time.Duration, awaited string) error {
	return fmt.Errorf("%w: waited %v for %s", ErrTimeout, waited, awaited)
}

// listen reads until there is nothing more to read.
func (c *Conn) listen() {
	defer close(c.done)
	r := bufio.NewReader(c.nc)
	for {
		m, err := c.next(r)
		if err == nil && m.Kind == errorKind {
			var body errorBody
			if err = m.Decode(&body); err == nil {
				err = &PeerError{Clean(body.Text)}
			}
		}
		if err != nil {
			c.err = err
			return
		}
		select {
		case c.inbox <- m:
		case <-c.closing:
			c.err = ErrClosed
			return
		}
	}
}

// next reads a message. The wait for its beginning is not bounded; the rest of it is.
func (c *Conn) next(r *bufio.Reader) (m Message, err error) {
	if _, err = r.Peek(1); err == nil {
		_ = c.nc.SetReadDeadline(time.Now().Add(c.cfg.Timeout)) // a closed one fails when it is read
		if m, err = readFrame(r, c.cfg.MaxFrame); err == nil {
			_ = c.nc.SetReadDeadline(time.Time{})
		}
	}
	if err == nil {
		return m, nil
	}
	select {
	case <-c.closing:
		return m, ErrClosed
	default:
		return m, c.explain(err, c.cfg.Timeout, "the rest of a message")
	}
}

// Timeout is what bounds each step.
func (c *Conn) Timeout() time.Duration { return c.cfg.Timeout }

// LocalAddr is this end's address of the connection.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr is where the peer is.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Send sends the peer a message. A nil body is none. A peer that does not read holds it up until
// ctx ends or the timeout is over; after that nothing more can be sent.
func (c *Conn) Send(ctx context.Context, kind string, body any) error {
	frame, err := appendFrame(nil, kind, body, c.cfg.MaxFrame)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = c.write(ctx, frame, c.cfg.Timeout)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrClosed):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late(c.cfg.Timeout, fmt.Sprintf("the peer to take %q", kind))
	}
	if why := c.heard(); why != nil {
		return why // the reason that the peer sent before it left
	}
	return c.explain(err, 0, "")
}

// write writes a frame within some time.
func (c *Conn) write(ctx context.Context, frame []byte, within time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if c.broken {
		return io.ErrShortWrite
	}
	if err := c.nc.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.nc.SetWriteDeadline(time.Unix(1, 0))
		close(cut)
	})
	n, err := c.nc.Write(frame)
	if !stop() {
		<-cut // otherwise it would cut off the next frame
	}
	c.broken = err != nil && n > 0
	return err
}

// heard is why nothing more will come, if that becomes known soon.
func (c *Conn) heard() error {
	timer := time.NewTimer(min(lastWords, c.cfg.Timeout))
	defer timer.Stop()
	select {
	case <-c.done:
		return c.err
	case <-timer.C:
		return nil
	}
}

// Receive waits for the next message, which must be of a kind, and reads its body into body unless
// that is nil.
func (c *Conn) Receive(ctx context.Context, kind string, body any) error {
	m, err := c.ReceiveAny(ctx, kind)
	if err != nil || body == nil {
		return err
	}
	return m.Decode(body)
}

// ReceiveAny waits for the next message, which must be of one of some kinds.
func (c *Conn) ReceiveAny(ctx context.Context, kinds ...string) (m Message, err error) {
	return c.receive(ctx, c.cfg.Timeout, kinds)
}

// ReceiveSoon is ReceiveAny for what the peer sends at once:
// it waits no longer than for a greeting.
func (c *Conn) ReceiveSoon(ctx context.Context, kinds ...string) (m Message, err error) {
	return c.receive(ctx, c.cfg.Greeting, kinds)
}

func (c *Conn) receive(ctx context.Context, within time.Duration, kinds []string) (m Message, err error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case m = <-c.inbox:
	case <-c.done:
		select {
		case m = <-c.inbox: // came before the end
		default:
			return m, c.err
		}
	case <-ctx.Done():
		return m, context.Cause(ctx)
	case <-timer.C:
		return m, late(within, fmt.Sprintf("message %q", kinds[0]))
	}
	return m, m.Expect(kinds...)
}

// Expect says whether the message is of one of some kinds.
func (m *Message) Expect(kinds ...string) error {
	for _, k := range kinds {
		if m.Kind == k {
			return nil
		}
	}
	return fmt.Errorf("%w: message %q came in place of %q", ErrProtocol, m.Kind, kinds[0])
}

// Inbox is where messages arrive, for use in a select. Receiving one takes it.
func (c *Conn) Inbox() <-chan Message { return c.inbox }

// Done is closed once nothing more will come. Messages that came before may still be in the inbox.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why nothing more will come; nil while it may.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Fail tells the peer why this end gives up, and closes the conversation once the peer has
// acknowledged that or gone. The peer's own reason, if it sent one, is then in Err.
func (c *Conn) Fail(why error) {
	frame, err := appendFrame(nil, errorKind, errorBody{Clean(why.Error())}, c.cfg.MaxFrame)
	if err == nil && c.write(context.Background(), frame, min(lastWords, c.cfg.Timeout)) == nil {
		// Closed with unread messages a connection is reset, and the last words would be lost.
		if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // the peer sees the end otherwise
		}
		timer := time.NewTimer(min(lastWords, c.cfg.Timeout))
		defer timer.Stop()
		for waiting := true; waiting; {
			select {
			case <-c.inbox: // discarded
			case <-c.done:
				waiting = false
			case <-timer.C:
				waiting = false
			}
		}
	}
	_ = c.Close()
}

// Close ends the conversation. It may be called again.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.closing)
	err := c.nc.Close()
	c.mu.Unlock()
	<-c.done
	return err
}
