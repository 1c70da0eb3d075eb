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
	// failTimeout is how long Fail waits for the peer to close too.
	failTimeout = 2 * time.Second
	// shortFailTimeout is the same if a context has ended or the listener is closed.
	shortFailTimeout = 50 * time.Millisecond
	// goodbyeTimeout is how long Close waits for the peer to take the goodbye.
	goodbyeTimeout = 100 * time.Millisecond
	// drainTimeout is how long Close discards unreceived messages if the inbox is full.
	drainTimeout = 10 * time.Millisecond
	// tlsEndTimeout is how long Close and Fail wait for the peer to take the end of TLS.
	tlsEndTimeout = 40 * time.Millisecond
	// inboxLen is the most messages that wait to be received.
	inboxLen = 8
)

// errorKind is the kind of the message that ends a conversation.
const errorKind = "error"

// isReserved reports whether a program may not send messages of a kind.
func isReserved(kind string) bool { return kind == errorKind || kind == kindDetach }

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
	r       *bufio.Reader // reads in, after the greeting
	cfg     Config
	inbox   chan Message
	closing chan struct{} // closed when this end closes the conversation
	closed  sync.Once
	done    chan struct{} // closed when nothing more will arrive; err says why
	err     error

	taken chan struct{} // closed by run; nil unless the conversation has waited for Accept

	writing chan struct{} // a lock with a time limit: held while writing, and guards broken
	broken  bool          // a frame was written in part, so nothing can follow it
}

// errNoReason is the reason sent to the peer if the program gives none.
var errNoReason = errors.New("the other end has given up")

// errCutOff refuses a message after one that was written in part.
var errCutOff = errors.New("an earlier message was cut off: nothing more can be sent")

// run starts reading messages.
func (c *Conn) run() {
	if c.taken != nil {
		close(c.taken) // the listener's goroutine continues with listen
		return
	}
	go c.listen()
}

// listen reads messages until the conversation ends.
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
		if m.Kind == kindDetach {
			c.err = errDetached // what follows is the program's: it stays in c.r
			return
		}
	}
}

// read reads a message. The wait for its first byte is not bounded; each wait for more bytes is.
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

// TLS returns the state of the TLS connection, which identifies the peer; nil without TLS.
func (c *Conn) TLS() *tls.ConnectionState {
	over, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	state := over.ConnectionState()
	return &state
}

// Timeout returns the limit of each step.
func (c *Conn) Timeout() time.Duration { return c.cfg.Timeout }

// LocalAddr returns this end's address of the connection.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Received returns how many bytes of messages have arrived from the peer. It grows while a long
// message arrives over a slow link, so it tells a slow peer from a dead one.
func (c *Conn) Received() uint64 { return c.in.bytes.Load() }

// Send sends the peer a message: body as JSON, or no body if it is nil. A kind has 1 to 32 bytes
// and is neither "error" nor "detach". If the peer does not read, Send waits until ctx ends or 16
// KiB have not been taken within Config.Timeout; after that the conversation cannot send any more.
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

// SendFrame is Send for a message that is already encoded.
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
		return cmp.Or(c.Err(), err) // the peer's reason matters more, if it is known
	}
	if why := c.endReason(ctx); why != nil {
		return why // the reason that the peer sent before it left
	}
	return c.explain(err, 0, "")
}

// pieceLen is how much of a frame is written at a time, in bytes. The time limit applies to each
// piece, so a slow peer may take as long as it needs for a frame.
const pieceLen = 16 << 10

// write writes a frame. The wait for other writers and the first piece together may take within,
// and so may each further piece.
func (c *Conn) write(ctx context.Context, frame []byte, within time.Duration) error {
	end := time.Now().Add(within)
	if err := c.lockWriting(ctx, within); err != nil {
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
			err = context.Cause(ctx) // it may have set its deadline before this one was set
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

// lockWriting takes the lock for writing, within a time.
func (c *Conn) lockWriting(ctx context.Context, within time.Duration) error {
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

// endReason waits a while for the conversation to end, and returns why it did; nil if it did not.
func (c *Conn) endReason(ctx context.Context) error {
	timer := time.NewTimer(min(failTimeout, c.cfg.Timeout))
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
	case m = <-c.inbox: // it arrived before the end
		return m, false, nil
	default:
		return m, false, c.err
	}
}

// Inbox returns the channel of arriving messages, for use in a select. Receiving a message takes
// it.
func (c *Conn) Inbox() <-chan Message { return c.inbox }

// Done returns a channel that is closed once nothing more will arrive. Earlier messages may still
// be in the inbox. While 8 messages wait to be received, nothing more is read, and the end is not
// noticed: if you keep a conversation to learn of its end, receive what arrives, or let the peer
// send nothing.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why nothing more will arrive; nil while messages may still arrive.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Context returns a context that ends with the conversation, and then has Err as its cause
// ([context.Cause]): for calls that wait for the peer and do not know the conversation, such as
// those of a completion queue. Call cancel when they have returned. Do not pass the context to the
// steps of the conversation itself, because the peer may close it after its last step.
func (c *Conn) Context(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.done:
			end(c.err)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// Fail tells the peer why this end gives up, unless that is the peer's own reason or the peer has
// gone, and closes the conversation. Before it closes, it waits until the peer has acknowledged the
// reason or gone, at most 2 seconds and no longer than Config.Timeout. Err then returns the peer's
// own reason, if it sent one.
func (c *Conn) Fail(why error) { c.fail(why, failTimeout) }

// fail is Fail with a limit for its wait.
func (c *Conn) fail(why error, patience time.Duration) {
	if why == nil {
		why = errNoReason
	}
	var theirs *PeerError
	if err := c.Err(); !errors.As(why, &theirs) && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
		c.sendReason(why, min(patience, c.cfg.Timeout))
	}
	_ = c.close(false)
}

// sendReason sends the peer a reason and waits until the peer has closed too: closing a connection
// that has unread bytes resets it, and the reason would be lost.
func (c *Conn) sendReason(why error, patience time.Duration) {
	end := time.Now().Add(patience)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	f, err := encode(errorKind, errorBody{peertext.Clean(why.Error()), errors.Is(why, ErrBusy)})
	if err != nil || c.write(context.Background(), f.bytes, patience) != nil {
		return
	}
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = c.endWithTLS(half.CloseWrite) // if it fails, the peer still sees the end later
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
	// If listen stopped at a faulty message, there may be more to discard.
	if c.nc.SetReadDeadline(end) == nil {
		_, _ = io.Copy(io.Discard, c.nc)
	}
}

// Close ends the conversation, and with it the waits of Send and Receive. The peer gets ErrLeft,
// closed in order, unless the connection is busy or breaks. You may call it again.
func (c *Conn) Close() error { return c.close(true) }

// close is Close if inOrder is set, and otherwise the end of Fail.
func (c *Conn) close(inOrder bool) (err error) {
	c.closed.Do(func() {
		close(c.closing)
		if inOrder {
			c.goodbye()
		}
		err = c.closeConnection()
		<-c.done
	})
	return err
}

// goodbye sends the peer the goodbye, unless another message is being written or was cut off.
func (c *Conn) goodbye() {
	select {
	case c.writing <- struct{}{}:
	default:
		return
	}
	if !c.broken && c.Err() == nil && c.nc.SetWriteDeadline(time.Now().Add(goodbyeTimeout)) == nil {
		_, _ = c.nc.Write(make([]byte, lengthLen))
	}
	<-c.writing
	if len(c.inbox) == inboxLen { // a connection with unread bytes is reset, and the goodbye may be lost
		if c.in.endAt(time.Now().Add(drainTimeout)) == nil {
			_, _ = io.Copy(io.Discard, c.nc)
		}
	}
}

// closeConnection closes the connection.
func (c *Conn) closeConnection() error {
	err := c.endWithTLS(c.nc.Close)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil // the peer has gone first; the connection is closed all the same
	}
	return err
}

// endWithTLS ends the connection, or its sending side. Without the timer crypto/tls would wait five
// seconds for a peer that takes nothing.
func (c *Conn) endWithTLS(end func() error) error {
	if over, ok := c.nc.(*tls.Conn); ok {
		late := time.AfterFunc(tlsEndTimeout, func() { _ = over.NetConn().Close() })
		defer late.Stop()
	}
	return end()
}
