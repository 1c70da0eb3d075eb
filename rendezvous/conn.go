package rendezvous

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/verbs"
)

const (
	// lastWords is the time that Fail waits for the peer to close too.
	lastWords = 2 * time.Second
	// hasty is that time if a context has ended, or the listener is closed.
	hasty = 50 * time.Millisecond
	// parting is the time that Close waits for a peer to take the goodbye.
	parting = 100 * time.Millisecond
	// draining is the time for which Close discards what this end has not received, if it is much.
	draining = 10 * time.Millisecond
	// leave is the time that Close and Fail wait for a peer to take the end of TLS.
	leave = 40 * time.Millisecond
	// inboxLen is the number of messages that may wait to be received.
	inboxLen = 8
)

// errorKind is the message that ends a conversation.
const errorKind = "error"

type errorBody struct {
	Text string `json:"text"`
	Busy bool   `json:"busy,omitempty"` // the reason is ErrBusy
}

// errNoContext refuses a call.
var errNoContext = fmt.Errorf("%w: the context is nil", verbs.ErrInvalid)

// Conn is a conversation, until [Conn.Close] or [Conn.Fail]. You may call Send, Fail and Close from
// any goroutine. Calls that receive, Connect, Exchange and [Conn.Barrier] included, belong to one
// goroutine at a time.
type Conn struct {
	nc      net.Conn
	in      *incoming
	r       *bufio.Reader // reads in, behind the greeting
	cfg     Config
	inbox   chan Message
	closing chan struct{} // this end has closed it
	closed  sync.Once
	done    chan struct{} // nothing more will come; err says why
	err     error

	taken chan struct{} // closed by run, if it has waited for Accept

	writing chan struct{} // a lock with a time limit: held while writing, and guards broken
	broken  bool          // a frame was not written whole: nothing can follow it
}

// errNoReason is told to the peer where a program gives none.
var errNoReason = errors.New("the other end has given up")

// errCutOff refuses a message that would follow half of another.
var errCutOff = errors.New("an earlier message was cut off: nothing more can be sent")

// run begins to read what the peer says.
func (c *Conn) run() {
	if c.taken != nil {
		close(c.taken) // a goroutine of the listener's goes on
		return
	}
	go c.listen()
}

// listen reads until there is nothing more to read.
func (c *Conn) listen() {
	defer close(c.done)
	for {
		m, err := c.read()
		if err == nil && m.Kind == errorKind {
			var body errorBody
			if err = m.Decode(&body); err == nil {
				err = &PeerError{peertext.Clean(body.Text), body.Busy}
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

// read reads a message. The wait for its beginning is not bounded; each wait for more of it is.
func (c *Conn) read() (m Message, err error) {
	if _, err = c.r.Peek(1); err == nil {
		c.in.within(c.cfg.Timeout)
		if m, err = readFrame(c.r, c.cfg.MaxMessage); err == nil {
			c.in.within(0)
		}
	}
	if err == nil {
		return m, nil
	}
	if c.isClosing() {
		return m, ErrClosed
	}
	return m, c.explain(err, c.cfg.Timeout, "the rest of a message")
}

// TLS identifies the peer as crypto/tls has verified it; nil without TLS.
func (c *Conn) TLS() *tls.ConnectionState {
	over, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	state := over.ConnectionState()
	return &state
}

// Timeout is the limit of each step.
func (c *Conn) Timeout() time.Duration { return c.cfg.Timeout }

// LocalAddr is this end's address of the connection.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Received is how many bytes of messages have come from the peer. It grows while a long message
// comes over a slow link, so it tells a slow peer from a dead one.
func (c *Conn) Received() uint64 { return c.in.bytes.Load() }

// Send sends the peer a message: body as JSON, or no body if it is nil. A kind has 1 to 32 bytes
// and is not "error". If the peer does not read, Send waits until ctx ends or the peer has not
// taken 16 KiB for Config.Timeout; after that the conversation cannot send any more.
func (c *Conn) Send(ctx context.Context, kind string, body any) error {
	if ctx == nil {
		return errNoContext
	}
	f, err := Encode(kind, body)
	if err != nil {
		return err
	}
	return c.SendFrame(ctx, f)
}

// SendFrame is Send with a message that is encoded already.
func (c *Conn) SendFrame(ctx context.Context, f Frame) error {
	switch size := len(f.bytes) - lengthLen; {
	case ctx == nil:
		return errNoContext
	case size <= 0:
		return fmt.Errorf("%w: the frame is empty: it must be from Encode", verbs.ErrInvalid)
	case size > c.cfg.MaxMessage:
		return fmt.Errorf("%w: message %q has %d bytes: at most %d (Config.MaxMessage)", verbs.ErrInvalid,
			f.kind, size, c.cfg.MaxMessage)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	err := c.write(ctx, f.bytes, c.cfg.Timeout)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrClosed):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooLate(c.cfg.Timeout, fmt.Sprintf("the peer to take %q", f.kind))
	case errors.Is(err, errCutOff):
		return cmp.Or(c.Err(), err) // the peer's reason counts more, where it is known
	}
	if why := c.heard(ctx); why != nil {
		return why // the reason that the peer sent before it left
	}
	return c.explain(err, 0, "")
}

// pieceLen is how much of a frame is written at a time, each piece within the same time. In all, a
// frame has as long as its peer needs, as long as that takes a piece now and then.
const pieceLen = 16 << 10

// write writes a frame. The wait for its turn and the first piece have some time together, each
// further piece has it again.
func (c *Conn) write(ctx context.Context, frame []byte, within time.Duration) error {
	end := time.Now().Add(within)
	if err := c.turn(ctx, within); err != nil {
		return err
	}
	defer func() { <-c.writing }()
	if c.broken {
		return errCutOff
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.nc.SetWriteDeadline(time.Unix(1, 0))
		close(cut)
	})
	var err error
	for rest := frame; err == nil && len(rest) > 0; {
		n := 0
		if err = c.nc.SetWriteDeadline(end); err == nil && ctx.Err() != nil {
			err = context.Cause(ctx) // perhaps it has set the deadline before
		}
		if err == nil {
			n, err = c.nc.Write(rest[:min(len(rest), pieceLen)])
		}
		rest = rest[n:]
		c.broken = err != nil && len(rest) < len(frame)
		end = time.Now().Add(within)
	}
	if !stop() {
		<-cut // otherwise it would cut off the next frame
	}
	if err != nil && c.isClosing() {
		return ErrClosed
	}
	return err
}

// turn waits until no other caller writes, and takes the lock.
func (c *Conn) turn(ctx context.Context, within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case c.writing <- struct{}{}:
	case <-c.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
	if c.isClosing() {
		<-c.writing
		return ErrClosed
	}
	return nil
}

// isClosing reports whether this end has closed the conversation.
func (c *Conn) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// heard is why nothing more will come, if that becomes known soon.
func (c *Conn) heard(ctx context.Context) error {
	timer := time.NewTimer(min(lastWords, c.cfg.Timeout))
	defer timer.Stop()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

// Receive waits for the next message, which must be of the given kind, and decodes its body into
// body unless that is nil. It waits until ctx ends or Config.Timeout is over.
func (c *Conn) Receive(ctx context.Context, kind string, body any) error {
	m, err := c.ReceiveAny(ctx, kind)
	if err != nil || body == nil {
		return err
	}
	return m.Decode(body)
}

// ReceiveAny waits for the next message, which must be of one of the given kinds, or of any kind if
// you give none. It waits until ctx ends or Config.Timeout is over.
func (c *Conn) ReceiveAny(ctx context.Context, kinds ...string) (m Message, err error) {
	if ctx == nil {
		return m, errNoContext
	}
	timer := time.NewTimer(c.cfg.Timeout)
	defer timer.Stop()
	m, late, err := c.next(ctx, timer.C)
	switch {
	case late && len(kinds) == 0:
		return m, tooLate(c.cfg.Timeout, "a message")
	case late:
		return m, tooLate(c.cfg.Timeout, fmt.Sprintf("message %q", kinds[0]))
	case err != nil:
		return m, err
	}
	return m, m.expect(kinds)
}

// Next waits for the next message until ctx ends, without another limit.
func (c *Conn) Next(ctx context.Context) (m Message, err error) {
	if ctx == nil {
		return m, errNoContext
	}
	m, _, err = c.next(ctx, nil)
	return m, err
}

// next waits for a message, for the end of the conversation, of ctx, or of patience.
func (c *Conn) next(ctx context.Context, patience <-chan time.Time) (m Message, late bool, err error) {
	select {
	case m = <-c.inbox:
		return m, false, nil
	case <-c.done:
	case <-ctx.Done():
		return m, false, context.Cause(ctx)
	case <-patience:
		return m, true, nil
	}
	select {
	case m = <-c.inbox: // came before the end
		return m, false, nil
	default:
		return m, false, c.err
	}
}

// Inbox returns the channel of arriving messages, for use in a select. Receiving a message takes
// it.
func (c *Conn) Inbox() <-chan Message { return c.inbox }

// Done is closed once nothing more will come. Earlier messages may still be in the inbox. While 8
// messages wait to be received, nothing more is read, and the end is not noticed: if you keep a
// conversation to learn of its end, receive what comes, or let the peer send nothing.
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

// Fail tells the peer why this end gives up, unless that is the peer's own reason or the peer has
// gone, and closes the conversation. Before it closes it waits until the peer has acknowledged the
// reason or gone, at most 2 seconds and no longer than Config.Timeout. Err has the peer's own
// reason then, if it sent one.
func (c *Conn) Fail(why error) { c.fail(why, lastWords) }

// fail is Fail that waits no longer than patience.
func (c *Conn) fail(why error, patience time.Duration) {
	if why == nil {
		why = errNoReason
	}
	var theirs *PeerError
	if err := c.Err(); !errors.As(why, &theirs) && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
		c.lastWords(why, min(patience, c.cfg.Timeout))
	}
	_ = c.close(false)
}

// lastWords sends the peer a reason and waits until the peer has closed too: closed with unread
// bytes a connection is reset, and the reason would be lost.
func (c *Conn) lastWords(why error, patience time.Duration) {
	end := time.Now().Add(patience)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	f, err := encode(errorKind, errorBody{peertext.Clean(why.Error()), errors.Is(why, ErrBusy)})
	if err != nil || c.write(context.Background(), f.bytes, patience) != nil {
		return
	}
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = c.takeLeave(half.CloseWrite) // the peer sees the end otherwise
	}
	for waiting := true; waiting; {
		select {
		case <-c.inbox: // discarded
		case <-c.done:
			waiting = false
		case <-timer.C:
			return
		}
	}
	// Where listen has found a fault in what came, there is more behind it.
	if c.nc.SetReadDeadline(end) == nil {
		_, _ = io.Copy(io.Discard, c.nc)
	}
}

// Close ends the conversation, and with it the waits of Send and Receive. The peer learns that it
// was closed in order, ErrLeft, unless the connection is busy or breaks. You may call it again.
func (c *Conn) Close() error { return c.close(true) }

// close is Close, inOrder, or the end of Fail.
func (c *Conn) close(inOrder bool) (err error) {
	c.closed.Do(func() {
		close(c.closing)
		if inOrder {
			c.goodbye()
		}
		err = c.hangUp()
		<-c.done
	})
	return err
}

// goodbye tells the peer that nothing follows, unless another message is being written or was cut
// off.
func (c *Conn) goodbye() {
	select {
	case c.writing <- struct{}{}:
	default:
		return
	}
	if !c.broken && c.Err() == nil && c.nc.SetWriteDeadline(time.Now().Add(parting)) == nil {
		_, _ = c.nc.Write(make([]byte, lengthLen))
	}
	<-c.writing
	if len(c.inbox) == inboxLen { // a connection with unread bytes is reset, and the goodbye may be lost
		if c.in.endAt(time.Now().Add(draining)) == nil {
			_, _ = io.Copy(io.Discard, c.nc)
		}
	}
}

// hangUp closes the connection.
func (c *Conn) hangUp() error {
	err := c.takeLeave(c.nc.Close)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil // the peer has gone first, and it is closed all the same
	}
	return err
}

// takeLeave ends the connection, or its sending side. For that of TLS, crypto/tls would wait for
// five seconds where the peer takes nothing.
func (c *Conn) takeLeave(end func() error) error {
	if over, ok := c.nc.(*tls.Conn); ok {
		late := time.AfterFunc(leave, func() { _ = over.NetConn().Close() })
		defer late.Stop()
	}
	return end()
}
